"""What a report says of attribute inference: rows over seeds, and figures beside what guessing gives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
from sklearn.manifold import TSNE

from mi_core.records import FloatArray
from mi_core.report.contents import EmbeddingMap, Row, at_last_epoch, by_seed, pool_estimate
from mi_core.report.figures.drawing import COLOURS, GREY, Drawing, band, blank, file_name, label_axes, level, svg
from mi_core.report.words.numbers import count, rate

_IDENTITY = ("attribute", "target", "output", "settings", "epoch")
_MOST_COLOURS = 20
_LETTERS = 66  # of a figure's width


def plane(embeddings: FloatArray, seed: int) -> FloatArray:
    """Embeddings (N, D) in the plane (N, 2) by t-SNE (van der Maaten and Hinton, 2008), N at least 3."""
    given = np.asarray(embeddings, dtype=np.float32)
    perplexity = min(30.0, (len(given) - 1) / 3)
    found = TSNE(perplexity=perplexity, init="random", random_state=seed % 2**32).fit_transform(given)
    return np.asarray(found, dtype=np.float32)


def pool_inferences(entries: Iterable[Mapping[str, Any]]) -> list[Row]:
    """One row per attribute, target, output, settings and epoch: means over seeds, in the order of their first entry.

    Args:
        entries: with ``seed``, ``values``, ``n_auxiliary``, and the estimates ``accuracy``, ``majority`` and
            ``auxiliary_accuracy``, which results of earlier versions lack; ``overlap`` of the attacked samples and
            ``auxiliary_overlap``, as `mi_core.metrics.pooled.pool`, default 0.
    """
    rows = []
    for found in by_seed(entries, _IDENTITY):
        row: Row = {name: found[0][name] for name in (*_IDENTITY, "values") if name in found[0]}
        row["seeds"] = [entry["seed"] for entry in found]
        row["n_auxiliary"] = sum(entry["n_auxiliary"] for entry in found)
        estimates = ("accuracy", "auxiliary_accuracy", "majority")
        there = [name for name in estimates if all(name in entry for entry in found)]
        for name in there:
            again = found[0].get("auxiliary_overlap" if name == "auxiliary_accuracy" else "overlap", 0.0)
            row[name] = pool_estimate([entry[name] for entry in found], overlap=again)
        rows.append(row)
    return rows


def final_inferences(rows: Iterable[Row]) -> list[Row]:
    """The rows of every encoder's last epoch."""
    return at_last_epoch(rows, _IDENTITY[:-1])


def attribute_figures(report: Mapping[str, Any], maps: Sequence[EmbeddingMap]) -> dict[str, Drawing]:
    """The figures of attribute inference.

    Args:
        report: the content of report.json.
        maps: embeddings in the plane.

    Returns:
        ``attributes-accuracy``, ``attributes-sweep-<name>`` and ``attributes-map-<target>-<output>-<attribute>``.
    """
    rows = final_inferences(report.get("attribute_inference", []))
    drawings = {"attributes-accuracy": _accuracies(rows)} if rows else {}
    for sweep in report.get("sweeps", []):
        series = _series(sweep)
        if series:
            drawings[file_name(f"attributes-sweep-{sweep['name']}")] = _sweep(sweep, series)
    for one in maps:
        drawings[file_name(f"attributes-map-{one.target}-{one.output}-{one.attribute}")] = _map(one)
    return drawings


def called(row: Row) -> str:
    """How tables and figures call what was inferred from what."""
    return ", ".join(filter(None, (f"{row['attribute']} from {row['target']}", row["output"], row.get("settings"))))


def swept_inferences(sweep: Row) -> tuple[list[str], list[tuple[str, dict[str, Row]]]]:
    """What a sweep changes of attribute inference: the names of the series, and by point (label, row by name)."""
    series = _series(sweep)
    found = [
        (point["label"], {_name(row, sweep): row for row in final_inferences(point.get("attribute_inference", []))})
        for point in sweep["points"]
    ]
    return list(series), found


def _name(row: Row, sweep: Row) -> str:
    """How a row is called beside the others of its point: without the setting that the sweep changes."""
    swept = re.escape(sweep["name"].rpartition(".")[2])
    settings = re.sub(rf"(^|, ){swept} = [^,]*", "", row.get("settings") or "").removeprefix(", ")
    return called({**row, "settings": settings})


def _accuracies(rows: Sequence[Row]) -> Drawing:
    figure, (panel,) = blank(height=1.0 + 0.55 * len(rows))
    places = np.arange(len(rows))[::-1]
    for name, colour in (("accuracy", COLOURS[0]), ("majority", GREY)):
        values = np.array([row[name]["value"] for row in rows])
        low, high = np.array([row[name]["ci95"] for row in rows]).T
        label = "attack" if name == "accuracy" else "most frequent value"
        style = {"fmt": "o" if name == "accuracy" else "|", "color": colour, "capsize": 2.5, "markersize": 5}
        panel.errorbar(values, places, xerr=[values - low, high - values], linewidth=1.2, label=label, **style)
    across = panel.get_yaxis_transform()
    for place, row in zip(places, rows, strict=True):
        panel.text(0, place + 0.14, fill(called(row), _LETTERS), transform=across, fontsize=7.5, va="bottom")
    panel.set_yticks([])
    panel.set_ylim(-0.4, len(rows) - 0.3)
    label_axes(panel, "accuracy of attribute inference", "")
    told = [
        f"{called(row)} {rate(row['accuracy']['value'])}, guessing {rate(row['majority']['value'])}" for row in rows
    ]
    return Drawing(svg(figure), "Attributes inferred from embeddings", f"Accuracies: {'; '.join(told)}.")


def _series(sweep: Row) -> dict[str, list[tuple[float, Row]]]:
    """What is inferred from which encoder to (place, row), where the sweep changes it."""
    points = sweep["points"]
    numeric = all("value" in point for point in points)
    found: dict[str, list[tuple[float, Row]]] = {}
    for number, point in enumerate(points):
        for row in final_inferences(point.get("attribute_inference", [])):
            found.setdefault(_name(row, sweep), []).append((point["value"] if numeric else float(number), row))
    return {
        name: sorted(rows, key=lambda entry: entry[0])
        for name, rows in found.items()
        if len({row["accuracy"]["value"] for _, row in rows}) > 1
    }


def _sweep(sweep: Row, series: Mapping[str, Sequence[tuple[float, Row]]]) -> Drawing:
    figure, (panel,) = blank(height=3.4)
    told = []
    for index, (name, rows) in enumerate(series.items()):
        band(panel, [(place, row["accuracy"]) for place, row in rows], name, index)
        first, last = rows[0][1]["accuracy"]["value"], rows[-1][1]["accuracy"]["value"]
        told.append(f"{name} from {rate(first)} to {rate(last)}")
    guess = next(iter(series.values()))[-1][1]["majority"]["value"]
    level(panel, guess, "most frequent value")
    x = sweep["name"].replace("attribute_inference.*.", "")
    label_axes(panel, x, "accuracy of attribute inference")
    if not all("value" in point for point in sweep["points"]):
        panel.set_xticks(range(len(sweep["points"])), [point["label"] for point in sweep["points"]], rotation=20)
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
