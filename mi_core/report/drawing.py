"""What all figures of a report share: size, colours, axes, and how they become PNG.

Colours are those of Okabe and Ito, told apart by every common kind of colour vision; line styles repeat what colours
say.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, NullFormatter

from mi_core.records import FloatArray
from mi_core.report.numbers import rate

DPI = 220
WIDTH, HEIGHT = 4.8, 3.7  # inches; shown at about half its pixels
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")
MARKERS = "osD^vP*"
MEMBER, NONMEMBER, GREY = "#D55E00", "#0072B2", "#6b6b6b"
DASHED = (0, (4, 3))
BLACK = COLOURS.index("#000000")


@dataclass(frozen=True)
class Drawing:
    """One figure: the PNG, a title, and a text that says to those who cannot see it what it shows.

    Args:
        png: the image; title, alt: the words.
        photographs: it shows images of the data, whose colours must stay as they are in the dark.
    """

    png: bytes
    title: str
    alt: str
    photographs: bool = False


def blank(height: float = HEIGHT, rows: int = 1) -> tuple[Figure, list[Any]]:
    """An empty figure of one column of panels."""
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained", facecolor="white")
    axes = figure.subplots(rows, 1, sharex=rows > 1, squeeze=False)[:, 0].tolist()
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.tick_params(labelsize=8.5, colors="#222222")
    return figure, axes


def label_axes(panel: Any, x: str, y: str, *, legend_inside: bool = False) -> None:
    """Name the axes; the legend stands above the panel, or in its lower right where nothing can be drawn."""
    panel.set_xlabel(x, fontsize=9.5)
    panel.set_ylabel(y, fontsize=9.5)
    above = {"loc": "lower left", "bbox_to_anchor": (-0.1, 1.0), "ncols": 2, "frameon": False, "borderaxespad": 0.1}
    place = {"loc": "lower right", "framealpha": 0.9, "edgecolor": "#cccccc"} if legend_inside else above
    panel.legend(**place, fontsize=7.8, handlelength=2.6, columnspacing=1.2)


def png(figure: Figure) -> bytes:
    """The figure as PNG, the same bytes for the same content.

    No text is read as a formula: names of encoders, classes and attributes are the user's and may hold dollar signs.
    """
    buffer = io.BytesIO()
    with rc_context({"text.parse_math": False}):  # of what is made while drawing, such as ticks
        for text in figure.findobj(Text):
            text.set_parse_math(False)
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def log_scale(axis: Any) -> None:
    """Logarithmic, with plain numbers at its ticks."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def band(panel: Any, points: Sequence[tuple[float, Mapping[str, Any]]], name: str, index: int) -> None:
    """A line through estimates with their intervals as a band; ``index`` picks colour and style."""
    places = [place for place, _ in points]
    low, high = zip(*(entry["ci95"] for _, entry in points), strict=True)
    panel.fill_between(places, low, high, color=COLOURS[index % len(COLOURS)], alpha=0.15, linewidth=0)
    values = [entry["value"] for _, entry in points]
    panel.plot(places, values, linewidth=1.6, marker="o", markersize=3.5, label=name, **look(index))


def spread(panel: Any, x: FloatArray, curves: FloatArray, colour: str, label: str, **style: Any) -> FloatArray:
    """Curves (S, X) of seeds as thin lines, where there are several, and their mean (X,), which is returned, thick."""
    for curve in curves if len(curves) > 1 else ():
        panel.plot(x, curve, linewidth=0.7, alpha=0.45, color=colour)
    mean: FloatArray = curves.mean(axis=0)
    panel.plot(x, mean, color=colour, label=label, **style)
    return mean


def level(panel: Any, height: float = 0.5, label: str = "guessing") -> None:
    """A dashed line across the panel: what guessing gives."""
    panel.axhline(height, color=GREY, linewidth=0.9, linestyle=DASHED, label=label or None)


def look(index: int, *, marker: bool = False) -> dict[str, Any]:
    """Colour, line style and, where asked for, marker of a series."""
    style = {"color": COLOURS[index % len(COLOURS)], "linestyle": STYLES[index % len(STYLES)]}
    return style | ({"marker": MARKERS[index % len(MARKERS)]} if marker else {})


def errors(panel: Any, places: Sequence[float], entries: Sequence[Mapping[str, Any]], **style: Any) -> None:
    """Estimates with their intervals as error bars."""
    shown = {"capsize": 2, "markersize": 4.5, "linewidth": 1.2, "elinewidth": 0.9} | style
    panel.errorbar(places, [entry["value"] for entry in entries], yerr=spans(entries), **shown)


def abreast(
    panel: Any, ticks: Sequence[str], series: Mapping[str, Sequence[tuple[int, Mapping[str, Any]]]], **labels: Any
) -> str:
    """Estimates of several series side by side at every tick, and the same in words.

    Args:
        panel: of a figure.
        ticks: what stands below.
        series: by name, the number of a tick and what is measured there.
        labels: how the ticks' labels look.
    """
    step = 0.8 / max(1, len(series))
    for index, (name, found) in enumerate(series.items()):
        places = [number + (index - (len(series) - 1) / 2) * step for number, _ in found]
        style = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
        errors(panel, places, [entry for _, entry in found], label=name, linestyle="", **style)
    panel.set_xticks(range(len(ticks)), ticks, **labels)
    return "; ".join(
        f"{name} {', '.join(rate(entry['value']) for _, entry in found)}" for name, found in series.items()
    )


def spans(estimates: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """How far the intervals of estimates reach below and above them, for error bars."""
    return [
        [max(0.0, entry["value"] - entry["ci95"][0]) for entry in estimates],
        [max(0.0, entry["ci95"][1] - entry["value"]) for entry in estimates],
    ]


def file_name(name: str) -> str:
    """A name fit for a file."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)
