"""How much a training memorises of each image, from shadow encoders that saw it and shadow encoders that did not.

The definition (Feldman, "Does learning require memorization?", STOC 2020; for encoders Wang et al., "Memorization in
self-supervised learning improves downstream generalization", ICLR 2024, section 3): m(x) is the expected alignment of x
under encoders trained with x, less that under encoders trained without it. Alignment is a number per image and
encoder that is higher where the encoder treats the image as it treats what it was trained on.

**The estimate.** Shadows come in pairs that were trained on complementary halves of the images. So of each pair one
saw x and the other did not, and their difference d_k(x), k = 1..P, is one draw of memorisation. Encoders differ in
their alignment of all images alike; so the mean of each encoder over all images, half of which it saw, is subtracted
first. m(x) is the mean of its P differences.

**The interval per image.** Two shadows of a pair are not independent: an image that is like x stands either in the
half with x or in the half without it, and so moves both. Pairs are independent. The interval is therefore that of
P differences, by Student's t with P - 1 degrees of freedom; neither Welch's nor a pooled variance of single shadows
knows of the dependence within pairs. With few pairs the variance of one image is known badly, so it is drawn towards
that of all images (Smyth, "Linear models and empirical Bayes methods for assessing differential expression in
microarray experiments", 2004, sections 4 and 6.2): variances s^2(x) are taken to be draws around s0^2 with the weight
of d0 further degrees of freedom; both are estimated from the spread of log s^2(x) over the images. The interval holds
the truth in 95 % of images on average over images, not for each image by itself.

**The mean over images.** Pairs of shadows are the random units, and the images are those at hand: the interval is
Student's of P means, with P - 1 degrees of freedom. It says what other shadows would give for the same images.

Letters: K shadows, P pairs of them, N images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import polygamma, psi, stdtr, stdtrit

from mi_core.checks import NumericError, check_finite, check_shape
from mi_core.records import BoolArray, Estimate, FloatArray

LEAST_PAIRS = 2
"""Pairs of shadows that an interval takes."""

_Float64 = npt.NDArray[np.float64]
_LEAST = 1e-12  # below this a deviation is rounding
_MOST = 1e6  # degrees of freedom beyond which Student's distribution is the normal one


@dataclass(frozen=True)
class Memorisation:
    """The memorisation of N images."""

    value: _Float64  # (N,) memorisation, in the unit of the alignment; about 0: none
    low: _Float64  # low, high: (N,) the 95 % interval
    high: _Float64
    p_value: _Float64  # (N,) in (0, 1), one-sided, for "at most 0"
    mean: Estimate  # over the images; its n is N
    pairs: int  # P
    degrees: float  # of freedom of each image's interval, P - 1 and those lent by the other images


def memorisation(alignment: FloatArray, inside: BoolArray) -> Memorisation:
    """Memorisation of each image and in the mean, see the module.

    Args:
        alignment: (K, N) of each image by each shadow, higher = more like what it was trained on.
        inside: (K, N) which shadow was trained on which image. Shadows without a counterpart are left out.

    Raises ShapeError: the two differ in shape; NumericError: fewer than 2 pairs, or an alignment is NaN or infinite.

    Example:
        >>> saw = np.array([[True, False], [False, True]] * 2)
        >>> found = memorisation(np.where(saw, 0.5, 0.25), saw)
        >>> found.value.tolist(), found.pairs
        ([0.25, 0.25], 2)
    """
    shadows, images = check_shape("alignment", alignment, "K N")
    check_shape("inside", inside, "K N", K=shadows, N=images)
    check_finite("alignment", alignment)
    pairs = pairs_of(inside)
    if len(pairs) < LEAST_PAIRS:
        raise NumericError(
            f"memorisation needs {LEAST_PAIRS} pairs of shadows that were trained on complementary halves, "
            f"got {len(pairs)}"
        )
    level = np.asarray(alignment, dtype=np.float64)
    level = level - level.mean(axis=1, keepdims=True)
    first, second = np.array(pairs).T
    # (P, N) alignment by the shadow of each pair that saw the image, less that by the other one
    found = (level[first] - level[second]) * np.where(inside[first], 1, -1)
    value, count = found.mean(axis=0), len(pairs)
    variance, degrees = moderated(found.var(axis=0, ddof=1), count - 1)
    error = np.maximum(np.sqrt(variance / count), _LEAST)
    margin = stdtrit(min(degrees, _MOST), 0.975) * error
    p_value = stdtr(min(degrees, _MOST), -value / error)
    means = found.mean(axis=1)  # the pairs of shadows are the random units
    reach = float(stdtrit(count - 1, 0.975) * means.std(ddof=1) / math.sqrt(count))
    whole = float(means.mean())
    mean = Estimate(whole, whole - reach, whole + reach, images)
    return Memorisation(value, value - margin, value + margin, p_value, mean, count, degrees)


def pairs_of(inside: BoolArray) -> list[tuple[int, int]]:
    """Rows of shadows (K, N) that were trained on complementary halves, each row in one pair at most.

    Example:
        >>> pairs_of(np.array([[True, False], [True, True], [False, True]]))
        [(0, 2)]
    """
    waiting: dict[bytes, list[int]] = {}
    pairs = []
    for row, saw in enumerate(inside):
        partners = waiting.get((~saw).tobytes(), [])
        if partners:
            pairs.append((partners.pop(0), row))
        else:
            waiting.setdefault(saw.tobytes(), []).append(row)
    return sorted(pairs)


def moderated(variances: _Float64, degrees: int) -> tuple[_Float64, float]:
    """Variances drawn towards their common size, and their degrees of freedom with those lent (Smyth 2004, 6.2).

    Args:
        variances: (N,) >= 0, each from ``degrees`` degrees of freedom, at least 1.
        degrees: d.

    Returns (N,) variances, and d0 + d; infinite where the variances differ by no more than chance.
    """
    usual = float(np.median(variances))
    logs = np.log(np.maximum(variances, max(1e-5 * usual, _LEAST**2)))
    logs = logs - psi(degrees / 2) + math.log(degrees / 2)
    centre = float(logs.mean())
    excess = float(logs.var(ddof=1)) - float(polygamma(1, degrees / 2)) if len(logs) > 1 else 0.0
    if excess <= float(polygamma(1, _MOST)):
        return np.full(len(variances), math.exp(centre)), math.inf
    from scipy.optimize import brentq  # slow to load, and most processes do without

    half = float(brentq(lambda x: float(polygamma(1, x)) - excess, 1e-6, _MOST))  # the inverse of trigamma
    prior = math.exp(centre + float(psi(half)) - math.log(half))
    lent = 2 * half
    return np.asarray((lent * prior + degrees * variances) / (lent + degrees)), lent + degrees
