"""Figures that compare: targets, the points of a sweep, and attribute inference with what guessing gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter, itemgetter
from textwrap import fill
from typing import TypeVar

import numpy as np

from mi_core.records import Estimate, FloatArray
from mi_core.report.contents import final_inferences, final_rows, is_numeric, places_of, pooled_rows, primary_row
from mi_core.report.figures import drawing
from mi_core.report.figures.drawing import Drawing, EmbeddingMap, blank, label_axes, level
from mi_core.report.model.attacks import AttackQueries, InferenceRow, PooledRow, Sweep, SweepPoint
from mi_core.report.model.report import Report
from mi_core.report.pooling import grouped, series_names, series_of
from mi_core.report.words.numbers import count, rate
from mi_core.report.words.sentences import Sides, measured_by, say, share_found, sides_of

_LEAST_CHANGE = 1e-9
_MOST_COLOURS = 20
_LETTERS = 66  # of a figure's width
_Row = TypeVar("_Row", PooledRow, InferenceRow)


def comparison_figures(report: Report) -> dict[str, Drawing]:
    """Where an attack was tried on several targets: attack against target, and attack against utility.

    Args:
        report: the content of report.json.

    Returns:
        ``compare-targets`` and, where targets have a utility or are classifiers, ``compare-utility`` and
        ``compare-overfitting``; nothing for one target.
    """
    rows = final_rows(pooled_rows(report))
    lead = primary_row(rows) or (rows[0] if rows else None)
    rows = [row for row in rows if lead is not None and row.output == lead.output]
    targets = list(dict.fromkeys(row.target for row in rows))
    if len(targets) < 2:
        return {}
    drawings = {"compare-targets": _targets(rows, targets)}
    encoders = {name: report.encoders[name] for name in targets if name in report.encoders}
    utility = {name: encoder.utility.probes for name, encoder in encoders.items() if encoder.utility is not None}
    first = next(iter(next(iter(utility.values()), {})), None)
    if len(utility) > 1 and first:
        values = {name: probes[first].value for name, probes in utility.items()}
        x = f"downstream accuracy, {say('probe', first)}"
        drawings["compare-utility"] = _against(rows, values, x, "What a better encoder gives away", "utility")
    overfitted = {name: one.classifier.overfitting.value for name, one in encoders.items() if one.classifier}
    if len(overfitted) > 1:
        x, title = "overfitting level: training minus test accuracy", "What an overfitted classifier gives away"
        drawings["compare-overfitting"] = _against(rows, overfitted, x, title, "the overfitting level")
    return drawings


def _over_targets(rows: Sequence[PooledRow]) -> dict[str, list[PooledRow]]:
    """Rows by the name of their series over several targets, where the shadow of each target counts as the same."""
    names = series_names(series_of(replace(row, shadow=None)) for row in rows)
    return grouped(rows, lambda row: names[series_of(replace(row, shadow=None))])


def _targets(rows: Sequence[PooledRow], targets: Sequence[str]) -> Drawing:
    figure, (panel,) = blank()
    measure, measured = measured_by(rows)
    series = _over_targets(rows)
    places = {
        name: [(targets.index(row.target), getattr(row, measure)) for row in mine] for name, mine in series.items()
    }
    told = drawing.abreast(panel, targets, places)
    level(panel)
    label_axes(panel, "target", f"attack {measured}")
    title = f"Attacks by target, {rows[0].output} output"
    return Drawing(figure, title, f"Attack {measured} on {', '.join(targets)}: {told}.")


def _against(rows: Sequence[PooledRow], values: Mapping[str, float], x: str, title: str, order: str) -> Drawing:
    """Results of attacks against a number that each target has."""
    figure, (panel,) = blank()
    measure, measured = measured_by(rows)
    rows = [row for row in rows if row.target in values]
    told = []
    for index, (series, of_series) in enumerate(_over_targets(rows).items()):
        mine = sorted(of_series, key=lambda row: values[row.target])
        reached = [getattr(row, measure).value for row in mine]
        places = [values[row.target] for row in mine]
        panel.plot(places, reached, markersize=4.5, label=series, **drawing.look(index, marker=True))
        told.append(f"{series} {', '.join(rate(value) for value in reached)}")
    low, high = panel.get_ylim()
    for target, value in values.items():
        panel.annotate(target, (value, low), fontsize=7.5, color=drawing.GREY, rotation=90, va="bottom", ha="right")
    panel.set_ylim(low, high)
    label_axes(panel, x, f"attack {measured}")
    return Drawing(figure, title, f"Attack {measured}, targets in the order of {order}: {'; '.join(told)}.")


def sweep_figures(report: Report) -> dict[str, Drawing]:
    """One figure per sweep, with utility where that changes too; and one against queries where those differ: those
    asked for an audited image, else those spent to fit.

    Args:
        report: the content of report.json.

    Returns:
        ``sweep-<name>`` and ``queries-<name>``; a sweep in which nothing changed has none.
    """
    drawings: dict[str, Drawing] = {}
    lead = primary_row(pooled_rows(report))
    for sweep in report.sweeps:
        series = _series(sweep, lead.output if lead else None)
        if not series:
            continue
        drawings[drawing.file_name(f"sweep-{sweep.name}")] = _sweep(sweep, series, lead)
        for x in _SPENT:
            if any(len({_spent(row, x) for _, row in points}) > 1 for points in series.values()):
                drawn = _against_queries(sweep.name.replace("attacks.*.", ""), series, x, sides_of(report))
                drawings[drawing.file_name(f"queries-{sweep.name}")] = drawn
                break
    return drawings


_Series = Mapping[str, Sequence[tuple[float, PooledRow]]]


def _series(sweep: Sweep, output: str | None) -> _Series:
    """Places and rows of what the sweep changes on one output, by what figures call that."""
    every = _placed(sweep, lambda point: [row for row in point.rows if output in (None, row.output)])
    groups = grouped(every, lambda entry: (series_of(entry[1]), entry[1].target)).items()
    series = {key: rows for key, rows in groups if any(_changes(rows, name) for name in ("auc", "accuracy"))}
    names, targets = series_names(pair for pair, _ in series), {target for _, target in series}
    return {
        f"{names[pair]} on {target}" if len(targets) > 1 else names[pair]: rows
        for (pair, target), rows in series.items()
    }


def _placed(sweep: Sweep, rows_of: Callable[[SweepPoint], Iterable[_Row]]) -> list[tuple[float, _Row]]:
    """Rows of all points, each with the place of its point."""
    pairs = zip(places_of(sweep), sweep.points, strict=True)
    return [(place, row) for place, point in pairs for row in rows_of(point)]


def _changes(rows: Sequence[tuple[float, PooledRow]], name: str) -> bool:
    """Tell whether an estimate moves over the points."""
    values = [estimate.value for _, row in rows if (estimate := getattr(row, name)) is not None]
    return bool(values) and max(values) - min(values) > _LEAST_CHANGE


def _sweep(sweep: Sweep, series: _Series, lead: PooledRow | None) -> Drawing:
    points, places, x = sweep.points, places_of(sweep), sweep.name.replace("attacks.*.", "")
    utility = _utility_series(points, places, lead)
    _, measured = measured_by(row for rows in series.values() for _, row in rows)
    shown = {f"attack {name}": attrgetter(name.lower()) for name in dict.fromkeys((measured, "AUC"))}
    figure, panels = blank(height=1.9 + 1.5 * (len(shown) + bool(utility)), rows=len(shown) + bool(utility))
    ordered = {name: sorted(rows, key=itemgetter(0)) for name, rows in series.items()}
    drawing.bands(panels, ordered, shown, x, guessed=tuple(shown))
    told = []
    for name, rows in ordered.items():
        first, last = (" and ".join(rate(read(row).value) for read in shown.values()) for _, row in (rows[0], rows[-1]))
        told.append(f"{name} from {first} to {last}")
    for index, (name, entries) in enumerate(utility.items()):
        drawing.band(panels[-1], entries, name, index + 4)
    if utility:
        label_axes(panels[-1], x, "downstream accuracy")
    if not is_numeric(sweep):
        panels[-1].set_xticks(places, [point.label for point in points], rotation=20, ha="right")
    elif max(places) > 20 * max(1e-12, min(places)) > 0:
        drawing.log_scale(panels[-1].xaxis)
        panels[-1].set_xticks(places, [point.label for point in points])
        panels[-1].minorticks_off()
    what = " and ".join(dict.fromkeys((measured, "AUC")))
    return Drawing(figure, f"Sweep of {x}", f"Attack {what} over {x}, first to last: {'; '.join(told)}.")


def _utility_series(
    points: Sequence[SweepPoint], places: Sequence[float], lead: PooledRow | None
) -> dict[str, list[tuple[float, Estimate]]]:
    """Utility of the primary target by probe, where the sweep changes it."""
    series: dict[str, list[tuple[float, Estimate]]] = {}
    for place, point in zip(places, points, strict=True):
        utility = None if lead is None else point.utility.get(lead.target)
        for name, entry in ({} if utility is None else utility.probes).items():
            series.setdefault(f"{say('probe', name)} (n {count(entry.n)})", []).append((place, entry))
    return {name: rows for name, rows in series.items() if len({entry.value for _, entry in rows}) > 1}


_TO_FIT = "queries spent to fit the attack"
_SPENT: Mapping[str, Callable[[PooledRow, AttackQueries], float]] = {
    "queries per audited image, mean": lambda row, asked: asked.evaluation / (row.n_member + row.n_nonmember),
    _TO_FIT: lambda row, asked: asked.attack_training / len(row.seeds),
}


def _spent(row: PooledRow, what: str) -> float | None:
    return None if row.queries is None else _SPENT[what](row, row.queries)


def _against_queries(sweep: str, series: _Series, x: str, sides: Sides) -> Drawing:
    """Accuracy, AUC and the true-positive rate at 1 % FPR, where all have them, against what was spent."""
    everything = [row for points in series.values() for _, row in points]
    measure, measured = measured_by(everything)
    shown: dict[str, Callable[[PooledRow], Estimate | None]] = {"AUC": attrgetter("auc")}
    if measure == "accuracy":
        shown = {"attack accuracy": attrgetter(measure)} | shown
    guessed = tuple(shown)
    if all("0.01" in row.tpr_at_fpr for row in everything):
        shown[share_found("0.01", sides)] = lambda row: row.tpr_at_fpr["0.01"]
    figure, panels = blank(height=2.0 + 1.7 * len(shown), rows=len(shown))
    placed, told = {}, []
    for name, rows in series.items():
        mine = [(queries, row) for _, row in rows if (queries := _spent(row, x)) is not None]
        placed[name] = sorted(mine, key=itemgetter(0))
        ends = (placed[name][0], placed[name][-1])
        told.append(
            f"{name} from " + " to ".join(f"{rate(getattr(row, measure).value)} at {q:,.4g}" for q, row in ends)
        )
    drawing.bands(panels, placed, shown, x, guessed=guessed)
    if x == _TO_FIT:
        drawing.log_scale(panels[-1].xaxis)
    alt = f"Attack {measured} against {x}, fewest to most: {'; '.join(told)}."
    return Drawing(figure, f"What queries buy: sweep of {sweep}", alt)


def plane(embeddings: FloatArray, seed: int) -> FloatArray:
    """Embeddings (N, D) in the plane (N, 2) by t-SNE (van der Maaten and Hinton, 2008), N at least 3."""
    from sklearn.manifold import TSNE  # slow to load, and few reports need it

    given = np.asarray(embeddings, dtype=np.float32)
    perplexity = min(30.0, (len(given) - 1) / 3)
    found = TSNE(perplexity=perplexity, init="random", random_state=seed % 2**32).fit_transform(given)
    return np.asarray(found, dtype=np.float32)


def attribute_figures(report: Report, maps: Sequence[EmbeddingMap]) -> dict[str, Drawing]:
    """The figures of attribute inference.

    Args:
        report: the content of report.json.
        maps: embeddings in the plane.

    Returns:
        ``attributes-accuracy``, ``attributes-sweep-<name>`` and ``attributes-map-<target>-<output>-<attribute>``.
    """
    rows = final_inferences(report.attribute_inference)
    drawings = {"attributes-accuracy": _accuracies(rows)} if rows else {}
    for sweep in report.sweeps:
        series = _inferred(sweep)
        if series:
            drawings[drawing.file_name(f"attributes-sweep-{sweep.name}")] = _inferred_sweep(sweep, series)
    for one in maps:
        drawings[drawing.file_name(f"attributes-map-{one.target}-{one.output}-{one.attribute}")] = _map(one)
    return drawings


def called(row: InferenceRow) -> str:
    """How tables and figures call what was inferred from what."""
    return ", ".join(filter(None, (f"{row.attribute} from {row.target}", row.output, row.settings)))


def swept_inferences(sweep: Sweep) -> tuple[list[str], list[tuple[str, dict[str, InferenceRow]]]]:
    """Attribute inference over a sweep: the names of the series, and by point (label, row by name)."""
    by_point = [
        (point.label, {_name(row, sweep): row for row in final_inferences(point.attribute_inference)})
        for point in sweep.points
    ]
    return list(_inferred(sweep)), by_point


def _name(row: InferenceRow, sweep: Sweep) -> str:
    """How a row is called beside the others of its point: without the setting that the sweep changes."""
    swept = re.escape(sweep.name.rpartition(".")[2])
    settings = re.sub(rf"(^|, ){swept} = [^,]*", "", row.settings or "").removeprefix(", ")
    return called(replace(row, settings=settings))


def _accuracies(rows: Sequence[InferenceRow]) -> Drawing:
    figure, (panel,) = blank(height=1.0 + 0.55 * len(rows))
    places = np.arange(len(rows))[::-1]
    for name, colour in (("accuracy", drawing.COLOURS[0]), ("majority", drawing.GREY)):
        estimates = [getattr(row, name) for row in rows]
        values = np.array([estimate.value for estimate in estimates])
        low, high = np.array([estimate.ci95 for estimate in estimates]).T
        label = "attack" if name == "accuracy" else "most frequent value"
        style = {"fmt": "o" if name == "accuracy" else "|", "color": colour, "capsize": 2.5, "markersize": 5}
        panel.errorbar(values, places, xerr=[values - low, high - values], linewidth=1.2, label=label, **style)
    across = panel.get_yaxis_transform()
    for place, row in zip(places, rows, strict=True):
        panel.text(0, place + 0.14, fill(called(row), _LETTERS), transform=across, fontsize=7.5, va="bottom")
    panel.set_yticks([])
    panel.set_ylim(-0.4, len(rows) - 0.3)
    label_axes(panel, "accuracy of attribute inference", "")
    told = [f"{called(row)} {rate(row.accuracy.value)}, guessing {rate(row.majority.value)}" for row in rows]
    return Drawing(figure, "Attributes inferred from embeddings", f"Accuracies: {'; '.join(told)}.")


_Inferred = dict[str, list[tuple[float, InferenceRow]]]


def _inferred(sweep: Sweep) -> _Inferred:
    """Names of attribute and encoder to (place, row), where the sweep changes the inference."""
    every = _placed(sweep, lambda point: final_inferences(point.attribute_inference))
    series = grouped(every, lambda entry: _name(entry[1], sweep)).items()
    moved = {name: rows for name, rows in series if len({row.accuracy.value for _, row in rows}) > 1}
    return {name: sorted(rows, key=itemgetter(0)) for name, rows in moved.items()}


def _inferred_sweep(sweep: Sweep, series: _Inferred) -> Drawing:
    figure, (panel,) = blank(height=3.4)
    told = []
    for index, (name, rows) in enumerate(series.items()):
        drawing.band(panel, [(place, row.accuracy) for place, row in rows], name, index)
        first, last = rows[0][1].accuracy.value, rows[-1][1].accuracy.value
        told.append(f"{name} from {rate(first)} to {rate(last)}")
    level(panel, next(iter(series.values()))[-1][1].majority.value, "most frequent value")
    x = sweep.name.replace("attribute_inference.*.", "")
    label_axes(panel, x, "accuracy of attribute inference")
    if not is_numeric(sweep):
        panel.set_xticks(range(len(sweep.points)), [point.label for point in sweep.points], rotation=20)
    return Drawing(figure, f"Attribute inference, sweep of {x}", f"Over {x}, first to last: {'; '.join(told)}.")


def _map(one: EmbeddingMap) -> Drawing:
    figure, panels = blank(height=6.4, rows=2)
    for panel, numbers, title in (
        (panels[0], one.task, "by class of the task"),
        (panels[1], one.values, f"by {one.attribute}"),
    ):
        for index, kind in enumerate(np.unique(numbers)[:_MOST_COLOURS]):
            here = numbers == kind
            name = one.names[kind] if panel is panels[1] else ("no class" if kind < 0 else f"class {kind}")
            marker = "osD^v"[index // len(drawing.COLOURS) % 5]
            style = {"color": drawing.COLOURS[index % len(drawing.COLOURS)], "s": 7, "linewidths": 0, "marker": marker}
            panel.scatter(*one.points[here].T, label=name, alpha=0.75, **style)
        panel.set_xticks([])
        panel.set_yticks([])
        label_axes(panel, title, "")
    title = f"Embeddings of {one.target}, {one.output} output"
    alt = f"t-SNE of {count(len(one.points))} embeddings, coloured by class of the task and by {one.attribute}."
    return Drawing(figure, title, alt)
