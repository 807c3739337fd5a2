"""What differential privacy allows a membership attack: the bound that guarantees are tested against."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import stats
from scipy.optimize import brentq


def highest_tpr(epsilon: float, delta: float, fpr: float) -> float:
    """The largest true-positive rate that (epsilon, delta) allows a membership attack at a false-positive rate.

    min(e^epsilon FPR + delta, 1 - e^-epsilon (1 - delta - FPR), 1): the definition, for what the attack calls members
    and for what it does not (Kairouz, Oh, Viswanath, "The composition theorem for differential privacy", ICML 2015,
    theorem 2.1).
    """
    return min(math.exp(epsilon) * fpr + delta, 1 - math.exp(-epsilon) * (1 - delta - fpr), 1.0)


def slow_epsilon(scales: Sequence[float], distance: float, weights: int, delta: float) -> float:
    """Epsilon between N(a, s^2 I) and N(b, t^2 I), s unlike t: where one is likelier by e^epsilon is a ball.

    Its centre is (a / s^2 - b / t^2) / k with k = 1 / s^2 - 1 / t^2, so its masses are noncentral chi-squared.
    """

    def larger(s: float, t: float, epsilon: float) -> float:
        k = 1 / s**2 - 1 / t**2
        radius = (weights * math.log(t / s) + distance**2 / (2 * s**2 * t**2 * k) - epsilon) / (k / 2)
        mass = stats.ncx2.cdf if k > 0 else stats.ncx2.sf
        first = mass(radius / s**2, weights, (distance / (t**2 * k) / s) ** 2)
        return float(first - math.exp(epsilon) * mass(radius / t**2, weights, (distance / (s**2 * k) / t) ** 2))

    first, second = scales
    both = ((first, second), (second, first))
    return max(float(brentq(lambda epsilon, s=s, t=t: larger(s, t, epsilon) - delta, 0, 20)) for s, t in both)
