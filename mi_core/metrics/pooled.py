"""Several runs in one number: the mean over seeds with its within-run interval, and one run minus another.

The interval joins those of the runs by the method of variance estimates recovery (Zou and Donner, Statistics in
Medicine 27, 2008, section 2): the distance from the mean to its bound is the root of the summed squares of the runs'
distances, divided by their number. It leaves out how much one training differs from the next; that is the standard
deviation over seeds and stands beside it.

The root treats the runs' samples as independent. Where runs are judged on samples that recur, such as the candidates
that a user gives or a whole test set, more seeds tell less about which samples happened to be there. ``overlap`` is the
share of a run's samples that another run has too. The errors of two runs are then taken to be correlated by that share,
as if a sample erred alike in all runs, which is the most it can: their products count beside the squares. At 1 the
distances are averaged, and n is that of one run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mi_core.checks import ShapeError, check_range
from mi_core.records import Estimate


def pool(estimates: Sequence[Estimate], *, overlap: float = 0.0) -> Estimate:
    """The mean of the runs' values; n and false positives as `pooled_count`; one unsupported run makes it unsupported.

    Args:
        estimates: at least one.
        overlap: share of a run's samples that another run has too, in [0, 1].

    Raises ShapeError: no estimate; ConfigError: overlap is out of range.

    Example:
        >>> pooled = pool([Estimate(0.7, 0.6, 0.8, 18), Estimate(0.8, 0.7, 0.9, 18)])
        >>> round(pooled.value, 3), round(pooled.low, 3), round(pooled.high, 3), pooled.n
        (0.75, 0.679, 0.821, 36)
    """
    if not estimates:
        raise ShapeError("0 runs to pool, expected at least 1")
    check_range("overlap", overlap, 0, 1)
    if len(estimates) == 1:
        return estimates[0]
    runs = len(estimates)
    mean = math.fsum(run.value for run in estimates) / runs
    below = _joined([run.value - run.low for run in estimates], overlap) / runs
    above = _joined([run.high - run.value for run in estimates], overlap) / runs
    alarms = [run.false_positives for run in estimates]
    return Estimate(
        mean,
        mean - below,
        mean + above,
        pooled_count([run.n for run in estimates], overlap),
        supported=all(run.supported for run in estimates),
        false_positives=None if None in alarms else pooled_count([alarm or 0 for alarm in alarms], overlap),
    )


def pooled_count(counts: Sequence[int], overlap: float = 0.0) -> int:
    """How many samples of their own several runs' samples are worth: their sum, of the same ones the largest number.

    In between it is the sum over 1 + (runs - 1) ``overlap``, by which the variance of the mean grows.

    Args:
        counts: of the runs, at least one.
        overlap: as `pool`.

    Example:
        >>> pooled_count([100, 100, 100]), pooled_count([100, 100, 100], 0.5), pooled_count([100, 100, 90], 1.0)
        (300, 150, 100)
    """
    return max(*counts, math.floor(sum(counts) / (1 + (len(counts) - 1) * overlap)))


def difference(first: Estimate, second: Estimate) -> Estimate:
    """``second`` minus ``first``, measured on samples that have nothing to do with each other.

    By the same method (Zou and Donner, equation 3 without correlation; of two rates it is Newcombe's, 1998, method 10,
    here on Clopper-Pearson intervals): how far an interval reaches to one side stands
    for the standard error there, and the difference reaches as far as the root of the summed squares of both. Where the
    same samples are in both, errors that they share are counted twice, and the interval is too wide; errors that go
    opposite ways make it too narrow. A paired interval (`mi_core.metrics.delong.auc_difference`) takes the scores.

    Both have 95 % intervals; n of the difference is the smaller one.

    Example:
        >>> change = difference(Estimate(0.6, 0.5, 0.7, 100), Estimate(0.9, 0.8, 0.95, 100))
        >>> round(change.value, 2), round(change.low, 3), round(change.high, 3)
        (0.3, 0.159, 0.412)
    """
    value = second.value - first.value
    below = math.hypot(second.value - second.low, first.high - first.value)
    above = math.hypot(second.high - second.value, first.value - first.low)
    return Estimate(value, value - below, value + above, min(first.n, second.n))


def _joined(distances: Sequence[float], overlap: float) -> float:
    """The root of the summed squares, and of ``overlap`` times the products of all pairs."""
    apart, alike = math.hypot(*distances), math.fsum(distances)
    return math.hypot(math.sqrt(1 - overlap) * apart, math.sqrt(overlap) * alike)
