"""The cost of work: counts times measured rates, each a range from the smallest to the largest that was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mi_core.checks import ConfigError, ShapeError

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Range:
    """A number at or above 0, and how low and how high it may be."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Range:
        """A number that is known."""
        return cls(value, value, value)

    def __mul__(self, other: Range | float) -> Range:
        """The product with another range or with a known number."""
        if not isinstance(other, Range):
            other = Range.exact(other)
        return Range(self.value * other.value, self.low * other.low, self.high * other.high)

    def at_most(self, most: float) -> Range:
        """The range, cut at an upper bound."""
        return Range(min(self.value, most), min(self.low, most), min(self.high, most))


NOTHING = Range.exact(0.0)


def total(ranges: Iterable[Range]) -> Range:
    """The sum; 0 of none. It is lowest where all terms are lowest."""
    every = list(ranges)
    return Range(sum(one.value for one in every), sum(one.low for one in every), sum(one.high for one in every))


def largest(ranges: Iterable[Range]) -> Range:
    """The largest of some amounts; 0 of none. Things done side by side take as long as the slowest."""
    every = [NOTHING, *ranges]
    return Range(max(one.value for one in every), max(one.low for one in every), max(one.high for one in every))


def rate(amounts: Sequence[float], sizes: Sequence[float]) -> Range:
    """Amount per unit over n pieces of work: the ratio of the sums, from the smallest to the largest ratio of a piece.

    ``amounts`` (n,) are what each piece took, such as seconds; ``sizes`` (n,) its units above 0, such as images.

    Raises:
        ShapeError: no piece, or a piece without a unit.

    Example:
        >>> rate([1.0, 3.0, 8.0], [10, 30, 40])
        Range(value=0.15, low=0.1, high=0.2)
    """
    if not sizes or len(amounts) != len(sizes) or min(sizes) <= 0:
        raise ShapeError(f"a rate needs pieces of work with units, got {len(amounts)} amounts, sizes {list(sizes)}")
    each = [amount / size for amount, size in zip(amounts, sizes, strict=True)]
    return Range(sum(amounts) / sum(sizes), min(each), max(each))


def total_of_groups(sampled: Sequence[float], groups: int) -> Range:
    """The total over all groups (shards) from some of them: the others are as small as the smallest up to the largest.

    Raises:
        ShapeError: no group, or more than there are.

    Example:
        >>> total_of_groups([90, 110], 50), total_of_groups([3, 5], 2)
        (Range(value=5000.0, low=4520, high=5480), Range(value=8.0, low=8, high=8))
    """
    if not 0 < len(sampled) <= groups:
        raise ShapeError(f"{len(sampled)} of {groups} groups cannot give a total")
    seen, unseen = sum(sampled), groups - len(sampled)
    mean = seen / len(sampled)
    return Range(seen + unseen * mean, seen + unseen * min(sampled), seen + unseen * max(sampled))


def workers_for(seconds: float, wall: float) -> int:
    """Workers that do ``seconds`` of work side by side within ``wall`` seconds; one at least.

    Example:
        >>> workers_for(7200, 3600), workers_for(7201, 3600), workers_for(0, 60)
        (2, 3, 1)
    """
    return max(1, math.ceil(seconds / wall - _ROUNDING))


def nodes_for(
    actors: int, readers: int, *, actor: tuple[float, float], reader_cpus: float, node: tuple[float, float]
) -> int:
    """The fewest equal nodes that hold some actors, with readers spread evenly beside them.

    An actor holds (CPUs, GPUs), a reader some CPUs, a node (CPUs, GPUs).

    Raises:
        ConfigError: a node is too small for one actor with a reader.

    Example:
        >>> nodes_for(10, 4, actor=(2, 1), reader_cpus=1, node=(16, 4))
        3
    """

    def held(beside: int) -> int:
        """Actors on a node beside some readers."""
        by_cpu = math.floor(max(0.0, node[0] - beside * reader_cpus) / actor[0] + _ROUNDING)
        return min(by_cpu, math.floor(node[1] / actor[1] + _ROUNDING)) if actor[1] else by_cpu

    if held(1) < 1:
        raise ConfigError(
            f"a node of {node[0]:g} CPUs and {node[1]:g} GPUs does not hold an actor of {actor[0]:g} and "
            f"{actor[1]:g} with a reader of {reader_cpus:g} CPUs"
        )
    nodes = math.ceil(actors / held(0))
    while True:
        each, more = divmod(readers, nodes)
        if (nodes - more) * held(each) + more * held(each + 1) >= actors:
            return nodes
        nodes += 1
