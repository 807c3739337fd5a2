"""The test of each design of a lot: exact p-values, and e-values that hold whenever the owner stops.

*Null hypothesis*: the encoder does not depend on how the coins fell. Then its scores are fixed numbers, and the coins
are as random as they were when they were drawn. Nothing is assumed of images, encoder or attack (Fisher, "The design of
experiments", 1935; for membership Huang, Gong and Reiter, CCS 2024).

*Held back.* Scores become normal scores: they are aligned by stratum, ranked, and the ranks sent through the inverse
normal distribution (van der Waerden). The statistic is the sum over the images held back, which is low if the others
were used; its distribution is that over all draws with the same numbers in each stratum. Alignment takes the strata's
means out, shrunken to the common mean as far as these vary by chance (Hodges and Lehmann, Annals of Mathematical
Statistics, 1962).

*Captions.* One of K captions of an image is published by a fair die, the others stay private (as Rastogi, Maini and
Pruthi, ICML 2025, with rephrased texts). Each caption's score less the mean of the image's others becomes a normal
score; the statistic is the sum over the published captions, against all throws of the dice.

Both p-values count random draws, (1 + as extreme) / (1 + drawn), so that they are valid at any number of these (Phipson
and Smyth, 2010). The score of an image for *held back* does not depend on the
dice of captions. So the p-values of both designs are independent under the null, and Fisher's method joins them
exactly.

*E-values.* A gambler bets on coin after coin, against the chances that are left in each stratum, at the odds of a
mixture of alternatives: a share w of the images was used, which moves the normal score by delta. His wealth is a
martingale from 1 under the null, so that it ever reaches 100 with probability at most .01 (Ville, 1939; Ramdas et al.,
"Game-theoretic statistics and safe anytime-valid inference", Statistical Science, 2023). Scores are ranked among those
that were seen up to the same *wave*: the bets of a wave know the scores of the wave, but none of its coins.

Letters: N units, S strata, K captions, J alternatives.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, gammaincc, gammainccinv, logit, logsumexp, ndtri, softmax

from mi_core.checks import ConfigError, check_finite, check_range, check_shape
from mi_core.metrics.delong import mean_ranks
from mi_core.records import BoolArray, FloatArray
from mi_core.runtime import compiled

DRAWS = 99_999
"""Random draws of a p-value, unless there are so many images that it would take long."""
ALTERNATIVES = tuple((share, shift) for share in (1.0, 0.2) for shift in (0.3, 0.7, 1.5, 3.0))
"""What the gambler mixes: shares that were used, and by how much that moves their normal scores."""
_STAKED = tuple(0.2 if share == 1 else 0.05 for share, _ in ALTERNATIVES)
"""How much of his wealth he begins with on each."""
_WORK = 4 * 10**8  # coins drawn in all, as long as that leaves _FEWEST draws
_FEWEST = 999
_Float64 = npt.NDArray[np.float64]
_Int64 = npt.NDArray[np.int64]


def held_back_p_value(
    scores: FloatArray, held_back: BoolArray, strata: _Int64, *, seed: int, draws: int = DRAWS
) -> float:
    """The chance of so low a sum over the images held back, over the draw of the lot.

    Args:
        scores: (N,) higher = more likely used.
        held_back: (N,) which units were not published.
        strata: (N,) numbers within which the units were drawn.
        seed: of the random draws.
        draws: how many, at least 1; fewer, but at least 999, are made of lots of many images.

    Returns:
        1 where nothing was drawn: no stratum has both kinds.

    Raises:
        ShapeError, ConfigError, NumericError: arrays do not fit, draws is below 1, or a score is not finite.
    """
    values, held, numbers = _checked(scores, held_back, strata)
    check_range("draws", draws, 1)
    normal = normal_scores(aligned(values, numbers))
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    sizes = np.diff(starts, append=len(order))
    counts = np.add.reduceat(held[order].astype(np.int64), starts) if len(order) else starts
    if not ((counts > 0) & (counts < sizes)).any():
        return 1.0
    sums = np.empty(_number_of_draws(draws, int(counts.sum())))
    _sums_of_subsets(normal[order].copy(), starts, sizes, counts, np.random.default_rng(seed % 2**64), sums)
    return _share_below(sums, float(normal[held].sum()))


def chosen_p_value(scores: FloatArray, chosen: _Int64, *, seed: int, draws: int = DRAWS) -> float:
    """The chance of so high a sum over the published captions, over fair dice.

    Args:
        scores: (N, K) of each image with each of its captions, K at least 2.
        chosen: (N,) 0 to K - 1, which was published.
        seed, draws: as in `held_back_p_value`.

    Returns:
        1 where the captions of each image score alike.

    Raises:
        ShapeError, ConfigError, NumericError: as `held_back_p_value`.
    """
    count, _ = check_shape("scores", scores, "N K")
    check_shape("chosen", chosen, "N", N=count)
    check_range("draws", draws, 1)
    check_finite("scores", scores)
    normal = contrasts(np.asarray(scores, dtype=np.float64))
    if not np.ptp(normal, axis=1).any():
        return 1.0
    sums = np.empty(_number_of_draws(draws, count))
    _sums_of_choices(normal, np.random.default_rng(seed % 2**64), sums)
    return _share_below(-sums, -float(normal[np.arange(count), chosen].sum()))


def joined_p_value(p_values: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """Fisher's method for independent p-values; of one it is that one.

    With weights each is the quantile of a gamma distribution whose shape is its weight over their mean, as Lancaster
    has it (Australian Journal of Statistics, 1961). A larger p-value never makes the result smaller.

    Args:
        p_values: each in (0, 1].
        weights: above 0, such as numbers of images; None: all alike.

    Raises:
        ConfigError: there is none, or one is out of its range.

    Example:
        >>> round(joined_p_value([0.05, 0.05]), 4), joined_p_value([0.2])
        (0.0175, 0.2)
        >>> round(joined_p_value([0.05, 1], [3, 1]), 4), round(joined_p_value([0.05, 1], [1, 3]), 4)
        (0.0986, 0.4279)
    """
    if not p_values:
        raise ConfigError("no p-value is given")
    shapes = np.ones(len(p_values)) if weights is None else np.asarray(weights) / np.mean(weights)
    for each, shape in zip(p_values, shapes, strict=True):
        check_range("p-value", each, 0, 1, open_low=True)
        check_range("weight", shape, 0, open_low=True)
    if len(p_values) == 1:
        return float(p_values[0])
    return float(gammaincc(shapes.sum(), math.fsum(gammainccinv(shapes, p_values))))


def held_back_bets(
    scores: FloatArray,
    held_back: BoolArray,
    strata: _Int64,
    waves: _Int64,
    sizes: npt.ArrayLike,
    left_back: npt.ArrayLike,
) -> _Float64:
    """The gains of a gambler with every coin of N units that were asked about, as logarithms (N, J).

    Sums over the units are logarithms of his wealth with each alternative; `wealth` mixes them.

    Args:
        scores: (N,) in the order of the bets, which must not depend on the coins.
        held_back: (N,) how the coins fell.
        strata: (N,) from 0 to S - 1.
        waves: (N,) ascending numbers; scores of a wave are ranked among those up to it.
        sizes: (S,) units of each stratum in the lot, asked about or not.
        left_back: (S,) units held back in each.

    Raises:
        ShapeError, ConfigError, NumericError: arrays do not fit, waves do not ascend, or a stratum holds fewer units
            than are given.
    """
    values, held, numbers = _checked(scores, held_back, strata)
    check_shape("waves", waves, "N", N=len(values))
    left, back = np.asarray(sizes, dtype=np.int64), np.asarray(left_back, dtype=np.int64)
    asked, asked_back = (np.bincount(numbers[rows], minlength=len(left)) for rows in (slice(None), held))
    if (np.diff(waves) < 0).any():
        raise ConfigError("waves do not ascend")
    if (
        len(asked) > len(left)
        or (asked > left).any()
        or (asked_back > back).any()
        or (asked - asked_back > left - back).any()
    ):
        raise ConfigError("a stratum holds fewer units than are given")
    normal = _by_wave(waves, lambda rows: normal_scores(aligned(values[rows], numbers[rows])))
    # chances that are left in the stratum before each coin
    order = np.argsort(numbers, kind="stable")
    before, before_back = (_before(part[order], numbers[order]) for part in (np.ones(len(held), np.int64), held))
    chance = np.empty(len(held))
    chance[order] = 1 - (back[numbers[order]] - before_back) / (left[numbers[order]] - before)
    return _log_gains(normal, ~held, chance, 1 - back.sum() / left.sum())


def chosen_bets(scores: FloatArray, chosen: _Int64, waves: _Int64) -> _Float64:
    """The same for the dice of captions: gains (N, J) as logarithms.

    Args:
        scores: (N, K) as in `chosen_p_value`, in an order that does not depend on the dice.
        chosen: (N,) which was published.
        waves: (N,) as in `held_back_bets`; scores are ranked among those up to the wave.

    Raises:
        ShapeError, NumericError: arrays do not fit, or a score is not finite.
    """
    count, kinds = check_shape("scores", scores, "N K")
    check_shape("waves", waves, "N", N=count)
    check_finite("scores", scores)
    values = np.asarray(scores, dtype=np.float64)
    normal = _by_wave(waves, lambda rows: contrasts(values[rows]))
    # with a shift of delta for what was used, a normal score of x has odds of exp(delta x) to be that of the published
    said = [share * softmax(shift * normal, axis=1) + (1 - share) / kinds for share, shift in ALTERNATIVES]
    return np.log(kinds * np.stack([chance[np.arange(count), chosen] for chance in said], axis=1))


def wealth(gains: _Float64) -> _Float64:
    """The logarithm of a gambler's wealth after each of N bets, who begins with 1 on all `ALTERNATIVES`: (N,)."""
    check_shape("gains", gains, "N J", J=len(ALTERNATIVES))
    return np.asarray(logsumexp(np.cumsum(gains, axis=0), axis=1, b=np.array(_STAKED)))


def any_time_p_value(log_wealth: _Float64) -> float:
    """1 / the most wealth that the gambler ever had, at most 1: valid whenever somebody stops (Ville, 1939)."""
    return math.exp(-max(0.0, float(log_wealth.max()))) if len(log_wealth) else 1.0


def normal_scores(values: _Float64) -> _Float64:
    """Van der Waerden's scores (N,): the normal quantile of rank / (N + 1), with mean ranks for ties."""
    return np.asarray(ndtri(mean_ranks(values) / (len(values) + 1)))


def aligned(values: _Float64, strata: _Int64) -> _Float64:
    """Values (N,) less the mean of their stratum, as far as it differs from the common mean by more than chance."""
    names, numbers, counts = np.unique(strata, return_inverse=True, return_counts=True)
    if len(names) == 1:
        return np.asarray(values - values.mean())
    means = np.bincount(numbers, values) / counts
    degrees = len(values) - len(names)
    if degrees == 0:
        return np.asarray(values - values.mean())
    within = float(((values - means[numbers]) ** 2).sum()) / degrees
    spread = float((counts * (means - values.mean()) ** 2).sum()) - (len(names) - 1) * within
    common = (len(values) - float((counts**2).sum()) / len(values)) / (len(names) - 1)
    between = max(0.0, spread / (len(names) - 1) / common)
    shrink = between / (between + within / counts) if between else np.zeros(len(names))
    return np.asarray(values - values.mean() - (shrink * (means - values.mean()))[numbers])


def contrasts(scores: _Float64) -> _Float64:
    """Normal scores (N, K) of each caption's score less the mean of the image's other captions."""
    count, kinds = scores.shape
    apart = (scores - scores.mean(axis=1, keepdims=True)) * kinds / (kinds - 1)
    return normal_scores(apart.ravel()).reshape(count, kinds)


def _by_wave(waves: _Int64, score: Any) -> _Float64:
    """Scores (N,) or (N, K) of each wave among all up to it."""
    ends = np.searchsorted(waves, np.unique(waves), "right").tolist()
    parts = [score(slice(0, end))[start:] for start, end in itertools.pairwise([0, *ends])]
    return np.concatenate(parts) if parts else np.empty(0)


def _before(part: npt.NDArray[Any], numbers: _Int64) -> _Int64:
    """The sum of what stands before each entry in its stratum; entries are sorted by stratum."""
    total = np.cumsum(part) - part
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    return np.asarray(total - np.repeat(total[starts], np.diff(starts, append=len(numbers))), dtype=np.int64)


def _log_gains(normal: _Float64, published: BoolArray, chance: _Float64, usual: float) -> _Float64:
    """Logarithms of p / q for coins that fell on what had the chance q, where an alternative says p: (N, J)."""
    gains = np.zeros((len(normal), len(ALTERNATIVES)))
    open_ = (chance > 0) & (chance < 1)  # else the stratum left no choice
    odds = logit(chance[open_])
    for number, (share, shift) in enumerate(ALTERNATIVES):
        tilt = _tilt(normal[open_], share, shift) - _offset(share, shift, usual)
        said = expit(odds + tilt)
        up = published[open_]
        gains[open_, number] = np.log(np.where(up, said / chance[open_], (1 - said) / (1 - chance[open_])))
    return gains


def _tilt(normal: _Float64, share: float, shift: float) -> _Float64:
    """The logarithm of the likelihood ratio of published to held back at a normal score."""
    used = shift * normal - shift**2 / 2
    return used if share == 1 else np.logaddexp(math.log1p(-share), math.log(share) + used)


def _offset(share: float, shift: float, usual: float) -> float:
    """The offset that makes the chances of an alternative right on average over all scores."""
    tilt = _tilt(ndtri((np.arange(256) + 0.5) / 256), share, shift)
    low, high = float(tilt.min()), float(tilt.max())
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expit(logit(usual) + tilt - middle).mean() > usual else (low, middle)
    return low


def _share_below(sums: _Float64, observed: float) -> float:
    """The share of draws, the observed one among them, with sums as low."""
    return (1 + int((sums <= observed + 1e-9 * max(1.0, abs(observed))).sum())) / (1 + len(sums))


def _number_of_draws(wanted: int, coins: int) -> int:
    return min(wanted, max(_FEWEST, _WORK // max(1, coins)))


def _checked(scores: FloatArray, held_back: BoolArray, strata: _Int64) -> tuple[_Float64, BoolArray, _Int64]:
    (count,) = check_shape("scores", scores, "N")
    check_shape("held_back", held_back, "N", N=count)
    check_shape("strata", strata, "N", N=count)
    if np.asarray(held_back).dtype != bool:
        raise ConfigError("held_back is not boolean")
    check_finite("scores", scores)
    return np.asarray(scores, dtype=np.float64), np.asarray(held_back), np.asarray(strata, dtype=np.int64)


@compiled
def _sums_of_subsets(values: Any, starts: Any, sizes: Any, counts: Any, generator: Any, sums: Any) -> None:
    """Fill ``sums`` (R,) with the sums over random subsets: ``counts`` of ``sizes`` from every stratum."""
    for draw in range(len(sums)):
        total = 0.0
        for stratum in range(len(starts)):
            start, size = starts[stratum], sizes[stratum]
            for place in range(counts[stratum]):  # the first steps of a Fisher-Yates shuffle
                other = place + int(generator.random() * (size - place))
                value = values[start + other]
                values[start + other] = values[start + place]
                values[start + place] = value
                total += value
        sums[draw] = total


@compiled
def _sums_of_choices(values: Any, generator: Any, sums: Any) -> None:
    """Fill ``sums`` (R,) with the sums of one value, by a fair die, of every row of (N, K)."""
    for draw in range(len(sums)):
        total = 0.0
        for row in range(len(values)):
            total += values[row, int(generator.random() * values.shape[1])]
        sums[draw] = total
