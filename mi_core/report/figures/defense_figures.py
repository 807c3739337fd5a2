"""Figures of defenses: what each leaves of every attack, what it costs, and how both follow its parameter.

They are figures 1 and 2 of Yang, Gohari, Topcu ("Additive logistic mechanism for privacy-preserving self-supervised
learning", 2022) and 12 to 14 and 20 to 24 of He and Zhang ("Quantifying and mitigating privacy risks of contrastive
learning", CCS 2021), for whatever defenses a run has.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from mi_core.records import Estimate
from mi_core.report.contents import method_in_words
from mi_core.report.defenses import front_of, known_as, loss_of, undefended
from mi_core.report.figures import drawing
from mi_core.report.figures.drawing import Drawing, blank, label_axes, level
from mi_core.report.model.defenses import AttackPair, AttributePair, DefenseRow, Trial, TrialRow
from mi_core.report.model.report import Report
from mi_core.report.pooling import grouped
from mi_core.report.words.numbers import count, percent, plain, rate
from mi_core.report.words.sentences import measured_by, say

_MOST_LABELS = 12  # of one axis


def defense_figures(report: Report) -> dict[str, Drawing]:
    """The figures of the defenses of every defended encoder.

    Args:
        report: the content of report.json.

    Returns:
        ``defenses-attacks-<target>`` (and ``-attributes-``) for a dozen defenses at most,
        ``defenses-tradeoff-<target>`` where there is a utility, and ``defenses-epsilon-<target>`` where defenses
        guarantee one; nothing without a defense.
    """
    drawings: dict[str, Drawing] = {}
    for target, entries in grouped(report.defenses, attrgetter("target")).items():
        if len(entries) <= _MOST_LABELS:
            for part, words in (("attacks", "attack {}"), ("attributes", "{} of the attribute")):
                if all(getattr(entry, part) for entry in entries):
                    y = words.format(_measured(entries, part)[1])
                    drawings[drawing.file_name(f"defenses-{part}-{target}")] = _each(target, entries, part, y)
        priced = [entry for entry in entries if entry.utility and entry.attacks]
        if priced:
            drawings[drawing.file_name(f"defenses-tradeoff-{target}")] = _tradeoff(target, priced)
            promising = [entry for entry in priced if entry.numbers.get("epsilon", 0) > 0]
            sampled = [mine for mine in _by_defense(promising).values() if len(mine) > 1]
            if sampled:
                drawings[drawing.file_name(f"defenses-epsilon-{target}")] = _against_epsilon(target, sampled)
    return drawings


def _by_defense(entries: Sequence[DefenseRow]) -> dict[str, list[DefenseRow]]:
    return grouped(entries, lambda entry: known_as(entry, entry.defense))


def strongest(entry: DefenseRow, side: str) -> Estimate:
    """The result of the strongest attack on an encoder, plain (``clean``) or ``defended``."""
    measure, _ = _measured([entry])
    reached: list[Estimate] = [getattr(getattr(pair, side), measure) for pair in entry.attacks]
    return max(reached, key=lambda estimate: estimate.value)


def _measured(entries: Sequence[DefenseRow], part: str = "attacks") -> tuple[str, str]:
    """By what the attacks, or the inferences, of some defenses are compared, and its name."""
    pairs = [pair for entry in entries for pair in getattr(entry, part)]
    return measured_by(side for pair in pairs for side in (pair.clean, pair.defended))


def _loss(entry: DefenseRow) -> float:
    return float(entry.utility[0].loss or 0.0)


def _called(pair: AttackPair | AttributePair) -> str:
    method = pair.attack if isinstance(pair, AttackPair) else pair.attribute
    return method_in_words(method, pair.output, pair.settings)


def _each(target: str, entries: Sequence[DefenseRow], part: str, y: str) -> Drawing:
    """Every attack on the plain encoder and on every defended one."""
    figure, (panel,) = blank()
    measure, _ = _measured(entries, part)
    labels = ["none", *(known_as(entry, entry.label) for entry in entries)]
    series = {_called(pair): [(0, getattr(pair.clean, measure))] for pair in getattr(undefended(entries), part)}
    for number, entry in enumerate(entries, start=1):
        for pair in getattr(entry, part):
            series[_called(pair)].append((number, getattr(pair.defended, measure)))
    told = drawing.abreast(panel, labels, series, rotation=25, ha="right")
    if part == "attacks":
        level(panel)
    label_axes(panel, "defense", y)
    what = "Attacks" if part == "attacks" else "Attribute inference"
    return Drawing(figure, f"{what} on {target} behind every defense", f"{y} behind {', '.join(labels)}: {told}.")


def _tradeoff(target: str, entries: Sequence[DefenseRow]) -> Drawing:
    """Utility lost against the strongest attack; a line joins the settings of one defense."""
    figure, (panel,) = blank()
    bare = strongest(undefended(entries), "clean")
    drawing.errors(panel, [0.0], [bare], fmt="P", color="#000000", label="no defense")
    told = [f"no defense 0, {rate(bare.value)}"]
    for index, (name, mine) in enumerate(_by_defense(entries).items()):
        ordered = sorted(mine, key=_loss)
        rows = [strongest(entry, "defended") for entry in ordered]
        losses = [_loss(entry) for entry in ordered]
        style = drawing.look(index, marker=True) | ({} if len(mine) > 1 else {"linestyle": ""})
        drawing.errors(panel, losses, rows, label=name, **style)
        told.append(f"{name} " + ", ".join(f"{rate(a)} at {rate(b.value)}" for a, b in zip(losses, rows, strict=True)))
    level(panel)
    measure, (_, measured) = entries[0].utility[0], _measured(entries)
    label_axes(panel, f"utility lost ({measure.measure}, n {count(measure.clean.n)})", f"strongest attack's {measured}")
    title = f"What hiding the members of {target} costs"
    return Drawing(figure, title, f"Utility lost and {measured} of the strongest attack: {'; '.join(told)}.")


def _against_epsilon(target: str, sampled: Sequence[Sequence[DefenseRow]]) -> Drawing:
    """Utility lost and the strongest attack against epsilon."""
    figure, panels = blank(height=4.9, rows=2)
    told = []
    for index, mine in enumerate(sampled):
        ordered = sorted(mine, key=lambda entry: entry.numbers["epsilon"])
        places = [entry.numbers["epsilon"] for entry in ordered]
        style = drawing.look(index, marker=True) | {"markersize": 4}
        losses = [_loss(entry) for entry in ordered]
        name = known_as(ordered[0], ordered[0].defense)
        panels[0].plot(places, losses, label=name, **style)
        rows = [strongest(entry, "defended") for entry in ordered]
        drawing.errors(panels[1], places, rows, **style)
        shown = [
            f"{plain(place)}: {percent(round(loss, 3))} and {rate(row.value)}"
            for place, loss, row in zip(places, losses, rows, strict=True)
        ]
        told.append(f"{name} {', '.join(shown)}")
    level(panels[0], 0.0, "")
    level(panels[1], 0.5, "")
    drawing.log_scale(panels[1].xaxis)
    label_axes(panels[0], "", "utility lost")
    panels[1].set_xlabel("epsilon", fontsize=9.5)
    _, measured = _measured([entry for mine in sampled for entry in mine])
    panels[1].set_ylabel(f"strongest attack's {measured}", fontsize=9.5)
    title = f"Defenses of {target} by epsilon"
    return Drawing(figure, title, f"Epsilon: utility lost and {measured} of the strongest attack. {'; '.join(told)}.")


def tuning_figures(report: Report) -> dict[str, Drawing]:
    """The figure of a search: every trial, the front, and the chosen one as measured anew.

    Args:
        report: the content of report.json.

    Returns:
        ``tuning``; nothing without a search.
    """
    search = report.tuning
    if search is None:
        return {}
    figure, (panel,) = blank()
    rows = [row for row in search.rows if row.fault is None]
    beaten, front = [row for row in rows if not row.pareto], front_of(search)
    if beaten:
        panel.plot(*_axes(beaten), "o", color="#b0b0b0", markersize=3.5, label=f"trials ({len(rows)})")
    first, second, third, *_ = drawing.COLOURS
    panel.plot(*_axes(front), "o-", color=first, markersize=4.5, label="not beaten", drawstyle="steps-post")
    chosen, again = search.winner.search, search.winner.final
    panel.plot(*_axes([chosen]), "*", color=second, markersize=12, label="chosen")
    panel.plot(*_axes([again]), "X", color=third, markersize=8, label="on images held back")
    panel.plot([0.0], [search.without.search.leak], "P", color="#000000", markersize=7, label="no defense")
    level(panel, search.allowed, "allowed")
    leak = say("leaking", search)
    label_axes(panel, f"utility lost ({search.measure})", f"upper end of the\n{leak}")
    told = ", ".join(f"{percent(round(loss, 3))} at {rate(most)}" for loss, most in zip(*_axes(front), strict=True))
    alt = f"Utility lost and upper end of the {leak}, where no other trial beats it: {told}. {say('search', search)}"
    return {"tuning": Drawing(figure, f"Utility against leak: {search.target}", alt)}


def _axes(rows: Sequence[Trial | TrialRow]) -> tuple[list[float], list[float]]:
    return [loss_of(row) for row in rows], [row.leak or 0.0 for row in rows]
