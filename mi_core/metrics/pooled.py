"""Several runs in one number: the mean over seeds with its within-run interval, and one run minus another.

The interval joins those of the runs by the method of variance estimates recovery (Zou and Donner, Statistics in
Medicine 27, 2008, section 2): the distance from the mean to its bound is the root of the summed squares of the runs'
distances, divided by their number. It treats the runs' samples as independent and leaves out how much one training
differs from the next; that is the standard deviation over seeds and stands beside it. Where every run is judged on the
same samples, such as the candidates that a user gives, more seeds tell no more about which samples happened to be
there: the distances are then averaged, as if the runs' errors were all the same, and n is that of one run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from mi_core.checks import ShapeError
from mi_core.records import Estimate


def pool(estimates: Sequence[Estimate], *, same_samples: bool = False) -> Estimate:
    """The mean of the runs' values; n and false positives are sums, and one unsupported run makes it unsupported.

    Args:
        estimates: at least one.
        same_samples: all runs are judged on the same samples; n and false positives are then the largest.

    Raises:
        ShapeError: no estimate.

    Example:
        >>> pooled = pool([Estimate(0.7, 0.6, 0.8, 18), Estimate(0.8, 0.7, 0.9, 18)])
        >>> round(pooled.value, 3), round(pooled.low, 3), round(pooled.high, 3), pooled.n
        (0.75, 0.679, 0.821, 36)
    """
    if not estimates:
        raise ShapeError("0 runs to pool, expected at least 1")
    if len(estimates) == 1:
        return estimates[0]
    runs = len(estimates)
    mean = math.fsum(run.value for run in estimates) / runs
    joined: Callable[[Iterable[float]], float] = math.fsum if same_samples else _root_of_squares
    counted: Callable[[Iterable[int]], int] = max if same_samples else sum
    below = joined(run.value - run.low for run in estimates) / runs
    above = joined(run.high - run.value for run in estimates) / runs
    alarms = [run.false_positives for run in estimates]
    return Estimate(
        mean,
        mean - below,
        mean + above,
        counted(run.n for run in estimates),
        supported=all(run.supported for run in estimates),
        false_positives=None if None in alarms else counted(alarm or 0 for alarm in alarms),
    )


def difference(first: Estimate, second: Estimate) -> Estimate:
    """``second`` minus ``first``, measured on samples that have nothing to do with each other.

    By the same method (Zou and Donner, equation 3 without correlation): how far an interval reaches to one side stands
    for the standard error there, and the difference reaches as far as the root of the summed squares of both. Where the
    same samples are in both, errors that they share are counted twice, and the interval is too wide; errors that go
    opposite ways make it too narrow. A paired interval (`mi_core.metrics.delong.auc_difference`) takes the scores.

    Args:
        first, second: with their 95 % intervals.

    Returns:
        the difference; n is the smaller one.

    Example:
        >>> change = difference(Estimate(0.6, 0.5, 0.7, 100), Estimate(0.9, 0.8, 0.95, 100))
        >>> round(change.value, 2), round(change.low, 3), round(change.high, 3)
        (0.3, 0.159, 0.412)
    """
    value = second.value - first.value
    below = _root_of_squares((second.value - second.low, first.high - first.value))
    above = _root_of_squares((second.high - second.value, first.value - first.low))
    return Estimate(value, value - below, value + above, min(first.n, second.n))


def _root_of_squares(distances: Iterable[float]) -> float:
    return math.hypot(*distances)
