"""What the figures of a report share: the arrays that report.json does not hold, size, colours, axes, and SVG.

Colours are those of Okabe and Ito, told apart by every common kind of colour vision; line styles repeat what colours
say.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import fill
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, NullFormatter

from mi_core.checks import ShapeError, check_finite, check_shape
from mi_core.records import BoolArray, Estimate, FloatArray
from mi_core.report.words.numbers import count, plain, rate

DPI = 220
WIDTH, HEIGHT = 3.9, 3.1  # inches; so wide that a phone shows letters of ten pixels
LEGEND = 8  # points
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")
MARKERS = "osD^vP*"
MEMBER, NONMEMBER, GREY = "#D55E00", "#0072B2", "#6b6b6b"
DASHED = (0, (4, 3))
BLACK = COLOURS.index("#000000")
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_HALF = 25  # letters that fit into half a legend
_INSIDE = 36  # letters that fit into a panel
_LETTERS = 52  # of a line of a legend
_LINES, _LINE = 4, 0.19  # lines of a legend that fit above a panel, and the inches of each further one


@dataclass(frozen=True)
class Drawing:
    """One figure with a title, and a text that says to those who cannot see it what it shows.

    Args:
        photographs: it shows images of the data, whose colours must stay as they are in the dark.
    """

    figure: Figure
    title: str
    alt: str
    photographs: bool = False

    @property
    def suffix(self) -> str:
        """Of a file with the image."""
        return ".png" if self.photographs else ".svg"

    @cached_property
    def image(self) -> bytes:
        """SVG, or PNG of photographs: the same bytes for the same content."""
        return saved(self.figure, format="png", metadata={"Software": None}) if self.photographs else svg(self.figure)

    @property
    def pdf(self) -> bytes:
        """The same as PDF."""
        return saved(self.figure, format="pdf", metadata={"CreationDate": None})

    def points(self) -> Iterator[tuple[int, str, float, float]]:
        """What is drawn: panel from 0 on, series, x and y; of a bar its left end and height."""
        for number, panel in enumerate(self.figure.axes):
            drawn: list[tuple[Any, Any]] = [(line, line.get_xydata()) for line in panel.lines]
            drawn += [(bar, [(bar.get_x(), bar.get_height())]) for bar in panel.patches if isinstance(bar, Rectangle)]
            drawn += [(area, area.get_xy()) for area in panel.patches if isinstance(area, Polygon)]
            for many in panel.collections:
                places = np.asarray(many.get_offsets() if isinstance(many, PathCollection) else ())
                drawn += [(many, path.vertices) for path in many.get_paths()] if not len(places) else [(many, places)]
            names = {bar: bars for bars in panel.containers for bar in bars.get_children()}
            for place, (artist, points) in enumerate(drawn):
                whole = names.get(artist, artist)
                labels = [str(one.get_label()) for one in (whole, *getattr(whole, "patches", ())[:1])]
                name = next((label for label in labels if not label.startswith("_")), f"unnamed {place}")
                yield from ((number, name, float(x), float(y)) for x, y in points)


def blank(height: float = HEIGHT, rows: int = 1) -> tuple[Figure, list[Any]]:
    """An empty figure of one column of panels."""
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained", facecolor="white")
    axes = figure.subplots(rows, 1, sharex=rows > 1, squeeze=False)[:, 0].tolist()
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.tick_params(labelsize=8.8, colors="#222222")
        panel.ticklabel_format(style="plain", useOffset=False)
    return figure, axes


def label_axes(panel: Any, x: str, y: str, *, legend_inside: bool = False) -> None:
    """Name the axes; the legend stands above the panel, or where its names are short in the empty lower right.

    Long names go on in a second line, and a figure grows with a legend of many lines above it.
    """
    panel.set_xlabel(x, fontsize=9.5)
    panel.set_ylabel(y, fontsize=9.5)
    handles, names = panel.get_legend_handles_labels()
    longest = max(map(len, names), default=0)
    names = [fill(name, _LETTERS) for name in names]
    columns = 2 if longest <= _HALF else 1
    above = {
        "loc": "lower left",
        "bbox_to_anchor": (-0.1, 1.0),
        "ncols": columns,
        "frameon": False,
        "borderaxespad": 0.1,
    }
    inside = {"loc": "lower right", "framealpha": 0.9, "edgecolor": "#cccccc"}
    place = inside if legend_inside and longest <= _INSIDE else above
    if place is above:
        figure = panel.figure
        lines = math.ceil(sum(name.count("\n") + 1 for name in names) / columns)
        figure.set_figheight(figure.get_figheight() + _LINE * max(0, lines - _LINES))
    panel.legend(handles, names, **place, fontsize=LEGEND, handlelength=2.2, columnspacing=1)


def svg(figure: Figure) -> bytes:
    """The figure as SVG, the same bytes for the same content."""
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    drawn = saved(figure, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = ElementTree.fromstring(drawn)
    for definitions in root.findall(f"{{{_SVG}}}defs"):  # a style sheet, which would hold for the whole page
        root.remove(definitions)
    root.set("style", "stroke-linejoin: round; stroke-linecap: butt")
    for side in ("width", "height"):  # the page has its own
        del root.attrib[side]
    for group in root.iter(f"{{{_SVG}}}g"):
        group.attrib.pop("id", None)
    return ElementTree.tostring(root)


def saved(figure: Figure, **settings: Any) -> bytes:
    """A figure as a file.

    No text is read as a formula: names of encoders, classes and attributes are the user's and may hold dollar signs.
    """
    buffer = io.BytesIO()
    drawing = {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "encoder-audit"}
    with rc_context(drawing):  # of what is made while drawing, such as ticks
        for text in (one for part in figure.get_children() if getattr(part, "axison", 1) for one in part.findobj(Text)):
            text.set_parse_math(False)
        figure.savefig(buffer, **settings)
    return buffer.getvalue()


def log_scale(axis: Any) -> None:
    """Logarithmic, with plain numbers at its ticks."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value, 10)))
    axis.set_minor_formatter(NullFormatter())


def band(panel: Any, points: Sequence[tuple[float, Any]], name: str, index: int) -> None:
    """A line through estimates with their intervals as a band; ``index`` picks colour and style."""
    places = [place for place, _ in points]
    low, high = zip(*(entry.ci95 for _, entry in points), strict=True)
    panel.fill_between(places, low, high, color=COLOURS[index % len(COLOURS)], alpha=0.15, linewidth=0)
    values = [entry.value for _, entry in points]
    panel.plot(places, values, linewidth=1.6, marker="o", markersize=3.5, label=name, **look(index))


def two_groups(panel: Any, edges: FloatArray, inside: tuple[str, FloatArray], outside: tuple[str, FloatArray]) -> None:
    """Histograms of two groups by their names, in percent of each: the first as an area, the second as a line."""
    looks = ({"color": MEMBER, "alpha": 0.55}, {"color": NONMEMBER, "histtype": "step", "linewidth": 1.6})
    for (name, values), drawn in zip((inside, outside), looks, strict=True):
        weights, label = np.full(len(values), 100 / len(values)), f"{name} (n {count(len(values))})"
        panel.hist(values, bins=edges, weights=weights, label=label, **drawn)


def level(panel: Any, height: float = 0.5, label: str = "guessing") -> None:
    """A dashed line across the panel: what guessing gives."""
    panel.axhline(height, color=GREY, linewidth=0.9, linestyle=DASHED, label=label or None)


def look(index: int, *, marker: bool = False) -> dict[str, Any]:
    """Colour, line style and, where asked for, marker of a series."""
    style = {"color": COLOURS[index % len(COLOURS)], "linestyle": STYLES[index % len(STYLES)]}
    return style | ({"marker": MARKERS[index % len(MARKERS)]} if marker else {})


def errors(panel: Any, places: Sequence[float], entries: Sequence[Estimate], **style: Any) -> None:
    """Estimates with their intervals as error bars."""
    shown = {"capsize": 2, "markersize": 4.5, "linewidth": 1.2, "elinewidth": 0.9} | style
    pairs = [(max(0.0, entry.value - entry.low), max(0.0, entry.high - entry.value)) for entry in entries]
    panel.errorbar(places, [entry.value for entry in entries], yerr=[*zip(*pairs, strict=True)], **shown)


def abreast(
    panel: Any, ticks: Sequence[str], series: Mapping[str, Sequence[tuple[int, Estimate]]], **labels: Any
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
        style = look(index, marker=True) | {"linestyle": ""}
        errors(panel, places, [entry for _, entry in found], label=name, **style)
    panel.set_xticks(range(len(ticks)), ticks, **labels)
    return "; ".join(f"{name} {', '.join(rate(entry.value) for _, entry in found)}" for name, found in series.items())


def bands(
    panels: Sequence[Any],
    series: Mapping[str, Sequence[tuple[float, Any]]],
    shown: Mapping[str, Callable[[Any], Estimate | None]],
    x: str,
    *,
    guessed: Sequence[str],
) -> None:
    """Several estimates of rows, one panel below the other; the first has the legend.

    Args:
        panels: as many as are shown, or further ones for something else.
        series: by name, places and rows.
        shown: what is read of a row, by its name on the axis; guessed: those for which guessing gives .5.
        x: what stands below the last panel.
    """
    for panel, (y, read) in zip(panels, shown.items(), strict=False):
        for index, (name, points) in enumerate(series.items()):
            band(panel, [(place, read(row)) for place, row in points], name, index)
        if y in guessed:
            level(panel)
        label_axes(panel, x if panel is panels[-1] else "", y)
        if panel is not panels[0]:
            panel.get_legend().remove()


def file_name(name: str) -> str:
    """A name fit for a file."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)


@dataclass(frozen=True)
class AttackScores:
    """The scores of one attack on one seed's last checkpoint: what a ROC curve and a histogram are drawn from.

    Args:
        attack, target, output, seed: as in the attack's entry of report.json.
        reference: what the attack was fitted on: the name of the shadow encoder, or the entry's reference; and the
            entry's settings, where several entries differ by them only.
        score: (N,) float, higher = more likely a member.
        member: (N,) bool, the truth.
        threshold: the score from which on the attack says "member".
        statistic: (N,) the number that the attack reads, in its own unit, where it is one.

    Raises:
        ShapeError: scores and truth differ in length, or one class is empty.
        NumericError: a score is NaN or infinite.
    """

    attack: str
    target: str
    output: str
    reference: str
    seed: int
    score: FloatArray
    member: BoolArray
    threshold: float | None = None
    statistic: FloatArray | None = None

    def __post_init__(self) -> None:
        name = f"scores of {self.attack} on {self.target}, {self.output}, seed {self.seed}"
        (samples,) = check_shape(name, self.score, "N")
        check_shape(f"membership of the {name}", self.member, "N", N=samples)
        check_finite(name, self.score)
        if self.member.all() or not self.member.any():
            raise ShapeError(f"{name} need members and non-members, got {int(self.member.sum())} of {samples}")


@dataclass(frozen=True)
class LossCurve:
    """The pre-training loss (E,) of one encoder by epoch (E,)."""

    encoder: str
    seed: int
    epoch: FloatArray
    loss: FloatArray


@dataclass(frozen=True)
class EmbeddingMap:
    """Embeddings of N samples in the plane, with what the samples are.

    Args:
        target, output: whose embeddings; attribute: its name; names: of its values.
        points: (N, 2).
        task: (N,) class of the task, -1 where there is none; values: (N,) value of the attribute.
    """

    target: str
    output: str
    attribute: str
    points: FloatArray
    task: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]
    names: tuple[str, ...]


@dataclass(frozen=True)
class ViewGrid:
    """Some images (N, C, H, W) uint8, C 1 or 3, with their views (N, V, C, S, S)."""

    images: npt.NDArray[np.uint8]
    views: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FigureData:
    """All of them."""

    scores: tuple[AttackScores, ...] = ()
    losses: tuple[LossCurve, ...] = ()
    maps: tuple[EmbeddingMap, ...] = ()
    views: ViewGrid | None = None
