"""Several p-values at once: corrected for their number, or combined into one.

Holm, "A simple sequentially rejective multiple test procedure" (Scandinavian Journal of Statistics, 1979); Liu and Xie,
"Cauchy combination test" (Journal of the American Statistical Association, 2020).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mi_core.checks import ConfigError, check_range

_Float64 = npt.NDArray[np.float64]


def holm(p_values: Sequence[float], *, family: int = 0) -> list[float]:
    """Adjusted p-values, in the same order, that keep the chance of any false claim (Holm, 1979).

    Args:
        p_values: each in [0, 1], at least one, however dependent.
        family: how many there are in all, of which some are not known any more; they count as if they were larger.

    Returns:
        in [0, 1]; the order of size is kept.

    Raises:
        ConfigError: no p-value, or one outside [0, 1].

    Example:
        >>> holm([0.01, 0.5, 0.02])
        [0.03, 0.5, 0.04]
        >>> holm([0.01], family=24)
        [0.24]
    """
    values = _checked_p_values(p_values)
    order = np.argsort(values, kind="stable")
    steps = np.maximum.accumulate(values[order] * (max(family, len(values)) - np.arange(len(values))))
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(steps, 1.0)
    return [float(value) for value in adjusted]


def cauchy_combination(p_values: Sequence[float]) -> float:
    """One p-value from several dependent ones, such as those of several seeds on the same samples.

    The mean of cot(pi p) against the standard Cauchy distribution (Liu and Xie, "Cauchy combination test", Journal of
    the American Statistical Association, 2020): exact for independent and for equal p-values, and close for small
    p-values under other dependence. A p-value of 0 is read as the smallest normal float and one of 1 as the largest
    float below 1, which is what rounding made of them: one 0 outweighs everything, one 1 everything above 1e-16.

    Args:
        p_values: each in [0, 1], at least one.

    Returns:
        in (0, 1).

    Raises:
        ConfigError: no p-value, or one outside [0, 1].

    Example:
        >>> round(cauchy_combination([0.01, 0.01, 0.01]), 6)
        0.01
    """
    values = np.clip(_checked_p_values(p_values), np.finfo(np.float64).tiny, 1 - 2.0**-53)
    cotangents = np.where(values < 0.5, 1, -1) / np.tan(np.pi * np.minimum(values, 1 - values))
    return float(np.arctan2(1.0, np.mean(cotangents)) / np.pi)


def _checked_p_values(p_values: Sequence[float]) -> _Float64:
    if not len(p_values):
        raise ConfigError("0 p-values, expected at least 1")
    for value in p_values:
        check_range("p-value", value, 0.0, 1.0)
    return np.asarray(p_values, dtype=np.float64)
