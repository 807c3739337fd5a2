"""How numbers are spread over members and non-members: of single samples, or of bins that stand for many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mi_core.metrics.histograms import ScoreHistograms
from mi_core.records import BoolArray, FloatArray


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
        """The bins of two histograms, each with its mean."""
        sides = (both.members, both.nonmembers)
        values, counts = (np.concatenate([getattr(one, name) for one in sides]) for name in ("means", "counts"))
        return cls(values, np.repeat([True, False], [len(one.codes) for one in sides]), counts)

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
