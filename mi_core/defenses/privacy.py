"""The guarantee of noise on released weights.

A randomised training M is (epsilon, delta)-differentially private if P[M(D) in R] <= e^epsilon P[M(D') in R] + delta
for all adjacent data sets D, D' and all sets R of outcomes (Dwork and Roth, "The algorithmic foundations of
differential privacy", 2014, definition 2.4). Noise does so in proportion to the sensitivity: the largest distance
between the weights that two adjacent data sets lead to. What is guaranteed here holds

- for the data that the noisy weights were trained on, given everything else: not for the data of a frozen backbone;
- for noise that nobody else can compute: whoever has the seed has the weights without noise;
- for real numbers. Rounding of what is released is not covered (Mironov, "On significance of the least significant bits
  for differential privacy", CCS 2012);
- at a *sampled* sensitivity only as random differential privacy, see `random_dp_gamma`, and only at a scale that was
  chosen without the private data: a fixed one, or one from public data. The sampled sensitivity itself is computed from
  the private data. Noise that is calibrated by it has another scale on some of the adjacent data sets, and for these
  pairs there is no epsilon. The published methods have the same gap.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri, lambertw, log_ndtr, ndtr

from mi_core.checks import ConfigError, check_choice, check_range
from mi_core.defenses.sensitivity import LEAVE

NORMS = {"logistic": 1, "laplace": 1, "gaussian": 2}
"""Mechanisms, with the norm in which each one measures sensitivity."""
RULES = ("analytic", "classic")
_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Guarantee:
    """The guarantee of noise."""

    scale: float  # s of Logistic(0, s), b of Laplace(0, b), sigma of the Gaussian
    epsilon: float  # 0 or above; infinite where there is no noise
    delta: float  # 0 for logistic and Laplace noise


def guarantee(
    mechanism: str, scale: float, sensitivity: float, *, delta: float = 1e-5, rule: str = "analytic"
) -> Guarantee:
    """The guarantee of noise of a scale.

    Logistic and Laplace noise of scale s: epsilon = sensitivity / s (Yang, Gohari, Topcu, "Additive logistic mechanism
    for privacy-preserving self-supervised learning", 2022, proposition 4.1; Dwork and Roth, theorem 3.6). No smaller
    epsilon holds: far out the ratio of the densities comes as close to e^epsilon as one likes. Gaussian noise: the
    smallest epsilon at ``delta``, by the rule ``analytic`` (Balle and Wang, "Improving the Gaussian mechanism for
    differential privacy", ICML 2018, theorem 8: exact), or ``classic`` (Dwork and Roth, theorem A.1:
    epsilon = sqrt(2 ln(1.25 / delta)) sensitivity / sigma, proved below 1 only).

    Args:
        mechanism: a key of `NORMS`.
        scale: 0 or above; at 0 epsilon is infinite.
        sensitivity: above 0, in the mechanism's norm.
        delta: in (0, 1), of Gaussian noise; the others have 0.
        rule: of `RULES`, for Gaussian noise.

    Raises ConfigError: an argument is out of range, or the classic rule gives 1 or more.

    Example:
        >>> guarantee("logistic", scale=0.02, sensitivity=0.01).epsilon
        0.5
        >>> round(guarantee("gaussian", scale=1.0, sensitivity=1.0, delta=1e-5).epsilon, 3)
        4.377
    """
    _check(mechanism, sensitivity, delta, rule)
    check_range("scale", scale, 0, _LARGEST)
    if mechanism != "gaussian":
        return Guarantee(scale, sensitivity / scale if scale else math.inf, 0.0)
    if not scale:
        epsilon = math.inf
    elif rule == "classic":
        epsilon = _classic_factor(delta) * sensitivity / scale
        if epsilon >= 1:
            raise ConfigError(_classic_limit(epsilon))
    else:
        epsilon = _smallest(lambda one: _delta(sensitivity / scale, one) <= delta)
    return Guarantee(scale, epsilon, delta)


def calibrated(
    mechanism: str, epsilon: float, sensitivity: float, *, delta: float = 1e-5, rule: str = "analytic"
) -> Guarantee:
    """The smallest noise that guarantees an epsilon: the other direction of `guarantee`.

    The classic Gaussian rule is sigma^2 = 2 ln(1.25 / delta) sensitivity^2 / epsilon^2; the analytic one searches like
    Balle and Wang's algorithm 1.

    Args:
        mechanism, sensitivity, delta, rule: as in `guarantee`.
        epsilon: above 0; below 1 by the classic rule.

    Raises ConfigError: an argument is out of range.

    Example:
        >>> calibrated("laplace", epsilon=0.5, sensitivity=0.01).scale
        0.02
    """
    _check(mechanism, sensitivity, delta, rule)
    check_range("epsilon", epsilon, 0, _LARGEST, open_low=True)
    if mechanism != "gaussian":
        return Guarantee(sensitivity / epsilon, epsilon, 0.0)
    if rule == "classic":
        if epsilon >= 1:
            raise ConfigError(_classic_limit(epsilon))
        scale = _classic_factor(delta) * sensitivity / epsilon
    else:
        high = 1.0
        while _delta(high, epsilon) <= delta:
            high *= 2
        # the largest sensitivity / sigma whose delta is low enough, rounded down
        scale = sensitivity / _bisected(lambda ratio: _delta(ratio, epsilon) <= delta, 0.0, high)
    return Guarantee(scale, epsilon, delta)


def rescaled_epsilon(scales: tuple[float, float], distance: float, weights: int, *, delta: float = 1e-5) -> float:
    """The smallest epsilon between two releases whose Gaussian noise differs in scale, rounded up.

    Noise that is calibrated to the number of images has another scale where an image is missing. That shows in the
    length of the noise, the more the more weights there are. Between P = N(a, s^2 I) and Q = N(b, t^2 I) the privacy
    loss is L = w ln(t / s) + |x - b|^2 / (2 t^2) - |x - a|^2 / (2 s^2), and delta = P[L > epsilon] - e^epsilon
    Q[L > epsilon] (Balle and Wang, 2018, theorem 5), in both directions. Given the part of the noise across a - b,
    whose squared length is chi-squared with w - 1 degrees of freedom, L is a quadratic of the part along it. Where a
    and b are closer, delta is no larger: two balls overlap the more, the closer their centres are.

    Args:
        scales: s and t, above 0.
        distance: the largest of a and b, in the 2-norm, above 0.
        weights: w, at least 1.
        delta: in (0, 1).

    Raises ConfigError: an argument is out of range.

    Example:
        >>> round(rescaled_epsilon((1.0, 1.0), 1.0, 5), 3), round(rescaled_epsilon((1.0, 1.01), 1.0, 1000), 3)
        (4.377, 5.056)
    """
    for scale in scales:
        check_range("scale", scale, 0, _LARGEST, open_low=True)
    _check("gaussian", distance, delta, "analytic")
    check_range("weights", weights, 1)
    squares, shares = _chi_squared(weights - 1)

    def needed_delta(scale: float, other: float, epsilon: float) -> float:
        """P[L > epsilon] - e^epsilon Q[L > epsilon]."""
        ratio = scale / other
        bent = (ratio - 1) * (ratio + 1) / 2
        slope = -ratio * distance / other

        def more(lengths: npt.NDArray[np.float64], move: float, stretch: float) -> float:
            """The chance that L is above epsilon where the part along is move + stretch times a standard normal."""
            level = (distance / other) ** 2 / 2 - weights * math.log(ratio) + lengths * bent - epsilon
            root = slope**2 - 4 * bent * level
            far = (np.sqrt(np.maximum(root, 0)) - slope) / 2
            near = (level / far - move) / stretch
            if not bent:
                return float(shares @ ndtr(near))
            away = (far / bent - move) / stretch
            if bent < 0:  # between the roots
                chances = np.where(root > 0, ndtr(near) - ndtr(away), 0.0)
            else:
                chances = np.where(root > 0, ndtr(near) + ndtr(-away), 1.0)
            return float(shares @ chances)

        return more(squares, 0.0, 1.0) - math.exp(epsilon) * more(squares / ratio**2, distance / scale, 1 / ratio)

    return _smallest(lambda epsilon: all(needed_delta(*pair, epsilon) <= delta for pair in (scales, scales[::-1])))


def _chi_squared(degrees: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Nodes and weights of a mean over a chi-squared variable, by Gauss and Legendre on its normal quantile."""
    if not degrees:
        return np.zeros(1), np.ones(1)
    nodes, weights = np.polynomial.legendre.leggauss(400)
    normal = 9 * nodes
    return chdtri(degrees, ndtr(-normal)), 9 * weights * np.exp(-(normal**2) / 2) / math.sqrt(2 * math.pi)


def promised(numbers: Mapping[str, float]) -> tuple[float, float] | None:
    """The (epsilon, delta) that a defense promises, from the numbers that it reports; None: it promises nothing.

    Example:
        >>> promised({"epsilon_rdp": 2.0, "delta": 1e-5}), promised({"scale": 0.1})
        ((2.0, 1e-05), None)
    """
    epsilon = numbers.get("epsilon_rdp", numbers.get("epsilon", math.inf))
    return (epsilon, numbers.get("delta", 0.0)) if math.isfinite(epsilon) else None


def present_or_not(adjacencies: Sequence[str], numbers: Mapping[str, float]) -> tuple[float, float] | None:
    """The (epsilon, delta) of a fitted defense about one image that is there or not; None: it promises none.

    A promise about a replaced image says nothing of it. Only a mechanism that is known may have such an epsilon too.

    Args:
        adjacencies: that its promise is about, as `base.Defense.adjacencies`.
        numbers: as `promised`.

    Example:
        >>> told, also = {"epsilon": 1.0, "delta": 1e-5}, {"epsilon_leave_one_out": 1.3}
        >>> present_or_not(["replace-one"], told), present_or_not(["replace-one"], told | also)
        (None, (1.3, 1e-05))
    """
    if LEAVE in adjacencies:
        return promised(numbers)
    epsilon = numbers.get("epsilon_leave_one_out")
    return None if epsilon is None else (epsilon, numbers.get("delta", 0.0))


def standard_deviation(mechanism: str, scale: float) -> float:
    """Of one weight's noise: pi s / sqrt(3) of the logistic, sqrt(2) b of the Laplace, sigma of the Gaussian.

    So at equal epsilon logistic noise has pi^2 / 6 = 1.645 times the variance of Laplace noise.

    Raises ConfigError: no such mechanism, or a negative or infinite scale.
    """
    check_choice("mechanism", mechanism, NORMS)
    check_range("scale", scale, 0, _LARGEST)
    return {"logistic": math.pi / math.sqrt(3), "laplace": math.sqrt(2), "gaussian": 1.0}[mechanism] * scale


def random_dp_gamma(pairs: int) -> float:
    """The gamma of random differential privacy at the largest of m sampled sensitivities.

    With probability 1 - gamma over the draw of the m pairs and of one further pair, noise of epsilon at the largest of
    the m distances keeps epsilon for that further pair. gamma = rho + sqrt(ln(1 / rho) / (2 m)) at its smallest,
    rho = exp(W(-1 / (4 m)) / 2), W Lambert's function, branch -1 (Rubinstein and Alda, "Pain-free random differential
    privacy with sensitivity sampling", ICML 2017, section 4). It is about pairs drawn as the sampled ones were: of one
    data set, if they were. As an upper bound it is generous: by symmetry the further distance is the largest of all
    m + 1 with probability at most 1 / (m + 1).
    It counts only for a scale that was chosen without the private data, as a fixed one is.

    There are m pairs, at least 1, drawn independently.

    Returns in (0, 1]; 1 where so few pairs say nothing.
    Raises ConfigError: there is no pair.

    Example:
        >>> round(random_dp_gamma(500), 3)
        0.077
    """
    check_range("pairs", pairs, 1)
    rho = math.exp(lambertw(-1 / (4 * pairs), -1).real / 2)
    return min(1.0, rho + math.sqrt(-math.log(rho) / (2 * pairs)))


def pairs_for_gamma(gamma: float) -> int:
    """How many pairs to sample for a wanted gamma: the other direction of `random_dp_gamma`, rounded up.

    m = ceil(ln(1 / rho) / (2 (gamma - rho)^2)) with rho = exp(W(-gamma / (2 sqrt(e))) + 1 / 2), branch -1 (Rubinstein
    and Alda, 2017, section 4).

    Raises ConfigError: gamma is not within (0, 1).

    Example:
        >>> pairs_for_gamma(0.05)
        1305
    """
    check_range("gamma", gamma, 0, 1, open_low=True, open_high=True)
    rho = math.exp(lambertw(-gamma / (2 * math.sqrt(math.e)), -1).real + 0.5)
    return math.ceil(-math.log(rho) / (2 * (gamma - rho) ** 2))


def utility_loss(noisy: float, clean: float) -> float:
    """1 - M(noisy) / M(clean) of a measure M of utility (Yang, Gohari, Topcu, 2022, definition 6.1).

    Negative where noise happened to help.

    Raises ConfigError: a value is negative or not finite, or the clean one is 0.

    Example:
        >>> utility_loss(0.75, 1.0)
        0.25
    """
    check_range("utility with noise", noisy, 0, _LARGEST)
    check_range("utility without noise", clean, 0, _LARGEST, open_low=True)
    return (clean - noisy) / clean


def _check(mechanism: str, sensitivity: float, delta: float, rule: str) -> None:
    check_choice("mechanism", mechanism, NORMS)
    check_range("sensitivity", sensitivity, 0, _LARGEST, open_low=True)
    check_choice("rule", rule, RULES)
    check_range("delta", delta, 0, 1, open_low=True, open_high=True)


def _classic_factor(delta: float) -> float:
    return math.sqrt(2 * math.log(1.25 / delta))


def _classic_limit(epsilon: float) -> str:
    return f"epsilon = {epsilon:.4g}, but the classic Gaussian rule is proved below 1 only; take rule analytic"


def _delta(ratio: float, epsilon: float) -> float:
    """The smallest delta of Gaussian noise at an epsilon (Balle and Wang, 2018, theorem 8).

    delta = Phi(r / 2 - epsilon / r) - e^epsilon Phi(-r / 2 - epsilon / r), where r = sensitivity / scale is the ratio;
    in logarithms, so that neither e^epsilon overflows nor the tails vanish.
    """
    if not ratio or math.isinf(epsilon):
        return 0.0
    first = float(log_ndtr(ratio / 2 - epsilon / ratio))
    second = epsilon + float(log_ndtr(-ratio / 2 - epsilon / ratio))
    return math.exp(first) * -math.expm1(min(0.0, second - first))


def _smallest(holds: Callable[[float], bool]) -> float:
    """The smallest epsilon for which a condition holds, rounded up."""
    if holds(0.0):
        return 0.0
    high = 1.0
    while not holds(high):
        high *= 2
    return _bisected(holds, high, 0.0)


def _bisected(holds: Callable[[float], bool], inside: float, outside: float) -> float:
    """The last number from ``inside``, where a condition holds, towards ``outside``, where it does not."""
    while (middle := (inside + outside) / 2) not in (inside, outside):
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return inside
