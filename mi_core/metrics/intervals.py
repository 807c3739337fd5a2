"""Intervals of rates: Clopper and Pearson, "The use of confidence or fiducial limits" (Biometrika, 1934).

The interval is exact: for a threshold fixed elsewhere its coverage is never below the confidence. It also holds
when the samples do not share one rate (members and non-members, several runs), because a sum of different
Bernoulli variables varies less than a binomial of the same mean (Hoeffding, 1956).
"""

from __future__ import annotations

from scipy.special import betaincinv

from mi_core.checks import ConfigError, check_range
from mi_core.records import Estimate

NORMAL_95 = 1.959963984540054  # two-sided 95 % quantile of the standard normal


def clopper_pearson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a rate: ``successes`` of ``n`` independent trials.

    Args:
        successes: 0 to n.
        n: number of trials, at least 1.
        confidence: in (0, 1].

    Returns:
        low and high, in [0, 1].

    Raises:
        ConfigError: n is below 1, successes are not within [0, n], or confidence is not within (0, 1].

    Example:
        >>> low, high = clopper_pearson(8, 10)
        >>> round(low, 4), round(high, 4)
        (0.4439, 0.9748)
    """
    if n < 1:
        raise ConfigError(f"n = {n}, but a rate needs at least 1 sample")
    check_range("successes", successes, 0, n)
    check_range("confidence", confidence, 0.0, 1.0, open_low=True)
    tail = (1 - confidence) / 2
    low = float(betaincinv(successes, n - successes + 1, tail)) if successes > 0 else 0.0
    high = float(betaincinv(successes + 1, n - successes, 1 - tail)) if successes < n else 1.0
    return low, high


def rate(successes: int, n: int) -> Estimate:
    """``successes / n`` with its Clopper-Pearson interval; raises as `clopper_pearson` does.

    Example:
        >>> rate(0, 10).value
        0.0
    """
    low, high = clopper_pearson(successes, n)
    return Estimate(successes / n, low, high, n)
