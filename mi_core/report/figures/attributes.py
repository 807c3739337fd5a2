"""Attribute inference in a report: the rows it shows, and figures beside what guessing gives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from textwrap import fill

import numpy as np

from mi_core.records import FloatArray
from mi_core.report.contents import final_inferences, is_numeric, places_of
from mi_core.report.figures.data import EmbeddingMap
from mi_core.report.figures.drawing import COLOURS, GREY, Drawing, band, blank, file_name, label_axes, level, svg
from mi_core.report.model.attacks import InferenceRow, Sweep
from mi_core.report.model.report import Report
from mi_core.report.pooling import grouped
from mi_core.report.words.numbers import count, rate

_MOST_COLOURS = 20
_LETTERS = 66  # of a figure's width


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
        series = _series(sweep)
        if series:
            drawings[file_name(f"attributes-sweep-{sweep.name}")] = _sweep(sweep, series)
    for one in maps:
        drawings[file_name(f"attributes-map-{one.target}-{one.output}-{one.attribute}")] = _map(one)
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
    return list(_series(sweep)), by_point


def _name(row: InferenceRow, sweep: Sweep) -> str:
    """How a row is called beside the others of its point: without the setting that the sweep changes."""
    swept = re.escape(sweep.name.rpartition(".")[2])
    settings = re.sub(rf"(^|, ){swept} = [^,]*", "", row.settings or "").removeprefix(", ")
    return called(replace(row, settings=settings))


def _accuracies(rows: Sequence[InferenceRow]) -> Drawing:
    figure, (panel,) = blank(height=1.0 + 0.55 * len(rows))
    places = np.arange(len(rows))[::-1]
    for name, colour in (("accuracy", COLOURS[0]), ("majority", GREY)):
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
    return Drawing(svg(figure), "Attributes inferred from embeddings", f"Accuracies: {'; '.join(told)}.")


_Series = dict[str, list[tuple[float, InferenceRow]]]


def _series(sweep: Sweep) -> _Series:
    """Names of attribute and encoder to (place, row), where the sweep changes the inference."""
    every = [
        (place, row)
        for place, point in zip(places_of(sweep), sweep.points, strict=True)
        for row in final_inferences(point.attribute_inference)
    ]
    series = grouped(every, lambda entry: _name(entry[1], sweep)).items()
    moved = {name: rows for name, rows in series if len({row.accuracy.value for _, row in rows}) > 1}
    return {name: sorted(rows, key=itemgetter(0)) for name, rows in moved.items()}


def _sweep(sweep: Sweep, series: _Series) -> Drawing:
    figure, (panel,) = blank(height=3.4)
    told = []
    for index, (name, rows) in enumerate(series.items()):
        band(panel, [(place, row.accuracy) for place, row in rows], name, index)
        first, last = rows[0][1].accuracy.value, rows[-1][1].accuracy.value
        told.append(f"{name} from {rate(first)} to {rate(last)}")
    guess = next(iter(series.values()))[-1][1].majority.value
    level(panel, guess, "most frequent value")
    x = sweep.name.replace("attribute_inference.*.", "")
    label_axes(panel, x, "accuracy of attribute inference")
    if not is_numeric(sweep):
        panel.set_xticks(range(len(sweep.points)), [point.label for point in sweep.points], rotation=20)
    return Drawing(svg(figure), f"Attribute inference, sweep of {x}", f"Over {x}, first to last: {'; '.join(told)}.")


def _map(one: EmbeddingMap) -> Drawing:
    figure, panels = blank(height=6.4, rows=2)
    for panel, numbers, title in (
        (panels[0], one.task, "by class of the task"),
        (panels[1], one.values, f"by {one.attribute}"),
    ):
        kinds = np.unique(numbers)
        for index, kind in enumerate(kinds[:_MOST_COLOURS]):
            here = numbers == kind
            name = one.names[kind] if panel is panels[1] else ("no class" if kind < 0 else f"class {kind}")
            marker = "osD^v"[index // len(COLOURS) % 5]
            style = {"color": COLOURS[index % len(COLOURS)], "s": 7, "linewidths": 0, "marker": marker}
            panel.scatter(*one.points[here].T, label=name, alpha=0.75, **style)
        panel.set_xticks([])
        panel.set_yticks([])
        label_axes(panel, title, "")
    title = f"Embeddings of {one.target}, {one.output} output"
    alt = f"t-SNE of {count(len(one.points))} embeddings, coloured by class of the task and by {one.attribute}."
    return Drawing(svg(figure), title, alt)
