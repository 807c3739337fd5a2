"""Histograms of scores that add up: metrics of more samples than one process can hold.

The bits of a float64, read as an integer, have the order of the floats. A score falls into the bin of its highest bits,
of as many as leave at most `MOST` bins that hold a score: bins are narrow where scores are dense, and a histogram of a
billion scores takes 25 MB. Histograms of shards are added in any order, with the same bins and counts; their sums of
scores differ by rounding alone. The metrics are those of `mi_core.metrics.delong` and `mi_core.metrics.membership` for
scores rounded down to their bins: samples of one bin are ties. At a million samples the AUC is off by less than 1e-6.
Grouped samples: `mi_core.metrics.group_sums`.

M members and K non-members, as there; B bins that hold a sample.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mi_core.checks import ShapeError, check_finite, check_range, check_shape
from mi_core.metrics.delong import correlation_of, difference_of_aucs, interval_on_logits
from mi_core.metrics.intervals import NORMAL_95, rate
from mi_core.metrics.membership import LOW_FPRS, MembershipMetrics, Worth, allowed_alarms, tpr_interval
from mi_core.records import BoolArray, Estimate, FloatArray

MOST = 2**20  # bins that hold a score
_SIGN = np.uint64(2**63)
Codes = npt.NDArray[np.uint64]
_Float64 = npt.NDArray[np.float64]
_Int64 = npt.NDArray[np.int64]


def codes_of(scores: FloatArray, dropped: int = 0) -> Codes:
    """The bin (N,) of every score: a larger score never has a smaller bin.

    Args:
        scores: (N,).
        dropped: lowest bits that do not count, 0 to 63.

    Raises:
        ShapeError: scores are not (N,).
        NumericError: a score is NaN or infinite.

    Example:
        >>> codes = codes_of(np.array([-2.0, -0.0, 0.0, 1.0, 1.0001, 1.01]), dropped=44)
        >>> (np.diff(codes.astype(int)) > 0).tolist()
        [True, False, True, False, True]
    """
    bits = (_checked(scores) + 0.0).view(np.uint64)  # -0 becomes 0
    return np.asarray(np.where(bits & _SIGN, ~bits, bits | _SIGN) >> np.uint64(dropped), dtype=np.uint64)


def lower_ends(codes: Codes, dropped: int = 0) -> _Float64:
    """The smallest score (N,) of every bin.

    Example:
        >>> lower_ends(codes_of(np.array([-1.0001, 0.0, 1.0001]), 40), 40).round(3).tolist()
        [-1.0, 0.0, 1.0]
    """
    keys = codes << np.uint64(dropped)
    return np.where(keys & _SIGN, keys & ~_SIGN, ~keys).astype(np.uint64).view(np.float64)


@dataclass(frozen=True)
class Histogram:
    """Counts by bin, of the bins that hold a score.

    Args:
        codes: (B,) ascending, B at most `MOST`.
        counts: (B,) scores in each bin.
        totals: (B,) their sum, so that means lose nothing.
        dropped: bits that the codes lack, 0 to 63: as few as leave `MOST` bins.
    """

    codes: Codes
    counts: _Int64
    totals: _Float64
    dropped: int = 0

    @classmethod
    def of(cls, scores: FloatArray) -> Histogram:
        """The histogram of some scores (N,), none included. Raises as `codes_of`.

        Example:
            >>> (Histogram.of(np.array([1.0, 3.0])) + Histogram.of(np.array([1.0]))).counts.tolist()
            [2, 1]
        """
        ordered = np.sort(_checked(scores))
        codes = codes_of(ordered)
        return cls(codes, np.ones(len(codes), dtype=np.int64), ordered)._narrowed()

    @classmethod
    def total(cls, parts: Iterable[Histogram]) -> Histogram:
        """The sum of many, such as one of each shard: about 0.3 microseconds a bin of the parts, and 150 MB at most.

        Bins of many parts are gathered before they are summed, so that a small part costs no pass over all bins.
        """
        gathered, bins = [cls.of(np.empty(0))], 0
        for part in parts:
            gathered.append(part)
            bins += len(part.codes)
            if bins > MOST:
                gathered, bins = [cls._joined(gathered)], 0
        return cls._joined(gathered)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Histogram:
        """The histogram of `arrays`, read back from a file."""
        return cls(
            arrays["codes"].astype(np.uint64),
            arrays["counts"].astype(np.int64),
            arrays["totals"].astype(np.float64),
            int(arrays["dropped"]),
        )

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The fields as arrays, for `numpy.savez` or the columns of a table; ``dropped`` has no axis.

        Example:
            >>> histogram = Histogram.of(np.array([1.0, 3.0, 1.0]))
            >>> Histogram.from_arrays(histogram.arrays()).counts.tolist()
            [2, 1]
        """
        return {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def _joined(cls, parts: Sequence[Histogram]) -> Histogram:
        dropped = max(part.dropped for part in parts)
        alike = [part.coarser(dropped) for part in parts]
        codes, counts, totals = (
            np.concatenate([getattr(part, name) for part in alike]) for name in ("codes", "counts", "totals")
        )
        order = np.argsort(codes, kind="stable")  # which merges runs that are in order already
        return cls(codes[order], counts[order], totals[order], dropped)._narrowed()

    def _narrowed(self) -> Histogram:
        """With equal neighbours joined, and with as few more bits dropped as leave `MOST` bins."""
        whole = self._merged(0)
        return whole.coarser(
            self.dropped
            + bisect_left(range(64 - self.dropped), True, key=lambda bits: _bins(whole.codes, bits) <= MOST)
        )

    def _merged(self, bits: int) -> Histogram:
        """With equal neighbours joined, once so many more bits are dropped."""
        codes = self.codes >> np.uint64(bits)
        first = np.flatnonzero(np.diff(codes, prepend=~codes[:1]))
        return Histogram(
            codes[first],
            np.add.reduceat(self.counts, first),
            np.add.reduceat(self.totals, first),
            self.dropped + bits,
        )

    def coarser(self, dropped: int) -> Histogram:
        """The same scores with more bits dropped."""
        return self if dropped == self.dropped else self._merged(dropped - self.dropped)

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram._joined([self, other])

    @cached_property
    def n(self) -> int:
        """Number of scores."""
        return int(self.counts.sum())

    @property
    def means(self) -> _Float64:
        """Mean score (B,) of every bin."""
        return self.totals / self.counts

    @cached_property
    def up_to(self) -> _Int64:
        """Scores (B + 1,) in the first bins: none, one, ... all of them."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    def below(self, codes: Codes) -> _Int64:
        """Scores in bins below each of some bins (N,) of the same width."""
        return np.asarray(self.up_to[np.searchsorted(self.codes, codes, "left")], dtype=np.int64)

    def within(self, codes: Codes) -> _Int64:
        """Scores in bins up to each of some bins (N,)."""
        return np.asarray(self.up_to[np.searchsorted(self.codes, codes, "right")], dtype=np.int64)

    def share_below(self, codes: Codes) -> _Float64:
        """Share of the scores below each of some bins (N,); ties count half."""
        order = np.argsort(codes)  # looked up in order: fewer steps miss the processor's caches
        ascending = codes[order]
        first = np.searchsorted(self.codes, ascending, "left")
        held = self.codes[np.minimum(first, len(self.codes) - 1)] == ascending
        shares = np.empty(len(codes))
        shares[order] = (self.up_to[first] + self.up_to[first + held]) / (2 * self.n)
        return shares

    def ranked(self, ranks: npt.NDArray[np.integer[Any]]) -> Codes:
        """The bin of the score at each of some ranks (N,), from 0 for the lowest."""
        return np.asarray(self.codes[np.searchsorted(self.up_to, ranks, "right") - 1], dtype=np.uint64)


@dataclass(frozen=True)
class ScoreHistograms:
    """The scores of the members and of the non-members.

    Raises:
        ShapeError: a class has fewer than 2 samples.

    Example:
        >>> scores = np.arange(4000.0)
        >>> both = ScoreHistograms.of(scores, scores >= 2000)
        >>> both.auc().value
        1.0
    """

    members: Histogram
    nonmembers: Histogram

    def __post_init__(self) -> None:
        if min(self.members.n, self.nonmembers.n) < 2:
            raise ShapeError(
                f"an AUC with an interval needs 2 samples of each class, got {self.members.n} members"
                f" and {self.nonmembers.n} non-members"
            )
        dropped = max(self.members.dropped, self.nonmembers.dropped)
        for name in ("members", "nonmembers"):
            object.__setattr__(self, name, getattr(self, name).coarser(dropped))

    @classmethod
    def of(cls, scores: FloatArray, member: BoolArray) -> ScoreHistograms:
        """Of scores (N,) in one process. Raises as the class and `codes_of`."""
        return cls(Histogram.of(np.asarray(scores)[member]), Histogram.of(np.asarray(scores)[~member]))

    def codes_of(self, scores: FloatArray) -> Codes:
        """The bin (N,) of every score. Raises as `codes_of`."""
        return codes_of(scores, self.members.dropped)

    @property
    def n(self) -> int:
        """Number of samples."""
        return self.members.n + self.nonmembers.n

    def placements(self, codes: Codes, *, of_members: bool) -> _Float64:
        """DeLong's placements (N,) of some members, or of some non-members, by their bins."""
        return self.nonmembers.share_below(codes) if of_members else 1 - self.members.share_below(codes)

    def auc(self) -> Estimate:
        """As `mi_core.metrics.delong.auc`."""
        value, variance = self.auc_and_variance()
        pairs = min(self.members.n, self.nonmembers.n)
        return interval_on_logits(value, math.sqrt(variance), NORMAL_95, pairs, self.n)

    def auc_and_variance(self) -> tuple[float, float]:
        """The AUC, and DeLong's variance of it if all samples are independent."""
        v10 = self.placements(self.members.codes, of_members=True)
        v01 = self.placements(self.nonmembers.codes, of_members=False)
        value = float(v10 @ self.members.counts / self.members.n)
        squares = [
            float((placed - value) ** 2 @ side.counts) / (side.n - 1) / side.n
            for placed, side in ((v10, self.members), (v01, self.nonmembers))
        ]
        return value, sum(squares)

    def tpr_at_fpr(self, fpr: float, *, seed: int, resamples: int = 1000, worth: Worth | None = None) -> Estimate:
        """As `mi_core.metrics.membership.tpr_at_fpr`; for groups see `mi_core.metrics.group_sums`.

        Raises:
            ConfigError: fpr is not within (0, 1], or resamples are below 1.
        """
        check_range("resamples", resamples, 1)
        n_member, n_nonmember = self.members.n, self.nonmembers.n
        alarms = n_nonmember - int(self.nonmembers.within(self.threshold(fpr))[0])

        def members_above(ranks: _Int64) -> _Int64:
            return n_member - self.members.within(self.nonmembers.ranked(n_nonmember - 1 - ranks))

        return tpr_interval(members_above, alarms, n_member, n_nonmember, fpr, seed, resamples, worth)

    def threshold(self, fpr: float) -> Codes:
        """The bin (1,) above which samples count at a false-positive rate, in `tpr_at_fpr`.

        Raises:
            ConfigError: fpr is not within (0, 1].
        """
        check_range("fpr", fpr, 0.0, 1.0, open_low=True)
        allowed = min(allowed_alarms(fpr, self.nonmembers.n), self.nonmembers.n - 1)
        return self.nonmembers.ranked(np.array([self.nonmembers.n - 1 - allowed]))

    def metrics(self, called: tuple[int, int], threshold: float, *, seed: int) -> MembershipMetrics:
        """All metrics of one run, as `mi_core.metrics.membership.evaluate`.

        Args:
            called: members and non-members whose score reaches the threshold, counted on the scores themselves.
            threshold: from elsewhere.
            seed: of the draws of `tpr_at_fpr`.
        """
        hits, alarms = called
        return MembershipMetrics(
            n_member=self.members.n,
            n_nonmember=self.nonmembers.n,
            accuracy=rate(hits + self.nonmembers.n - alarms, self.n),
            precision=rate(hits, hits + alarms) if hits + alarms else None,
            recall=rate(hits, self.members.n),
            auc=self.auc(),
            tpr_at_fpr={fpr: self.tpr_at_fpr(fpr, seed=seed) for fpr in LOW_FPRS},
            threshold=float(threshold),
        )


def _checked(scores: FloatArray) -> _Float64:
    """The scores (N,) as float64."""
    values = np.asarray(scores, dtype=np.float64)
    check_shape("scores", values, "N")
    if len(values):
        check_finite("scores", values)
    return values


def _bins(codes: Codes, dropped: int) -> int:
    """Bins (B,) that are left, of ascending ones, where more bits are dropped."""
    return int(np.count_nonzero(np.diff(codes >> np.uint64(dropped)))) + 1


@dataclass(frozen=True)
class PlacementSums:
    """Sums of the placements of the same samples under two attacks, which add up over shards.

    Args:
        counts: (2,) members and non-members.
        sums: (2, 2) placements by class and attack.
        products: (2, 2, 2) products of placements by class, attack and attack.
    """

    counts: _Int64
    sums: _Float64
    products: _Float64

    @classmethod
    def of(
        cls,
        scores: tuple[FloatArray, FloatArray],
        member: BoolArray,
        histograms: tuple[ScoreHistograms, ScoreHistograms],
    ) -> PlacementSums:
        """Of some samples (N,): their scores under two attacks, and the histograms of all samples.

        Raises:
            ShapeError: the scores and ``member`` do not match.
            NumericError: a score is NaN or infinite.
        """
        codes = [own.codes_of(one) for one, own in zip(scores, histograms, strict=True)]
        for one in codes:
            check_shape("scores", one, "N", N=len(member))
        placed = [
            np.stack([own.placements(one[rows], of_members=inside) for one, own in zip(codes, histograms, strict=True)])
            for inside, rows in ((True, member), (False, ~member))
        ]
        return cls(
            np.array([one.shape[1] for one in placed]),
            np.stack([one.sum(axis=1) for one in placed]),
            np.stack([one @ one.T for one in placed]),
        )

    def __add__(self, other: PlacementSums) -> PlacementSums:
        return PlacementSums(self.counts + other.counts, self.sums + other.sums, self.products + other.products)

    def covariance(self) -> _Float64:
        """Covariance (2, 2) of the two AUCs."""
        n = self.counts[:, None, None]
        centred = self.products - self.sums[:, :, None] * self.sums[:, None, :] / n
        return np.asarray((centred / (n - 1) / n).sum(axis=0), dtype=np.float64)


def auc_difference(first: ScoreHistograms, second: ScoreHistograms, sums: PlacementSums) -> Estimate:
    """AUC of one attack minus AUC of another on the same samples, as `mi_core.metrics.delong.auc_difference`.

    Args:
        first, second: scores of all samples under either.
        sums: of the same samples, from a second pass over the scores.

    Raises:
        ShapeError: the sums are of another number of samples.
    """
    for which, histograms in (("first", first), ("second", second)):
        held = [histograms.members.n, histograms.nonmembers.n]
        if held != sums.counts.tolist():
            raise ShapeError(f"the {which} histograms hold {held} samples, the sums {sums.counts.tolist()}")
    return difference_of_aucs(first.auc(), second.auc(), correlation_of(sums.covariance()))
