"""The share of the candidates that was used for training, with and without known members.

`share_used` compares three rates at one threshold, as data usage cardinality inference does (Tong, Ye, Zarifzadeh and
Shokri, "How much of my dataset did you use?", ICLR 2025). `least_share` needs candidates and controls only: where a
share w was used, the distribution of the candidates' scores is F = (1 - w) F0 + w F1 with the controls' F0 and any F1,
so w >= 1 - F(t) / F0(t) at every threshold t (Genovese and Wasserman, "A stochastic process approach to false discovery
control", Annals of Statistics, 2004, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import betaincc, betaincinv, ndtr

from mi_core.checks import ShapeError, check_range
from mi_core.metrics.intervals import checked_groups, clopper_pearson, worth_of
from mi_core.records import BoolArray, Estimate, FloatArray
from mi_core.validity.sets.dataset import check_candidates

_STEP = 5e-4  # of the shares that are tried; the interval is widened by one
EDGES = ndtr(np.arange(-5.0, 5.0, 0.05))  # levels at which the controls' unknown F0 is cut
_WEIGHTS = np.diff(EDGES, prepend=0.0, append=1.0)
_Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LeastShare:
    """With 95 % confidence at least the share ``low`` of the candidates was used.

    There is no point estimate: the largest of many noisy ratios would be too high.
    """

    low: float  # in [0, 1]
    threshold: float | None  # the score at which the bound was found; None where ``low`` is 0
    n: int  # number of samples, candidates and controls


def share_used(
    candidates: tuple[float, float], controls: tuple[float, float], members: tuple[float, float]
) -> Estimate:
    """(rate of candidates called members - FPR) / (TPR - FPR), in [0, 1], with its interval.

    The interval holds the shares p that the contrast a - (1 - p) f - p t = 0 does not refute. Its limits join the
    Clopper-Pearson intervals of the three rates by the method of variance estimates recovery (Zou and Donner,
    Statistics in Medicine, 2008). It covers .95 and more: the least of 250 settings of 30 to 2,000 samples was .950 of
    4,000 draws; with Jeffreys' or Wilson's limits it would be 5 or 3 % shorter and fall to .925 or .930.

    Not supported, with the interval [0, 1]: TPR and FPR are not told apart (95 %), or no share fits, as when the
    candidates are called more often than members.

    Args:
        candidates, controls, members: (called members, n) of three independent samples at one threshold that was
            fixed elsewhere. For dependent samples pass effective numbers, `effective_size` and the rate times it.

    Raises ConfigError: an n is below 1, or called is not within [0, n].

    Example:
        >>> estimate = share_used((300, 1000), (50, 1000), (550, 1000))
        >>> estimate.value, round(estimate.low, 2), round(estimate.high, 2)
        (0.5, 0.43, 0.57)
    """
    samples = [("candidates", candidates), ("controls", controls), ("members", members)]
    for name, (called, n) in samples:
        check_range(f"n of the {name}", n, 1)
        check_range(f"called of the {name}", called, 0, n)
    size = round(sum(n for _, (_, n) in samples))
    rates = [called / n for _, (called, n) in samples]
    limits = [clopper_pearson(*counts) for _, counts in samples]
    if rates[2] < rates[1]:  # the threshold works backwards: the same ratio from those not called
        rates = [1 - rate for rate in rates]
        limits = [(1 - high, 1 - low) for low, high in limits]
    a, f, t = rates
    (below_a, above_a), (below_f, above_f), (below_t, above_t) = (
        (rate - low, high - rate) for rate, (low, high) in zip(rates, limits, strict=True)
    )
    value = float(np.clip((a - f) / (t - f), 0, 1)) if t > f else 0.5
    if t - f <= math.hypot(below_t, above_f):
        return Estimate(value, 0.0, 1.0, size, supported=False)
    shares = np.append(np.linspace(0, 1, round(1 / _STEP) + 1), value)
    contrast = a - (1 - shares) * f - shares * t
    reach_below = np.sqrt(below_a**2 + ((1 - shares) * above_f) ** 2 + (shares * above_t) ** 2)
    reach_above = np.sqrt(above_a**2 + ((1 - shares) * below_f) ** 2 + (shares * below_t) ** 2)
    fits = shares[(contrast <= reach_below) & (-contrast <= reach_above)]
    if not len(fits):
        return Estimate(value, 0.0, 1.0, size, supported=False)
    return Estimate(value, max(0.0, float(fits.min()) - _STEP), min(1.0, float(fits.max()) + _STEP), size)


def effective_size(groups: npt.NDArray[np.int64]) -> float:
    """Number of independent samples that N samples are worth if those of a group tell no more than one of them.

    Kish ("Survey sampling", 1965, section 5.4): N ** 2 / sum of squared group sizes; equal groups: their number.

    Raises ShapeError or ConfigError: groups are empty, not (N,), or not integers.

    Example:
        >>> effective_size(np.array([4, 4, 4, 7, 7, 7]))
        2.0
    """
    names = checked_groups(groups, np.size(groups))
    if not len(names):
        raise ShapeError("groups are empty")
    return worth_of(np.unique(names, return_counts=True)[1].astype(np.float64))


def least_share(scores: FloatArray, candidate: BoolArray, *, groups: npt.NDArray[np.int64] | None = None) -> LeastShare:
    """A 95 % lower confidence bound of the share of the candidates that was used, without known members.

    At the k-th smallest of n controls F0 is at least a Beta(k, n + 1 - k) variable in distribution, whatever the
    scores, so the number of candidates up to there is at least binomial with the rate (1 - w) Beta: a test of w
    that is exact without a nuisance parameter. The bound is the largest w that the test refutes at one of K ranks, at
    level .05 / K each; the ranks depend on n alone (0, 1, 2, 4, ... controls above, up to a half, and 5, 6, 7 eighths).
    It holds for any scores and sample sizes, ties included, and for candidates of which a fixed share was used
    (Hoeffding, 1956). The bands of Dvoretzky, Kiefer and Wolfowitz with Massart's constant hold too but see little at
    low false-positive rates.

    With groups n, k and the numbers of candidates are scaled to `effective_size`: exact for equal groups of equal
    scores, conservative for weaker ties, close for unequal groups.

    Args:
        scores: (N,) higher = more likely a member.
        candidate: (N,) bool, False = control.
        groups: (N,) integers, equal within a group; all of a group are candidates or all are controls.

    Raises as `mi_core.validity.sets.dataset.check_candidates`.

    Example:
        >>> bound = least_share(np.arange(400.0) + 400 * (np.arange(400) % 2), np.arange(400) % 2 == 1)
        >>> round(bound.low, 2), bound.threshold
        (0.97, 398.0)
    """
    values, labels, ids = check_candidates(scores, candidate, groups)
    inside, outside = np.sort(values[labels]), np.sort(values[~labels])
    worth_in, worth_out = float(len(inside)), float(len(outside))
    if ids is not None:
        worth_in, worth_out = effective_size(ids[labels]), effective_size(ids[~labels])
    # from the largest down: 0, 1, 2, 4, ... controls above, up to a half, and 5, 6, 7 eighths
    above = [0.0] + [2.0**power for power in range(max(0, math.floor(math.log2(max(worth_out / 2, 1))) + 1))]
    above += [worth_out * eighths / 8 for eighths in (5, 6, 7)]
    ranks = len(outside) - np.round(np.array(above) * len(outside) / worth_out).astype(np.int64)
    ranks = np.unique(ranks[ranks >= 1])[::-1]
    thresholds = outside[ranks - 1]
    return _least(
        thresholds, ranks, np.searchsorted(inside, thresholds, "right"), len(inside), len(outside), worth_in, worth_out
    )


def least_share_above(
    after: FloatArray, unseen: FloatArray, percentiles: Sequence[float], worth: float, level: float
) -> tuple[LeastShare, tuple[float, ...]]:
    """A lower bound of the share w where ``after`` is (1 - w) ``unseen`` + w anything, at few percentiles alone.

    As `least_share`, with the thresholds at percentiles of ``unseen`` instead of at its own ranks.

    Args:
        after, unseen: (n,) each, higher = more likely a member.
        percentiles: in (0, 1), of ``unseen``; the chance of an error is split evenly among them.
        worth: as how many independent samples each side counts, at least 1.
        level: the chance of a bound that is too high, in (0, 1).

    Returns the bound, with the position in ``percentiles`` at which it was found as its threshold; and for each
    percentile the share of ``after`` above it.
    Raises ShapeError or ConfigError: a side is empty, level or a percentile is out of range, or worth below 1.
    """
    inside, outside = np.sort(np.asarray(after)), np.sort(np.asarray(unseen))
    if not len(inside) or not len(outside):
        raise ShapeError(f"both sides are needed, got {len(inside)} and {len(outside)}")
    check_range("worth", worth, 1)
    for name, number in [("level", level), *(("percentile", one) for one in percentiles)]:
        check_range(name, number, 0, 1, open_low=True)
    ranks = np.maximum(1, np.floor(np.array(percentiles) * len(outside) + 0.5)).astype(np.int64)
    reached = np.searchsorted(inside, outside[ranks - 1], "right")
    positions = np.arange(len(ranks), dtype=np.float64)
    found = _least(positions, ranks, reached, len(inside), len(outside), worth, worth, level)
    return found, tuple((1 - reached / len(inside)).tolist())


def _least(
    thresholds: _Float64,
    ranks: npt.NDArray[np.int64],
    reached: npt.NDArray[np.integer[Any]],
    n_inside: int,
    n_outside: int,
    worth_in: float,
    worth_out: float,
    error: float = 0.05,
) -> LeastShare:
    """The least share from thresholds (K,), their ranks among the controls, and the candidates up to each."""
    of_controls, of_candidates = ranks / n_outside, reached / n_inside
    slack = sum(np.sqrt(part * (1 - part) / n) for part, n in ((of_controls, worth_out), (of_candidates, worth_in)))
    level, low, threshold = error / len(ranks), 0.0, None
    for index in np.argsort(of_candidates / of_controls + 3 * slack):  # the likely best first; the result is the same
        rank, called = of_controls[index] * worth_out, of_candidates[index] * worth_in
        f0 = betaincinv(rank, worth_out + 1 - rank, EDGES)
        best_left = 1 - of_candidates[index] / of_controls[index]
        if best_left <= low or called >= worth_in or share_p_value(low, called, worth_in, f0) > level:
            continue
        high, threshold = 1.0, float(thresholds[index])
        while high - low > 1e-4:
            middle = (low + high) / 2
            low, high = (middle, high) if share_p_value(middle, called, worth_in, f0) <= level else (low, middle)
    return LeastShare(low, threshold, n_inside + n_outside)


def share_p_value(share: float, called: float, n: float, f0: _Float64) -> float:
    """Chance of ``called`` or fewer of ``n`` candidates up to the threshold, where ``share`` of them was used.

    F0 is cut at its quantiles ``f0`` of the levels EDGES, and every piece takes the value at its lower edge: the
    result is never too small, and at most the effect of a shift by .05 standard deviations too large.
    """
    return float(_WEIGHTS @ betaincc(called + 1, n - called, (1 - share) * np.append(0.0, f0)))
