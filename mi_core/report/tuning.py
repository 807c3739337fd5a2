"""A search for a defense's parameters in a report: the trials, the ones that none beats, and the one chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mi_core.report.contents import method_in_words
from mi_core.report.figures.drawing import COLOURS, Drawing, blank, label_axes, level, svg
from mi_core.report.model.defenses import Trial, TrialRow, Tuning
from mi_core.report.model.report import Report
from mi_core.report.words.numbers import estimate, percent, rate, setting

_METRICS = {"auc": "AUC", "accuracy": "accuracy"}


def in_words(parameters: Mapping[str, Any]) -> str:
    """Parameters by the last part of their names.

    Example:
        >>> in_words({"defenses.0.settings.scale": 0.0213, "defenses.0.epoch": 10})
        'scale 0.0213, epoch 10'
    """
    return ", ".join(setting(*one) for one in parameters.items())


def leaking(search: Tuning) -> str:
    """Whose upper end the leak is, in words."""
    return f"strongest attack's {_METRICS[search.metric]}" if search.hides is None else "strongest inference's accuracy"


def front_of(search: Tuning) -> list[TrialRow]:
    """The trials that no other one beats, by the utility that they lose."""
    return sorted((row for row in search.rows if row.pareto), key=loss_of)


def loss_of(trial: Trial | TrialRow) -> float:
    """The utility that a trial loses; a failed one, and the encoder without a defense, have no such number."""
    return trial.utility_loss or 0.0


def sentence(search: Tuning) -> str:
    """The choice, and its worth on images that the search never looked at."""
    winner, bare = search.winner, search.without.final
    final = winner.final
    within = "" if winner.within else " No trial stayed below it; this one leaks least."
    missed = winner.within and final.leak > search.allowed
    again = " Its upper end is above what was allowed: these images do not confirm the choice." if missed else ""
    return (
        f"Chosen of {search.trials} trials ({search.failed} failed, {search.cut} stopped early): "
        f"{in_words(winner.parameters)}. The {leaking(search)} was allowed an upper end of "
        f"{rate(search.allowed, 2)}.{within} On images held back, the defense costs "
        f"{percent(round(loss_of(final), 3))} of the utility ({search.measure} {estimate(final.utility.reached)} "
        f"instead of {estimate(bare.utility.reached)}). "
        f"{_leak_in_words(search, final, bare)}{again} In the search, the loss "
        f"was {percent(round(loss_of(winner.search), 3))} and the upper end {rate(winner.search.leak)}."
    )


def _leak_in_words(search: Tuning, final: Trial, bare: Trial) -> str:
    """The result of the strongest attacks on images held back, with the defense and without it."""
    defended, plain = (
        max((row.reached for row in side.attacks), key=lambda reached: reached.high) for side in (final, bare)
    )
    if search.hides is None:
        return f"The strongest attack reaches {estimate(defended)} instead of {estimate(plain)}."
    told, before = (max(side.inferences, key=lambda row: row.accuracy.high) for side in (final, bare))
    return (
        f"The strongest inference ({method_in_words(told.attribute, told.output, told.settings)}) is right for "
        f"{estimate(told.accuracy)} instead of {estimate(before.accuracy)}; guessing is right for "
        f"{estimate(told.majority)}. The strongest attack on membership reaches {estimate(defended)} instead of "
        f"{estimate(plain)} ({_METRICS[search.metric]})."
    )


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
    panel.plot(*_axes(front), "o-", color=COLOURS[0], markersize=4.5, label="not beaten", drawstyle="steps-post")
    chosen, again = search.winner.search, search.winner.final
    panel.plot(*_axes([chosen]), "*", color=COLOURS[1], markersize=12, label="chosen")
    panel.plot(*_axes([again]), "X", color=COLOURS[2], markersize=8, label="on images held back")
    panel.plot([0.0], [search.without.search.leak], "P", color="#000000", markersize=7, label="no defense")
    level(panel, search.allowed, "allowed")
    label_axes(panel, f"utility lost ({search.measure})", f"upper end of the\n{leaking(search)}")
    told = ", ".join(f"{percent(round(loss, 3))} at {rate(leak)}" for loss, leak in zip(*_axes(front), strict=True))
    what = f"Utility lost and upper end of the {leaking(search)}"
    alt = f"{what}, where no other trial beats it: {told}. {sentence(search)}"
    return {"tuning": Drawing(svg(figure), f"Utility against leak: {search.target}", alt)}


def _axes(rows: Sequence[Trial | TrialRow]) -> tuple[list[float], list[float]]:
    return [loss_of(row) for row in rows], [row.leak or 0.0 for row in rows]
