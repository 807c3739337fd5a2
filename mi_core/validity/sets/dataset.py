"""A test that candidates were used, as a whole: their scores against those of controls that surely were not.

One sample alone says little; many together can say much (Maini, Yaghini and Papernot, "Dataset inference", ICLR 2021).
The candidates' mean score is compared with the controls' by Welch's t (Biometrika, 1947), once against Student's
distribution and once against random relabelling, which is exact where candidates and controls are exchangeable,
if the score was not fitted on them (`mi_core.attacks.combined`), and stays valid
for large samples whose variances differ, because the statistic is studentised (Janssen, "Studentized
permutation tests for non-i.i.d. hypotheses and the generalized Behrens-Fisher problem", Statistics and Probability
Letters, 1997). Its p-value counts the data among the relabellings and is never 0 (Phipson and Smyth, 2010). Both tests
are one-sided: candidates that score lower than the controls are no evidence, however small the reversed p-value.

Samples of one group (a person, an album, a burst) are dependent. With groups, the units are groups: the variance of a
mean is the linearised one of a ratio, sum over groups of (sum of deviations) ** 2 / n ** 2 * G / (G - 1) (Cochran,
"Sampling techniques", 1977, equation 9.29), with G - 1 degrees of freedom, and whole groups are relabelled. Without
groups every sample is its own group and the formulas are Welch's.

Letters: N samples, G groups (or samples) of one side, R relabellings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import nctdtr, stdtr, stdtrit

from mi_core.checks import NumericError, ShapeError, check_range
from mi_core.metrics.delong import checked_scores
from mi_core.metrics.intervals import checked_groups
from mi_core.records import BoolArray, Estimate, FloatArray

MOST_RELABELLED = 10**6  # units; above, the permutation test is left out
FEWEST_PERMUTATIONS = 999
NEEDED_LEVEL, NEEDED_POWER = 0.01, 0.8
_WORK = 10**8  # labels drawn in all, as long as that leaves FEWEST_PERMUTATIONS
_BATCH = 2**21  # labels drawn at once: 8 bytes of key, 8 of index and at most 8 of score each
_MOST_NEEDED = 10**12  # beyond, no number of candidates is worth naming
_Float64 = npt.NDArray[np.float64]
_Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Needed:
    """Number of candidates (groups, where there are groups) at which the Welch test has power .8 at level .01.

    ``value`` at the observed effect, ``low`` and ``high`` at the upper and lower end of its interval; None where the
    effect in question is not above 0, or so small that more than 10 ** 12 would be needed.
    """

    value: int | None
    low: int | None
    high: int | None


@dataclass(frozen=True)
class DatasetTest:
    """Candidates against controls."""

    candidates: int  # candidates, controls: numbers of samples
    controls: int
    candidate_groups: int | None  # candidate_groups, control_groups: numbers of groups; None without groups
    control_groups: int | None
    statistic: float  # statistic, df: Welch's t of candidates minus controls and its degrees of freedom
    df: float
    welch_p: float  # of candidates scoring higher, by Student's distribution
    reversed_p: float  # of candidates scoring lower; small means a result in the wrong direction
    permutation_p: float | None  # of candidates scoring higher, by relabelling; None above `MOST_RELABELLED` units
    permutations: int | None  # how many relabellings were drawn; None as above
    # Hedges' g; None where the scores differ by one unit alone, so that its error cannot be told
    effect: Estimate | None
    needed: Needed | None  # None where ``effect`` is

    @property
    def direction(self) -> str:
        """``higher``, or ``lower`` where the candidates' mean is below the controls'."""
        return "lower" if self.statistic < 0 else "higher"


@dataclass(frozen=True)
class _Side:
    """The units of one side: samples, summed score and summed squared score, both about the side's own mean."""

    mean: float
    size: _Float64  # (G,)
    total: _Float64  # (G,), sums to 0
    square: _Float64  # (G,)

    @cached_property
    def units(self) -> int:
        return len(self.size)

    @cached_property
    def samples(self) -> float:
        return float(self.size.sum())

    @cached_property
    def variance(self) -> float:
        """Of the mean."""
        return self.units / (self.units - 1) * float((self.total**2).sum()) / self.samples**2


def one_sided(groups: _Int64 | None, candidate: BoolArray) -> _Int64 | None:
    """The groups (N,), or None where some hold candidates and controls.

    These are shards of one source, of which the roles were drawn sample by sample: within a shard it was chance that
    made one image a candidate and another one a control, so that tests need no groups.
    """
    if groups is None or len(np.intersect1d(groups[candidate], groups[~candidate])):
        return None
    return groups


def dataset_test(
    scores: FloatArray, candidate: BoolArray, *, seed: int, groups: _Int64 | None = None, permutations: int = 9999
) -> DatasetTest:
    """Test whether the candidates score higher than the controls.

    The effect is Hedges' g (Journal of Educational Statistics, 1981): the difference of the means over the pooled
    standard deviation of the samples, times 1 - 3 / (4 (units - 2) - 1). Its interval is Student's with the jackknife
    over units (Arvesen, Annals of Mathematical Statistics, 1969) and Satterthwaite's degrees of freedom. With 50 to
    500 samples a side, standard deviations 1:1 and 2:1 and g of 0 to 2 it covers .944 to .964 of the time for normal
    scores and for gamma scores of skewness 1, .93 and more at skewness 2; the interval of equal normal variances falls
    to .82.

    Welch's p-value is approximate: with 60 candidates, 15 controls and exponential scores it alarmed at .05 in .094
    of 2,000 draws without a difference, the permutation test in .048. Where they differ, the permutation test counts.

    Work is bounded: at most 10 ** 8 labels are drawn, but never fewer than 999 permutations if as many are asked for.
    Above 10 ** 6 units the permutation test is left out: the relabelled statistic is then normal to any digit that
    999 draws could show, unless a few outliers or a handful of units on one side carry the variance.

    Args:
        scores: (N,) higher = more likely a member.
        candidate: (N,) bool, False = control.
        seed: of the relabellings.
        groups: (N,) integers, equal within a group; all of a group are candidates or all are controls.
        permutations: relabellings asked for, at least 1.

    Raises ShapeError: shapes differ, a group holds candidates and controls, or a side has fewer than 2 units;
    ConfigError: candidate is not boolean, groups are not integers, or permutations is below 1; NumericError: a score is
    NaN or infinite, or neither side's scores vary: t is then undefined, and a constant score is no evidence.

    Example:
        >>> scores = np.random.default_rng(0).standard_normal(200)
        >>> candidate = np.arange(200) < 100
        >>> result = dataset_test(scores + 0.5 * candidate, candidate, seed=0)
        >>> result.direction, result.permutations, result.permutation_p < 0.01
        ('higher', 9999, True)
    """
    check_range("permutations", permutations, 1)
    values, labels, ids = check_candidates(scores, candidate, groups)
    scaled = values / (float(np.abs(values).max()) or 1.0)
    scaled -= scaled.mean()
    inside, outside = (_side(scaled[rows], None if ids is None else ids[rows]) for rows in (labels, ~labels))
    grouped = ids is not None
    for name, side in (("candidates", inside), ("controls", outside)):
        if side.units < 2:
            kind = "groups" if grouped else "samples"
            raise ShapeError(f"a variance needs 2 {kind} on each side, got {side.units} of the {name}")
    variance, df = _welch(inside.variance, outside.variance, inside.units, outside.units)
    if variance * min(inside.units, outside.units) <= 1e-28:  # scores are at most 1 here: rounding
        raise NumericError("the scores vary neither among the candidates nor among the controls; t is undefined")
    statistic = (inside.mean - outside.mean) / math.sqrt(variance)
    units = inside.units + outside.units
    drawn = min(permutations, max(FEWEST_PERMUTATIONS, _WORK // units)) if units <= MOST_RELABELLED else None
    effect = _hedges(inside, outside)
    return DatasetTest(
        candidates=round(inside.samples),
        controls=round(outside.samples),
        candidate_groups=inside.units if grouped else None,
        control_groups=outside.units if grouped else None,
        statistic=statistic,
        df=df,
        welch_p=float(stdtr(df, -statistic)),
        reversed_p=float(stdtr(df, statistic)),
        permutation_p=None if drawn is None else _permutation_p(inside, outside, drawn, seed),
        permutations=drawn,
        effect=effect,
        needed=None if effect is None else _needed(effect, inside, outside),
    )


def check_candidates(
    scores: FloatArray, candidate: BoolArray, groups: _Int64 | None
) -> tuple[_Float64, BoolArray, _Int64 | None]:
    """The scores as float64, the mask and the groups numbered from 0, all (N,).

    Raises ShapeError, NumericError: shapes differ, a side is empty, a group is on both, or a score is not finite;
    ConfigError: candidate is not boolean, or groups are not integers.
    """
    values, labels = checked_scores(scores, candidate, "candidate")
    if labels.all() or not labels.any():
        raise ShapeError(f"candidates and controls are needed, got {labels.sum()} and {(~labels).sum()}")
    if groups is None:
        return values, labels, None
    distinct, ids = np.unique(checked_groups(groups, len(values)), return_inverse=True)
    inside = np.bincount(ids, labels)
    mixed = np.flatnonzero((inside > 0) & (inside < np.bincount(ids)))
    if len(mixed):
        raise ShapeError(f"group {distinct[mixed[0]]} holds candidates and controls, and so do {len(mixed) - 1} others")
    return values, labels, ids.astype(np.int64)


def _side(values: _Float64, ids: _Int64 | None) -> _Side:
    mean = float(values.mean())
    centred = values - mean
    parts = (np.ones(len(values)), centred, centred**2)
    if ids is None:
        return _Side(mean, *parts)
    _, unit = np.unique(ids, return_inverse=True)
    return _Side(mean, *(np.bincount(unit, part).astype(np.float64) for part in parts))


def _welch(variance_a: float, variance_b: float, units_a: float, units_b: float) -> tuple[float, float]:
    """Variance of the difference of two means, and Satterthwaite's degrees of freedom."""
    whole = variance_a + variance_b
    if whole == 0:
        return 0.0, units_a + units_b - 2
    share = variance_a / whole
    return whole, 1 / (share**2 / (units_a - 1) + (1 - share) ** 2 / (units_b - 1))


def _permutation_p(inside: _Side, outside: _Side, permutations: int, seed: int) -> float:
    """(1 + relabellings with a t at least as large as here) / (1 + permutations)."""
    size = np.concatenate([inside.size, outside.size])
    total = np.concatenate([side.total + side.size * side.mean for side in (inside, outside)])
    columns = np.stack([total, total**2] + ([] if (size == 1).all() else [size, size**2, total * size]))
    whole = columns.sum(axis=1, keepdims=True)
    units, chosen = len(size), min(inside.units, outside.units)
    sign = 1 if inside.units == chosen else -1  # the smaller side is drawn

    def statistics(picked: _Float64) -> _Float64:
        return sign * _studentised(picked, whole - picked, chosen, units - chosen)

    smaller = slice(None, chosen) if sign == 1 else slice(units - chosen, None)
    observed = float(statistics(columns[:, smaller].sum(axis=1, keepdims=True))[0])
    bar = observed - 1e-6 * abs(observed)  # equal relabellings are summed in another order
    generator = np.random.default_rng(seed % 2**64)
    rows, reached = max(1, _BATCH // units), 0
    for start in range(0, permutations, rows):
        keys = generator.random((min(rows, permutations - start), units))
        drawn = np.argpartition(keys, chosen - 1, axis=1)[:, :chosen]
        reached += int((statistics(np.stack([column[drawn].sum(axis=1) for column in columns])) >= bar).sum())
    return (1 + reached) / (1 + permutations)


def _studentised(first: _Float64, second: _Float64, units_first: int, units_second: int) -> _Float64:
    """Welch's t (R,) from sums over the units of each side (2 or 5, R).

    The sums are of totals, squared totals and, unless every unit is one sample, sizes, squared sizes and products. The
    variance is kept above 1e-9 of the mean square, beneath which these sums do not carry it.
    """
    means, variances = [], []
    for sums, units in ((first, units_first), (second, units_second)):
        total, square = sums[:2]
        size, size_square, product = sums[2:] if len(sums) > 2 else (units, units, total)
        mean = total / size
        deviations = np.maximum(square - 2 * mean * product + mean**2 * size_square, 1e-9 * square)
        means.append(mean)
        variances.append(units / (units - 1) * deviations / size**2)
    return np.asarray((means[0] - means[1]) / np.sqrt(variances[0] + variances[1]))


def _hedges(inside: _Side, outside: _Side) -> Estimate | None:
    samples = inside.samples + outside.samples
    squares = float(inside.square.sum() + outside.square.sum())
    gap = inside.mean - outside.mean
    variances = []
    for side, sign in ((inside, 1), (outside, -1)):
        left = side.samples - side.size
        pooled = (squares - side.square - side.total**2 / left) / (samples - side.size - 2)
        if pooled.min() <= 1e-12 * squares / (samples - 2):
            return None
        without = (gap - sign * side.total / left) / np.sqrt(pooled)
        variances.append((side.units - 1) * float(without.var()))
    variance, df = _welch(variances[0], variances[1], inside.units, outside.units)
    correction = 1 - 3 / (4 * (inside.units + outside.units - 2) - 1)
    value = correction * gap / math.sqrt(squares / (samples - 2))
    reach = float(stdtrit(df, 0.975)) * math.sqrt(variance)
    return Estimate(value, value - reach, value + reach, round(samples))


def _needed(effect: Estimate, inside: _Side, outside: _Side) -> Needed:
    samples = inside.samples + outside.samples
    deviation = math.sqrt((inside.square.sum() + outside.square.sum()) / (samples - 2))
    spreads = (inside.variance * inside.units, outside.variance * outside.units)
    ratio = outside.units / inside.units
    return Needed(
        *(_candidates_needed(size * deviation, *spreads, ratio) for size in (effect.value, effect.high, effect.low))
    )


def _candidates_needed(gap: float, spread_a: float, spread_b: float, ratio: float) -> int | None:
    """The smallest number of units, with ``ratio`` times as many controls, at which Welch's test has the power."""

    def powerful(units: int) -> bool:
        controls = max(2, math.ceil(units * ratio * (1 - 1e-12)))
        variance, df = _welch(spread_a / units, spread_b / controls, units, controls)
        power = 1 - float(nctdtr(df, gap / math.sqrt(variance), stdtrit(df, 1 - NEEDED_LEVEL)))
        return power >= NEEDED_POWER or math.isnan(power)  # NaN where the power is 1 to the last digit

    if gap <= 0 or not powerful(_MOST_NEEDED):
        return None
    below, enough = 1, 2
    while not powerful(enough):
        below, enough = enough, 2 * enough
    while enough - below > 1:
        middle = (below + enough) // 2
        below, enough = (below, middle) if powerful(middle) else (middle, enough)
    return enough
