"""The versions of an encoder over time: the AUC of its audits, as the coordinates of a small chart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mi_core.report.runs import Entry
from mi_core.report.words.numbers import count, interval, rate

WIDTH, HEIGHT = 360, 150  # of the drawing, in its own units
_LEFT, _RIGHT, _TOP, _BOTTOM = 26, 10, 10, 18  # margins
_LABELS = 12  # names of versions below the axis, at most
_LOWEST = 0.4  # the axis starts here, or below where an interval does


@dataclass(frozen=True)
class Version:
    """One version of an encoder: those audits of it that found the same weights; more seeds make no other version.

    Args:
        number: from 1, by the date of its first audit.
        weights: fingerprint of the weights of the first seed, shortened.
        date: of its first audit.
    """

    number: int
    weights: str
    date: str


@dataclass(frozen=True)
class Point:
    """One audit in a chart: position of its AUC, ends of the interval, and what it is in words."""

    x: float
    y: float
    high: float
    low: float
    verdict: str
    words: str
    label: str


@dataclass(frozen=True)
class Chart:
    """The audits of one encoder.

    Args:
        family: the encoder, as `Entry` calls it.
        points: by date.
        lines: coordinates of a polyline for every set of points that compare: same images, same attack.
        ticks: (y, text) of the horizontal lines.
        versions: all of them, by number.
        words: what the chart shows.
    """

    family: str
    points: tuple[Point, ...]
    lines: tuple[str, ...]
    ticks: tuple[tuple[float, str], ...]
    versions: tuple[Version, ...]
    words: str


def versions_of(entries: Iterable[Entry]) -> dict[str, Version]:
    """The versions among the audits of one encoder, by fingerprint, in the order of their first audits."""
    found: dict[str, Version] = {}
    for entry in sorted(entries, key=lambda entry: entry.created):
        weights = entry.weights[0]
        if weights not in found:
            found[weights] = Version(len(found) + 1, weights[:12], f"{entry.created:%Y-%m-%d}")
    return found


def chart(entries: Sequence[Entry]) -> Chart | None:
    """The chart of one encoder's audits; None where fewer than two versions of it have an AUC."""
    shown = sorted((entry for entry in entries if entry.auc is not None), key=lambda entry: entry.created)
    if len({entry.weights[0] for entry in shown}) < 2:
        return None
    versions = versions_of(entries)
    lowest = min([_LOWEST, *(math.floor(10 * entry.auc.low) / 10 for entry in shown if entry.auc)])
    every = math.ceil(len(shown) / _LABELS)
    points = tuple(
        _point(entry, versions[entry.weights[0]], _x(place, len(shown)), lowest, labelled=place % every == 0)
        for place, entry in enumerate(shown)
    )
    lines: dict[object, list[str]] = {}
    for entry, point in zip(shown, points, strict=True):
        lines.setdefault((entry.images, entry.attack), []).append(f"{point.x:g},{point.y:g}")
    return Chart(
        entries[0].family,
        points,
        tuple(" ".join(line) for line in lines.values() if len(line) > 1),
        tuple((_y(value, lowest), rate(value, 1)) for value in (0.5, 1.0) if value > lowest),
        tuple(versions.values()),
        _words(shown, versions),
    )


def _x(place: int, n: int) -> float:
    return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (place + 0.5) / n, 1)


def _y(value: float, lowest: float) -> float:
    return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - value) / (1 - lowest), 1)


def _point(entry: Entry, version: Version, x: float, lowest: float, *, labelled: bool) -> Point:
    auc = entry.auc
    assert auc is not None
    words = (
        f"{entry.date}, version {version.number} ({version.weights}), {entry.name} in {entry.folder}: "
        f"{entry.answer.title}; AUC {rate(auc.value)} {interval([auc.low, auc.high])}, n {count(auc.n)}, {entry.attack}"
    )
    y, high, low = (_y(bound, lowest) for bound in (auc.value, auc.high, auc.low))
    return Point(x, y, high, low, entry.answer.verdict, words, f"v{version.number}" if labelled else "")


def _words(shown: Sequence[Entry], versions: dict[str, Version]) -> str:
    told = []
    for entry in (shown[0], shown[-1]):
        assert entry.auc is not None
        told.append(f"{rate(entry.auc.value)} in version {versions[entry.weights[0]].number}, {entry.created:%Y-%m-%d}")
    return f"AUC from {told[0]}, to {told[1]}. Newest verdict: {shown[-1].answer.title.lower()}."
