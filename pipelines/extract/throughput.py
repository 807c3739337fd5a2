"""Count the work and the time of an extraction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.extract.actor.telemetry import STEPS


@dataclass
class Throughput:
    """Counts and seconds of an extraction, summed over actors.

    ``images`` counts an image for every encoder that it was shown to; ``decodes`` counts how often one was decoded.
    ``builds`` counts how often an actor loaded an encoder: the number of actors times that of encoders, at best.
    ``steady`` is the rate in images per second while all actors work: the sum of their rates, each from its first
    chunk on, until the first actor has nothing left. ``started`` is the seconds until all have committed a chunk.
    Both are 0 where an actor had fewer than three chunks.
    """

    images: int = 0
    views: int = 0
    rejected: int = 0
    builds: int = 0
    decodes: int = 0
    wall: float = 0.0
    decode: float = 0.0
    augment: float = 0.0
    forward: float = 0.0
    features: float = 0.0
    commit: float = 0.0
    started: float = 0.0
    steady: float = 0.0

    def add(self, receipt: Mapping[str, Any]) -> None:
        """Count one committed chunk of one job."""
        self.images += receipt["rows"]
        self.rejected += receipt["rejected"]
        self.views += receipt["queries"]
        self.builds += receipt["builds"]
        self.decodes += receipt["decodes"]
        for name in STEPS:
            setattr(self, name, getattr(self, name) + receipt[name])


def steady_rate(came: Sequence[Sequence[tuple[float, int]]]) -> tuple[float, float]:
    """The time at which every actor had committed a chunk, and the images per second after it.

    Args:
        came: per actor (second, images) of the chunks it committed.

    Example:
        >>> steady_rate([[(2.0, 10), (3.0, 10), (4.0, 10)], [(5.0, 10), (5.5, 10), (6.0, 10), (9.0, 10)]])
        (5.0, 0.0)
        >>> steady_rate([[(2.0, 10), (3.0, 10), (4.0, 10)], [(2.5, 10), (3.0, 10), (3.5, 10), (9.0, 10)]])
        (2.5, 30.0)
    """
    started, end = max(chunks[0][0] for chunks in came), min(chunks[-1][0] for chunks in came)
    rate = 0.0
    for chunks in map(sorted, came):
        inside = [(second, count) for second, count in chunks if second <= end]
        if len(inside) < 3:
            return round(started, 3), 0.0
        rate += sum(count for _, count in inside[1:]) / (inside[-1][0] - inside[0][0])
    return round(started, 3), round(rate, 2)
