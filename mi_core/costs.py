"""What work will cost, with its uncertainty: rates measured on a sample, counts exact or sampled, and their totals.

The uncertainty of a product follows the law of propagation of uncertainty for independent quantities, and its effective
degrees of freedom the Welch-Satterthwaite formula (JCGM 100:2008, "GUM", sections 5.1.2 and G.4).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from mi_core.checks import ConfigError, ShapeError, check_range

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Quantity:
    """A number at or above 0 with the variance of its estimate; an exact one has variance 0.

    Args:
        value: the estimate.
        variance: of the estimate.
        freedom: degrees of freedom that the variance was estimated with; infinite: it is known.
    """

    value: float
    variance: float = 0.0
    freedom: float = math.inf

    @property
    def exact(self) -> bool:
        """Whether there is no uncertainty."""
        return self.variance == 0

    def __mul__(self, other: Quantity | float) -> Quantity:
        """Product of two independent quantities, to first order, or with a number that is known."""
        if not isinstance(other, Quantity):
            return Quantity(self.value * other, self.variance * other**2, self.freedom)
        parts = [(other.value**2 * self.variance, self.freedom), (self.value**2 * other.variance, other.freedom)]
        return _combined(self.value * other.value, parts)

    def at_most(self, most: float) -> Quantity:
        """The quantity, or a bound where it is larger."""
        return self if self.value <= most else Quantity(most)

    def interval(self) -> tuple[float, float]:
        """The 95 % t-interval, from 0 upwards.

        Example:
            >>> Quantity(12.0).interval()
            (12.0, 12.0)
        """
        reach = float(stdtrit(self.freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(self.variance)
        return max(0.0, self.value - reach), self.value + reach

    def as_json(self) -> dict[str, Any]:
        """``value`` and ``ci95``; an exact quantity has no interval."""
        return {"value": self.value} | ({} if self.exact else {"ci95": list(self.interval())})


def total(quantities: Iterable[Quantity]) -> Quantity:
    """Sum; 0 of none. Standard deviations add: an upper bound however the quantities depend on each other.

    Two encoders are asked about the same uncertain number of images, two rates are measured on one busy machine.
    """
    every = list(quantities)
    deviation = sum(math.sqrt(quantity.variance) for quantity in every)
    freedom = min((quantity.freedom for quantity in every if not quantity.exact), default=math.inf)
    return Quantity(sum(quantity.value for quantity in every), deviation**2, freedom)


def rate(amounts: Sequence[float], sizes: Sequence[float]) -> Quantity:
    """Amount per unit over n pieces of work: the ratio of the sums (Cochran, Sampling Techniques, 1977, section 6.4).

    Args:
        amounts: (n,) what each piece took, for example seconds.
        sizes: (n,) units of each piece, for example images.

    Raises:
        ShapeError: fewer than two pieces, or no unit.

    Example:
        >>> rate([1.0, 3.0], [10, 30])
        Quantity(value=0.1, variance=0.0, freedom=1)
    """
    y, x = np.asarray(amounts, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    if y.shape != x.shape or len(y) < 2 or x.sum() <= 0:
        raise ShapeError(f"a rate with its spread needs two pieces of work, got amounts {y.shape}, sizes {x.shape}")
    ratio = float(y.sum() / x.sum())
    residuals = y - ratio * x
    variance = float((residuals**2).sum() / (len(y) * (len(y) - 1)) / x.mean() ** 2)
    return Quantity(ratio, variance, len(y) - 1)


def total_of_groups(sampled: Sequence[float], groups: int) -> Quantity:
    """Total over all groups (shards) from some drawn evenly, with finite-population correction (Cochran, section 2.6).

    Raises:
        ShapeError: no group, more than there are, or one of several, which has no spread.

    Example:
        >>> total_of_groups([100, 100], 50).value, total_of_groups([3, 5], 2)
        (5000.0, Quantity(value=8.0, variance=0.0, freedom=inf))
    """
    values = np.asarray(sampled, dtype=np.float64)
    if not 0 < len(values) <= groups or (len(values) == 1 and groups > 1):
        raise ShapeError(f"{len(values)} of {groups} groups cannot give a total with its spread")
    if len(values) == groups:
        return Quantity(float(values.sum()))
    variance = groups**2 * (1 - len(values) / groups) * float(values.var(ddof=1)) / len(values)
    return Quantity(groups * float(values.mean()), variance, len(values) - 1)


def thinned(count: Quantity, share: float) -> Quantity:
    """How many remain when each of ``count`` is kept with probability ``share`` in [0, 1], by an independent hash.

    Raises:
        ConfigError: the share is outside [0, 1].
    """
    check_range("share", share, 0, 1)
    drawn = (count.value * share * (1 - share), math.inf)
    return _combined(count.value * share, [drawn, (count.variance * share**2, count.freedom)])


def workers_for(seconds: float, wall: float) -> int:
    """Workers that do ``seconds`` of work side by side within ``wall`` seconds; one at least.

    Example:
        >>> workers_for(7200, 3600), workers_for(7201, 3600), workers_for(0, 60)
        (2, 3, 1)
    """
    return max(1, math.ceil(seconds / wall - 1e-9))


def nodes_for(
    actors: int, readers: int, *, actor: tuple[float, float], reader_cpus: float, node: tuple[float, float]
) -> int:
    """The fewest equal nodes that hold some actors, and readers beside them.

    Args:
        actors, readers: how many of each.
        actor: (CPUs, GPUs) of an actor.
        reader_cpus: CPUs of a reader, which uses no GPU.
        node: (CPUs, GPUs) of a node.

    Raises:
        ConfigError: a node is too small for one actor with a reader.

    Example:
        >>> nodes_for(10, 4, actor=(2, 1), reader_cpus=1, node=(16, 4))
        3
    """
    room = 1e-9
    if actor[0] + reader_cpus > node[0] + room or actor[1] > node[1] + room:
        raise ConfigError(
            f"a node of {node[0]:g} CPUs and {node[1]:g} GPUs does not hold an actor of {actor[0]:g} and "
            f"{actor[1]:g} with a reader of {reader_cpus:g} CPUs"
        )
    nodes = math.ceil(actors / _held(0, actor, reader_cpus, node))
    while True:
        more = readers % nodes
        held = (nodes - more) * _held(readers // nodes, actor, reader_cpus, node)
        if more:
            held += more * _held(readers // nodes + 1, actor, reader_cpus, node)
        if held >= actors:
            return nodes
        nodes += 1


def _held(readers: int, actor: tuple[float, float], reader_cpus: float, node: tuple[float, float]) -> int:
    """Actors on a node beside some readers."""
    room = 1e-9
    held = math.floor(max(0.0, node[0] - readers * reader_cpus) / actor[0] + room)
    return min(held, math.floor(node[1] / actor[1] + room)) if actor[1] else held


def _combined(value: float, parts: Sequence[tuple[float, float]]) -> Quantity:
    """A value whose variance is the sum of independent ones, each with its degrees of freedom."""
    variance = sum(part for part, _ in parts)
    inverse = sum(part**2 / freedom for part, freedom in parts)
    return Quantity(value, variance, variance**2 / inverse if inverse > 0 else math.inf)
