"""What a report says of a search for a defense's parameters: the trials, those that none beats, and the one chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mi_core.report.contents import Row, named
from mi_core.report.figures.drawing import COLOURS, Drawing, blank, label_axes, level, svg
from mi_core.report.words.numbers import estimate, percent, rate, setting

_METRICS = {"auc": "AUC", "accuracy": "accuracy"}


def in_words(parameters: Mapping[str, Any]) -> str:
    """Parameters by the last part of their names.

    Example:
        >>> in_words({"defenses.0.settings.scale": 0.0213, "defenses.0.epoch": 10})
        'scale 0.0213, epoch 10'
    """
    return ", ".join(setting(*one) for one in parameters.items())


def leaking(found: Mapping[str, Any]) -> str:
    """Whose upper end the leak is, in words."""
    if "hides" in found:
        return "strongest inference's accuracy"
    return f"strongest attack's {_METRICS[found['metric']]}"


def front_of(found: Mapping[str, Any]) -> list[Row]:
    """The trials that no other one beats, by the utility that they lose."""
    return sorted((row for row in found["rows"] if row.get("pareto")), key=lambda row: row["utility_loss"])


def sentence(found: Mapping[str, Any]) -> str:
    """What was chosen, and what it is worth on images that the search never looked at."""
    winner, bare = found["winner"], found["without"]["final"]
    final = winner["final"]
    within = "" if winner["within"] else " No trial stayed below it; this one leaks least."
    missed = winner["within"] and final["leak"] > found["allowed"]
    again = " Its upper end is above what was allowed: these images do not confirm the choice." if missed else ""
    return (
        f"Chosen of {found['trials']} trials ({found['failed']} failed, {found['cut']} stopped early): "
        f"{in_words(winner['parameters'])}. The {leaking(found)} was allowed an upper end of "
        f"{rate(found['allowed'], 2)}.{within} On images held back, the defense costs "
        f"{percent(round(final['utility_loss'], 3))} of the utility ({found['measure']} {estimate(final['utility'])} "
        f"instead of {estimate(bare['utility'])}). "
        f"{_left(found, final, bare)}{again} In the search, the loss "
        f"was {percent(round(winner['search']['utility_loss'], 3))} and the upper end {rate(winner['search']['leak'])}."
    )


def _left(found: Mapping[str, Any], final: Row, bare: Row) -> str:
    """What the strongest attacks reach on images held back, with the defense and without it."""
    defended, plain = (max(side["attacks"], key=lambda row: row["ci95"][1]) for side in (final, bare))
    if "hides" not in found:
        return f"The strongest attack reaches {estimate(defended)} instead of {estimate(plain)}."
    told, before = (max(side["inferences"], key=lambda row: row["accuracy"]["ci95"][1]) for side in (final, bare))
    return (
        f"The strongest inference ({named(told)}) is right for {estimate(told['accuracy'])} instead of "
        f"{estimate(before['accuracy'])}; guessing is right for {estimate(told['majority'])}. The strongest attack on "
        f"membership reaches {estimate(defended)} instead of {estimate(plain)} ({_METRICS[found['metric']]})."
    )


def tuning_figures(report: Mapping[str, Any]) -> dict[str, Drawing]:
    """The figure of a search: every trial, the front, and the chosen one as measured anew.

    Args:
        report: the content of report.json.

    Returns:
        ``tuning``; nothing without a search.
    """
    found = report.get("tuning")
    if not found:
        return {}
    figure, (panel,) = blank()
    rows = [row for row in found["rows"] if "fault" not in row]
    beaten, front = [row for row in rows if not row["pareto"]], front_of(found)
    if beaten:
        panel.plot(*_axes(beaten), "o", color="#b0b0b0", markersize=3.5, label=f"trials ({len(rows)})")
    panel.plot(*_axes(front), "o-", color=COLOURS[0], markersize=4.5, label="not beaten", drawstyle="steps-post")
    winner = found["winner"]
    chosen, again = winner["search"], winner["final"]
    panel.plot([chosen["utility_loss"]], [chosen["leak"]], "*", color=COLOURS[1], markersize=12, label="chosen")
    panel.plot(
        [again["utility_loss"]], [again["leak"]], "X", color=COLOURS[2], markersize=8, label="on images held back"
    )
    bare = found["without"]["search"]
    panel.plot([0.0], [bare["leak"]], "P", color="#000000", markersize=7, label="no defense")
    level(panel, found["allowed"], "allowed")
    label_axes(panel, f"utility lost ({found['measure']})", f"upper end of the\n{leaking(found)}")
    told = ", ".join(f"{percent(round(row['utility_loss'], 3))} at {rate(row['leak'])}" for row in front)
    alt = (
        f"Utility lost and upper end of the {leaking(found)}, where no other trial beats it: {told}. {sentence(found)}"
    )
    return {"tuning": Drawing(svg(figure), f"Utility against leak: {found['target']}", alt)}


def _axes(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    return [row["utility_loss"] for row in rows], [row["leak"] for row in rows]
