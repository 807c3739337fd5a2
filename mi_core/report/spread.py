"""How numbers are spread over members and non-members: of single samples, or of bins that stand for many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mi_core.metrics.histograms import ScoreHistograms
from mi_core.records import BoolArray, FloatArray

_PER_LOGIT = 1000  # values of a thinned curve


@dataclass(frozen=True)
class Spread:
    """Numbers of members and of non-members.

    Args:
        values: (N,) float.
        member: (N,) bool.
        counts: (N,) int, how many samples each value stands for; None: one.
    """

    values: FloatArray
    member: BoolArray
    counts: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(cls, both: ScoreHistograms) -> Spread:
        """The bins of two histograms, each with its mean, thinned for drawing; see `thinned`."""
        sides = [thinned(one.means, one.counts) for one in (both.members, both.nonmembers)]
        values, counts = (np.concatenate(parts) for parts in zip(*sides, strict=True))
        return cls(values, np.repeat([True, False], [len(one) for one, _ in sides]), counts)

    @classmethod
    def joined(cls, spreads: Sequence[Spread]) -> Spread:
        """Several as one."""
        counts = [one.counts for one in spreads if one.counts is not None]
        values, member = (np.concatenate([getattr(one, name) for one in spreads]) for name in ("values", "member"))
        return cls(values.astype(np.float64), member, np.concatenate(counts) if len(counts) == len(spreads) else None)

    @property
    def n_member(self) -> int:
        """Members."""
        return self.number(self.member)

    @property
    def n_nonmember(self) -> int:
        """Non-members."""
        return self.number(~self.member)

    def number(self, chosen: BoolArray) -> int:
        """How many samples some values stand for."""
        return int(chosen.sum() if self.counts is None else self.counts[chosen].sum())

    def weights(self, chosen: BoolArray) -> npt.NDArray[np.float64]:
        """The share of some values in them, in percent: (N,)."""
        alike = np.ones(int(chosen.sum())) if self.counts is None else self.counts[chosen]
        return np.asarray(100 / self.number(chosen) * alike, dtype=np.float64)

    def quantile(self, chosen: BoolArray, q: float) -> float:
        """A quantile of some values; where they stand for several samples each, one of the values.

        Example:
            >>> spread = Spread(np.array([1.0, 2.0]), np.array([True, True]), np.array([9, 1]))
            >>> spread.quantile(spread.member, 0.5)
            1.0
        """
        if self.counts is None:
            return float(np.quantile(self.values[chosen], q))
        return float(np.quantile(self.values[chosen], q, weights=self.counts[chosen], method="inverted_cdf"))

    def in_order(self) -> Iterator[FloatArray]:
        """The values of members, then of non-members, ascending; and how many samples each stands for."""
        for side in (self.member, ~self.member):
            order = np.argsort(self.values[side], kind="stable")
            yield self.values[side][order]
            yield np.empty(0) if self.counts is None else self.counts[side][order].astype(np.float64)


def thinned(values: FloatArray, counts: npt.NDArray[np.int64]) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Fewer values for a curve: neighbours whose shares of all samples lie within a thousandth on the logit scale.

    A rate that is read off them is off by a thousandth of itself, however small it is. A billion samples leave 42,000
    values at most.

    Args:
        values: (N,) float, ascending.
        counts: (N,) int, how many samples each value stands for.

    Returns:
        Means of neighbours and how many samples these stand for: (M,) each.
    """
    ends = np.cumsum(counts)
    middle = (ends - counts / 2) / ends[-1]
    places = np.floor(_PER_LOGIT * np.log(middle / (1 - middle)))
    starts = np.flatnonzero(np.diff(places, prepend=-np.inf))
    held = np.add.reduceat(counts, starts)
    return np.add.reduceat(values * counts, starts) / held, held
