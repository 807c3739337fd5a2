"""The figures of a report, as PNG: ROC curves, score histograms, training loss, early stopping.

ROC curves stand on logarithmic axes, because an attack that is sure about few images matters more than one that is
right a little more often than not (Carlini et al., "Membership inference attacks from first principles", IEEE S&P
2022, section III).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from mi_core.records import ALL_CALLED, FloatArray
from mi_core.report.contents import epoch_of, pooled_rows, primary_row
from mi_core.report.figures import drawing
from mi_core.report.figures.curves import attribute_figures, comparison_figures, sweep_figures
from mi_core.report.figures.defense_figures import defense_figures, tuning_figures
from mi_core.report.figures.drawing import AttackScores, Drawing, FigureData, ViewGrid, blank, label_axes, level
from mi_core.report.model.attacks import PooledRow
from mi_core.report.model.report import Report
from mi_core.report.pooling import grouped, of_all, series_names, series_of
from mi_core.report.words.numbers import count, percent, plain, rate
from mi_core.report.words.sentences import Sides, say, sides_of


def draw_figures(report: Report, data: FigureData) -> dict[str, Drawing]:
    """Draw every figure the report has data for.

    Args:
        report: the content of report.json.
        data: scores and losses that report.json does not hold.

    Returns:
        File name without suffix -> figure: ``roc-<output>`` and ``scores-<output>-<attack>`` (with ``-<target>`` where
        the target is not called "target", and ``-<reference>`` where curves would be too many), ``statistic-...`` for
        what an attack reads if that is not its score; ``loss``; from two checkpoints on ``early-stopping`` (with
        ``-<target>`` for further ones); ``views``; those of `curves` and `defense_figures`.
    """
    drawings: dict[str, Drawing] = {}
    sides = sides_of(report)
    names = series_names((run.attack, run.reference) for run in data.scores)
    colours = {name: drawing.COLOURS[index % len(drawing.COLOURS)] for index, name in enumerate(names.values())}
    for (target, output), here in grouped(data.scores, attrgetter("target", "output")).items():
        where = output if target == "target" else f"{output}-{target}"
        fit = len({(run.attack, run.reference) for run in here}) <= len(drawing.COLOURS)  # else a figure by reference
        groups = {"": here} if fit else grouped(here, lambda run: f"-{run.reference}")
        for suffix, runs_of_group in groups.items():
            series = grouped(runs_of_group, lambda run: names[run.attack, run.reference])
            drawings[drawing.file_name(f"roc-{where}{suffix}")] = _roc(series, colours, sides)
            if suffix != next(iter(groups)):
                continue  # histograms of the first group stand for the others
            for histogram in _histograms(series):
                drawings[drawing.file_name(f"{histogram.kind}-{where}-{histogram.name}")] = _histogram(histogram, sides)
    if data.losses:
        drawings["loss"] = _loss(data)
    for number, rows in enumerate(_curve_rows(report)):
        suffix = f"-{rows[0].target}" if number else ""
        drawings[drawing.file_name(f"early-stopping{suffix}")] = _early_stopping(report, rows)
    if data.views is not None:
        drawings["views"] = view_grid(data.views)
    drawings |= comparison_figures(report) | sweep_figures(report) | attribute_figures(report, data.maps)
    return drawings | defense_figures(report) | tuning_figures(report)


def _seeds(runs: Sequence[Any]) -> str:
    seeds = len({run.seed for run in runs})
    return "one seed" if seeds == 1 else f"{seeds} seeds"


def rate_at(run: AttackScores, grid: FloatArray) -> FloatArray:
    """(G,) true-positive rate of one run at false-positive rates of at most ``grid`` (G,)."""
    from sklearn.metrics import roc_curve  # slow to load

    fpr, tpr, _ = roc_curve(run.member, run.score, drop_intermediate=False)
    return np.asarray(tpr[np.searchsorted(fpr, grid, side="right") - 1])


def _roc(series: Mapping[str, Sequence[AttackScores]], colours: Mapping[str, str], sides: Sides) -> Drawing:
    figure, (panel,) = blank()
    every = [run for runs in series.values() for run in runs]
    nonmembers_of = [int((~run.member).sum()) for run in every]
    floor, fewest = min(0.5, 1 / max(nonmembers_of)), min(nonmembers_of)
    grid = np.geomspace(floor, 1, 400)
    limit = min(1.0, 10 / fewest)  # left of it a threshold rests on fewer than 10 false positives
    few = f"fewer than 10 {'false positives' if sides.known else sides.outside}"
    panel.axvspan(floor, limit, color="#ececec", zorder=0, linewidth=0, label=few)
    panel.plot(grid, grid, color=drawing.GREY, linewidth=0.9, linestyle=drawing.DASHED, label="guessing")
    place, told = max(0.01, limit), []
    for index, (attack, runs) in enumerate(series.items()):
        inside, outside = (sum(int((run.member == side).sum()) for run in runs) for side in (True, False))
        style = {"linewidth": 2, "linestyle": drawing.STYLES[index % len(drawing.STYLES)]}
        curves = np.stack([rate_at(run, grid) for run in runs])
        for curve in curves if len(curves) > 1 else ():
            panel.plot(grid, curve, linewidth=0.7, alpha=0.45, color=colours[attack])
        label = f"{attack} (n {count(inside)} + {count(outside)})"
        panel.plot(grid, curves.mean(axis=0), color=colours[attack], label=label, **style)
        height = float(curves.mean(axis=0)[np.searchsorted(grid, place)])
        told.append(f"{attack} {rate(height) if sides.known else percent(round(height, 3))}")
    panel.set_yscale("log", nonpositive="mask")
    panel.set(xscale="log", xlim=(floor, 1), ylim=(floor, 1.05))
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: percent(value)))
        axis.set_minor_formatter(NullFormatter())
    shares = ("false-positive rate", "true-positive rate")
    x, y = shares if sides.known else (f"share of {sides.outside} above", f"share of {sides.inside} above")
    label_axes(panel, x, y, legend_inside=True)
    found_at = (
        "Members found at each rate of false alarms" if sides.known else "Your images above each share of controls"
    )
    title = f"{found_at} (ROC): {every[0].output} output of {every[0].target}, {_seeds(every)}"
    lines = "thick: mean, thin: each seed" if len({run.seed for run in every}) > 1 else "one curve per attack"
    shown = round(place, 3)
    near = f"{shares[1].capitalize()} near {percent(shown)} false positives"
    found = near if sides.known else f"Share of {sides.inside} above about {percent(1 - shown)} of {sides.outside}"
    return Drawing(figure, title, f"ROC curves on logarithmic axes ({lines}). {found}: {', '.join(told)}.")


@dataclass
class _Histogram:
    """Numbers of both groups, and the attacks whose scores, or what they read, these are."""

    kind: str  # ``scores``, or ``statistic`` where they are what an attack reads
    name: str  # of the first attack
    runs: Sequence[AttackScores]  # of the first attack
    values: Sequence[FloatArray]  # the numbers (N,) of each run
    same: list[str] = field(default_factory=list)  # the others, and whether they score or read the same numbers

    def in_order(self) -> list[FloatArray]:
        """The numbers of members, then of non-members, of each run, ascending."""
        pairs = zip(self.runs, self.values, strict=True)
        return [np.sort(values[side]) for run, values in pairs for side in (run.member, ~run.member)]

    def shows(self, other: _Histogram) -> bool:
        """True if the other one would be the same picture."""
        return len(self.runs) == len(other.runs) and all(
            len(mine) == len(theirs) and np.allclose(mine, theirs, rtol=1e-6, atol=0)
            for mine, theirs in zip(self.in_order(), other.in_order(), strict=True)
        )


def _histograms(series: Mapping[str, Sequence[AttackScores]]) -> list[_Histogram]:
    """Pictures of some attacks, each once: many attacks read, or score by, the same numbers."""
    every = [_Histogram("scores", name, runs, [run.score for run in runs]) for name, runs in series.items()]
    for name, runs in series.items():
        if read := of_all([run.statistic for run in runs]):
            every.append(_Histogram("statistic", name, runs, read))
    shown: list[_Histogram] = []
    for one in every:
        twin = next((other for other in shown if other.shows(one)), None)
        if twin is None:
            shown.append(one)
        elif twin.name != one.name:
            twin.same.append(f"{one.name} {'has' if one.kind == 'scores' else 'reads'} the same")
    return shown


def _histogram(shown: _Histogram, sides: Sides) -> Drawing:
    figure, (panel,) = blank()
    name, runs, statistic = shown.name, shown.runs, shown.kind == "statistic"
    score = np.concatenate(shown.values).astype(np.float64)
    member = np.concatenate([run.member for run in runs])
    low, high = np.quantile(score, (0.001, 0.999))
    clipped = np.clip(score, low, high)  # the outermost bins collect the tails
    edges = np.histogram_bin_edges(clipped, bins=40)
    drawing.two_groups(panel, edges, (sides.inside, clipped[member]), (sides.outside, clipped[~member]))
    known = () if statistic else tuple(run.threshold for run in runs if run.threshold is not None)
    thresholds = [threshold for threshold in known if threshold != ALL_CALLED]
    for index, threshold in enumerate(thresholds):
        named = {"label": "threshold of each seed" if len(runs) > 1 else "threshold"} if index == 0 else {}
        panel.axvline(threshold, color="#222222", linewidth=0.9, linestyle=drawing.DASHED, **named)
    scored = f"score (higher = more likely {'a member' if sides.known else 'used'})"
    label_axes(panel, "what the attack reads" if statistic else scored, "share of images (%)")
    titled = f"What {name} reads" if statistic else f"Scores of {name}"
    title = f"{titled} on the {runs[0].output} output of {runs[0].target}, {_seeds(runs)}"
    medians = (
        f"{plain(float(np.median(score[member])))} for {sides.inside} and "
        f"{plain(float(np.median(score[~member])))} for {sides.outside}"
    )
    same = f" {'; '.join(shown.same)}." if shown.same else ""
    return Drawing(figure, title, f"Histogram. The median is {medians}; outer bins collect the tails.{same}")


def _loss(data: FigureData) -> Drawing:
    figure, (panel,) = blank(height=2.6)
    told = []
    for index, (encoder, mine) in enumerate(grouped(data.losses, attrgetter("encoder")).items()):
        for number, curve in enumerate(mine):
            label = f"{encoder} ({_seeds(mine)})" if number == 0 else None
            panel.plot(curve.epoch, curve.loss, linewidth=1.2, alpha=0.8, label=label, **drawing.look(index))
        told.append(f"{encoder} ends at {plain(np.mean([curve.loss[-1] for curve in mine]))}")
    label_axes(panel, "epoch", "pre-training loss")
    alt = f"Pre-training loss against the epoch: {', '.join(told)}."
    return Drawing(figure, f"Pre-training loss, {_seeds(data.losses)}", alt)


def _curve_rows(report: Report) -> list[list[PooledRow]]:
    """The rows by epoch of each target, on the primary attack's output, that span two epochs; its own target first.

    Of many attacks on a target the first few are kept, as many as a figure has colours for.
    """
    rows = [row for row in pooled_rows(report) if row.epoch is not None]
    if not rows:
        return []
    lead = primary_row(rows) or rows[0]
    by_target = grouped((row for row in rows if row.output == lead.output), attrgetter("target"))
    curves = []
    for target in sorted(by_target, key=lambda name: (name != lead.target, name)):
        shown = list(dict.fromkeys(map(series_of, by_target[target])))[: drawing.BLACK]
        if len({row.epoch for row in by_target[target]}) > 1:
            curves.append([row for row in by_target[target] if series_of(row) in shown])
    return curves


def _early_stopping(report: Report, rows: Sequence[PooledRow]) -> Drawing:
    target, output = rows[0].target, rows[0].output
    utility = report.encoders[target].curve if target in report.encoders else ()
    figure, panels = blank(height=4.6 if utility else 2.6, rows=2 if utility else 1)
    told = []
    pairs, lead, known = grouped(rows, series_of), primary_row(rows), sides_of(report).known
    names = series_names(pairs)
    for index, (pair, of_pair) in enumerate(pairs.items()):
        mine, name = sorted(of_pair, key=epoch_of), names[pair]
        size = f"(n {count(mine[-1].auc.n)})"
        drawing.band(panels[0], [(epoch_of(row), row.auc) for row in mine], f"{name} {size}", index)
        if lead is not None and series_of(lead) == pair and known:
            accuracy = [(epoch_of(row), row.accuracy) for row in mine if row.accuracy is not None]
            drawing.band(panels[0], accuracy, f"accuracy of {name}", drawing.BLACK)
        told.append(f"{name} from {rate(mine[0].auc.value)} to {rate(mine[-1].auc.value)}")
    level(panels[0])
    label_axes(panels[0], "" if utility else "epoch", "attack AUC and accuracy" if known else "attack AUC")
    for index, name in enumerate(utility[0].utility.probes if utility else ()):
        points = [(at.epoch, at.utility.probes[name]) for at in utility]
        drawing.band(panels[1], points, f"{say('probe', name)} (n {count(points[-1][1].n)})", index + 4)
    if utility:
        label_axes(panels[1], "epoch", "downstream accuracy")
    epochs = sorted({epoch_of(row) for row in rows})
    if len(epochs) <= 8:  # more would run into each other
        panels[-1].set_xticks(epochs)
    alt = f"Attack AUC on the {output} output against the epoch, first to last checkpoint: {', '.join(told)}."
    return Drawing(figure, f"Stopping earlier: attack and utility of {target} by epoch, {output} output", alt)


def view_grid(grid: ViewGrid) -> Drawing:
    """One row per image: the image, a gap, its views."""
    count, views = grid.views.shape[:2]
    widths = [1.0, 0.15, *[1.0] * views]
    height = drawing.WIDTH / sum(widths) * count * 1.06
    figure = Figure(figsize=(drawing.WIDTH, height), dpi=drawing.DPI, facecolor="none")
    panels = figure.subplots(
        count, len(widths), squeeze=False, gridspec_kw={"width_ratios": widths, "wspace": 0.06, "hspace": 0.06}
    )
    figure.subplots_adjust(0, 0, 1, 1)
    for row, image, drawn in zip(panels, grid.images, grid.views, strict=True):
        for panel in row:
            panel.set_axis_off()
        for panel, shown in zip([row[0], *row[2:]], [image, *drawn], strict=True):
            pixels = shown.transpose(1, 2, 0)
            panel.imshow(pixels.repeat(3, axis=2) if pixels.shape[2] == 1 else pixels, interpolation="nearest")
    alt = f"{count} candidate images, one per row, and right of each {views} views of it."
    return Drawing(figure, "Images and the views that the encoder receives", alt, photographs=True)
