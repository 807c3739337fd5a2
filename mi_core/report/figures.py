"""The figures of a report, as PNG: ROC curves, score histograms, training loss, early stopping.

ROC curves stand on logarithmic axes, because an attack that is sure about few images matters more than one that is
right a little more often than not (Carlini et al., "Membership inference attacks from first principles", IEEE S&P
2022, section III). Colours are those of Okabe and Ito, told apart by every common kind of colour vision; line
styles repeat what colours say.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from sklearn.metrics import roc_curve

from mi_core.records import FloatArray
from mi_core.report.contents import AttackScores, FigureData, Row, pooled_rows, primary_row, series_names
from mi_core.report.numbers import count, percent, rate
from mi_core.report.wording import probe

DPI = 220
_WIDTH, _HEIGHT = 4.8, 3.7  # inches; shown at about half its pixels
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":")
_MEMBER, _NONMEMBER, _GREY = "#D55E00", "#0072B2", "#6b6b6b"
_BLACK = _COLOURS.index("#000000")


@dataclass(frozen=True)
class Drawing:
    """One figure: the PNG, a title, and a text that says to those who cannot see it what it shows."""

    png: bytes
    title: str
    alt: str


def draw_figures(report: Mapping[str, Any], data: FigureData) -> dict[str, Drawing]:
    """Draw every figure the report has data for.

    Args:
        report: the content of report.json.
        data: scores and losses that report.json does not hold.

    Returns:
        File name without suffix -> figure: ``roc-<output>`` and ``scores-<output>-<attack>`` (with ``-<target>``
        where the target is not called "target"), ``loss``, and, from two checkpoints on, ``early-stopping``.
    """
    drawings: dict[str, Drawing] = {}
    names = series_names((run.attack, run.reference) for run in data.scores)
    colours = {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(names.values())}
    for target, output in _distinct((run.target, run.output) for run in data.scores):
        where = output if target == "target" else f"{output}-{target}"
        series: dict[str, list[AttackScores]] = {}
        for run in data.scores:
            if (run.target, run.output) == (target, output):
                series.setdefault(names[run.attack, run.reference], []).append(run)
        drawings[_file_name(f"roc-{where}")] = _roc(series, colours)
        for name, runs in series.items():
            drawings[_file_name(f"scores-{where}-{name}")] = _histogram(name, runs)
    if data.losses:
        drawings["loss"] = _loss(data)
    rows = _curve_rows(report)
    if rows:
        drawings["early-stopping"] = _early_stopping(report, rows)
    return drawings


def _distinct(items: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(items))


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)


def _figure(height: float = _HEIGHT, rows: int = 1) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(_WIDTH, height), dpi=DPI, layout="constrained", facecolor="white")
    axes = figure.subplots(rows, 1, sharex=rows > 1, squeeze=False)[:, 0].tolist()
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.tick_params(labelsize=8.5, colors="#222222")
    return figure, axes


def _label(panel: Any, x: str, y: str, *, legend_inside: bool = False) -> None:
    """Name the axes; the legend stands above the panel, or in its lower right where nothing can be drawn."""
    panel.set_xlabel(x, fontsize=9.5)
    panel.set_ylabel(y, fontsize=9.5)
    above = {"loc": "lower left", "bbox_to_anchor": (-0.1, 1.0), "ncols": 2, "frameon": False, "borderaxespad": 0.1}
    place = {"loc": "lower right", "framealpha": 0.9, "edgecolor": "#cccccc"} if legend_inside else above
    panel.legend(**place, fontsize=7.8, handlelength=2.6, columnspacing=1.2)


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _sizes(runs: Sequence[AttackScores]) -> tuple[int, int]:
    members = sum(int(run.member.sum()) for run in runs)
    return members, sum(len(run.member) for run in runs) - members


def _seeds(runs: Sequence[Any]) -> str:
    seeds = len({run.seed for run in runs})
    return "one seed" if seeds == 1 else f"{seeds} seeds"


def _rate_at(run: AttackScores, grid: FloatArray) -> FloatArray:
    """(G,) true-positive rate of one run at false-positive rates of at most ``grid`` (G,)."""
    fpr, tpr, _ = roc_curve(run.member, run.score, drop_intermediate=False)
    rates: FloatArray = tpr[np.searchsorted(fpr, grid, side="right") - 1]
    return rates


def _roc(series: Mapping[str, Sequence[AttackScores]], colours: Mapping[str, str]) -> Drawing:
    figure, (panel,) = _figure()
    every = [run for runs in series.values() for run in runs]
    nonmembers_of = [int((~run.member).sum()) for run in every]
    floor, fewest = min(0.5, 1 / max(nonmembers_of)), min(nonmembers_of)
    grid = np.geomspace(floor, 1, 400)
    limit = min(1.0, 10 / fewest)  # left of it a threshold rests on fewer than 10 false positives
    panel.axvspan(floor, limit, color="#ececec", zorder=0, linewidth=0)
    note = {"fontsize": 7, "color": _GREY, "rotation": 90, "ha": "right", "va": "bottom"}
    panel.text(limit * 0.95, floor * 1.2, "fewer than 10\nfalse positives", **note)
    panel.plot(grid, grid, color=_GREY, linewidth=0.9, linestyle=(0, (4, 3)), label="guessing")
    told = []
    for index, (attack, mine) in enumerate(series.items()):
        curves = np.stack([_rate_at(run, grid) for run in mine])
        members, nonmembers = _sizes(mine)
        style = {"color": colours[attack], "linestyle": _STYLES[index % len(_STYLES)]}
        for curve in curves if len(mine) > 1 else ():
            panel.plot(grid, np.where(curve > 0, curve, np.nan), linewidth=0.7, alpha=0.45, color=colours[attack])
        mean = curves.mean(axis=0)
        label = f"{attack} (n {count(members)} + {count(nonmembers)})"
        panel.plot(grid, np.where(mean > 0, mean, np.nan), linewidth=2, label=label, **style)
        told.append(f"{attack} {rate(float(mean[np.searchsorted(grid, 0.01)]))}")
    panel.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1.05))
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: percent(value)))
        axis.set_minor_formatter(NullFormatter())
    _label(panel, "false-positive rate", "true-positive rate", legend_inside=True)
    title = f"ROC on the {every[0].output} output of {every[0].target}, {_seeds(every)}"
    lines = "thick: mean, thin: each seed" if len({run.seed for run in every}) > 1 else "one curve per attack"
    alt = f"ROC curves on logarithmic axes ({lines}). True-positive rate near 1 % false positives: {', '.join(told)}."
    return Drawing(_png(figure), title, alt)


def _histogram(name: str, runs: Sequence[AttackScores]) -> Drawing:
    figure, (panel,) = _figure(height=2.6)
    score = np.concatenate([run.score for run in runs]).astype(np.float64)
    member = np.concatenate([run.member for run in runs])
    low, high = np.quantile(score, [0.001, 0.999])
    shown = np.clip(score, low, high)  # the outermost bins collect the tails
    edges = np.histogram_bin_edges(shown, bins=40)
    for side, who, colour, drawn in (
        (member, "members", _MEMBER, {"alpha": 0.55}),
        (~member, "non-members", _NONMEMBER, {"histtype": "step", "linewidth": 1.6}),
    ):
        weights = np.full(int(side.sum()), 100 / side.sum())
        label = f"{who} (n {count(int(side.sum()))})"
        panel.hist(shown[side], bins=edges, weights=weights, color=colour, label=label, **drawn)
    for index, threshold in enumerate(run.threshold for run in runs if run.threshold is not None):
        named = {"label": "threshold of each seed" if len(runs) > 1 else "threshold"} if index == 0 else {}
        panel.axvline(threshold, color="#222222", linewidth=0.9, linestyle=(0, (4, 3)), **named)
    _label(panel, "score (higher = more likely a member)", "share of images (%)")
    title = f"Scores of {name} on the {runs[0].output} output of {runs[0].target}, {_seeds(runs)}"
    medians = f"{np.median(score[member]):.3g} for members and {np.median(score[~member]):.3g} for non-members"
    return Drawing(_png(figure), title, f"Histogram of scores. The median is {medians}; outer bins collect the tails.")


def _loss(data: FigureData) -> Drawing:
    figure, (panel,) = _figure(height=2.6)
    told = []
    for index, encoder in enumerate(_distinct(curve.encoder for curve in data.losses)):
        mine = [curve for curve in data.losses if curve.encoder == encoder]
        style = {"color": _COLOURS[index % len(_COLOURS)], "linestyle": _STYLES[index % len(_STYLES)]}
        for number, curve in enumerate(mine):
            label = f"{encoder} ({_seeds(mine)})" if number == 0 else None
            panel.plot(curve.epoch, curve.loss, linewidth=1.2, alpha=0.8, label=label, **style)
        told.append(f"{encoder} ends at {np.mean([curve.loss[-1] for curve in mine]):.3g}")
    _label(panel, "epoch", "pre-training loss")
    alt = f"Pre-training loss against the epoch: {', '.join(told)}."
    return Drawing(_png(figure), f"Pre-training loss, {_seeds(data.losses)}", alt)


def _curve_rows(report: Mapping[str, Any]) -> list[Row]:
    """The rows with an epoch on the primary attack's target and output, if they span at least two epochs."""
    rows = [row for row in pooled_rows(report) if "epoch" in row]
    if not rows:
        return []
    lead = primary_row(rows) or rows[0]
    rows = [row for row in rows if (row["target"], row["output"]) == (lead["target"], lead["output"])]
    return rows if len({row["epoch"] for row in rows}) > 1 else []


def _early_stopping(report: Mapping[str, Any], rows: Sequence[Row]) -> Drawing:
    target, output = rows[0]["target"], rows[0]["output"]
    utility = report.get("encoders", {}).get(target, {}).get("curve", [])
    figure, panels = _figure(height=4.6 if utility else 2.6, rows=2 if utility else 1)
    told = []
    pairs = series_names(_series(row) for row in rows)
    lead = primary_row(rows)
    for index, (pair, name) in enumerate(pairs.items()):
        mine = sorted((row for row in rows if _series(row) == pair), key=lambda row: row["epoch"])
        size = f"(n {count(mine[-1]['auc']['n'])})"
        _band(panels[0], [(row["epoch"], row["auc"]) for row in mine], f"{name} {size}", index)
        if lead is not None and _series(lead) == pair:
            accuracy = [(row["epoch"], row["accuracy"]) for row in mine]
            _band(panels[0], accuracy, f"accuracy of {name}", _BLACK)
        told.append(f"{name} from {rate(mine[0]['auc']['value'])} to {rate(mine[-1]['auc']['value'])}")
    panels[0].axhline(0.5, color=_GREY, linewidth=0.9, linestyle=(0, (4, 3)), label="guessing")
    _label(panels[0], "" if utility else "epoch", "attack AUC and accuracy")
    names = [name for name in (utility[0]["utility"] if utility else ()) if name not in ("n", "ci95")]
    for index, name in enumerate(names):
        points = [(at["epoch"], _utility_estimate(at["utility"], name)) for at in utility]
        _band(panels[1], points, f"{probe(name)} (n {count(points[-1][1]['n'])})", index + 4)
    if utility:
        _label(panels[1], "epoch", "downstream accuracy")
    epochs = sorted({row["epoch"] for row in rows})
    if len(epochs) <= 8:  # more would run into each other
        panels[-1].set_xticks(epochs)
    alt = f"Attack AUC on the {output} output against the epoch, first to last checkpoint: {', '.join(told)}."
    return Drawing(_png(figure), f"Stopping earlier: attack and utility of {target} by epoch, {output} output", alt)


def _series(row: Row) -> tuple[str, str]:
    return row["attack"], row["shadow"] if "shadow" in row else row["reference"]


def _utility_estimate(utility: Mapping[str, Any], name: str) -> Row:
    return {"value": utility[name], "ci95": utility["ci95"][name], "n": utility["n"]}


def _band(panel: Any, points: Sequence[tuple[int, Mapping[str, Any]]], label: str, index: int) -> None:
    epochs = [epoch for epoch, _ in points]
    colour = _COLOURS[index % len(_COLOURS)]
    low, high = zip(*(entry["ci95"] for _, entry in points), strict=True)
    panel.fill_between(epochs, low, high, color=colour, alpha=0.15, linewidth=0)
    style = {"color": colour, "linestyle": _STYLES[index % len(_STYLES)], "marker": "o", "markersize": 3.5}
    panel.plot(epochs, [entry["value"] for _, entry in points], linewidth=1.6, label=label, **style)
