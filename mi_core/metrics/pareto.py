"""The trade-off of a defense: trials by how much utility they lose and how much still leaks.

A search over many trials finds some that look good by chance. So leaks are judged by the upper ends of their
intervals, the chosen trial is one that keeps within a bound, and it is measured anew on images that the search never
looked at: its figures in the search are too good on average (the winner's curse).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mi_core.checks import NumericError, ShapeError, check_range, check_shape

Array = npt.NDArray[np.float64]


def pareto_front(costs: Array) -> npt.NDArray[np.bool_]:
    """A mask of the trials that no other beats: none is at most as costly in everything and less costly in something.

    Takes costs (T, K), less is better; returns (T,) bool; trials of equal costs are in it together.
    Raises ShapeError: another shape; NumericError: a cost is not a number.

    Example:
        >>> pareto_front(np.array([[0.0, 0.9], [0.1, 0.6], [0.2, 0.6], [0.5, 0.5]])).tolist()
        [True, True, False, True]
    """
    check_shape("costs", costs, "T K")
    if np.isnan(costs).any():
        raise NumericError("a cost is not a number")
    return np.array([not ((costs <= own).all(axis=1) & (costs < own).any(axis=1)).any() for own in costs], dtype=bool)


def least_within(losses: Sequence[float], leaks: Sequence[float], allowed: float) -> int:
    """The trial that loses least utility among those that leak no more than is allowed; of equal ones, the tightest.

    Where none keeps within the bound it is the one that leaks least.

    Args:
        losses: (T,) of utility.
        leaks: (T,), upper ends of intervals.
        allowed: the most that may leak.

    Returns:
        Its position.

    Raises ShapeError: there is no trial, or another number of leaks.

    Example:
        >>> least_within([0.0, 0.1, 0.2], [0.9, 0.6, 0.5], allowed=0.65)
        1
    """
    if not len(losses) or len(losses) != len(leaks):
        raise ShapeError(f"{len(losses)} losses and {len(leaks)} leaks, expected as many of both and at least one")
    within = [index for index in range(len(losses)) if leaks[index] <= allowed]
    if within:
        return min(within, key=lambda index: (losses[index], leaks[index]))
    return min(range(len(leaks)), key=lambda index: (leaks[index], losses[index]))


def weighted(loss: float, leak: float, weight: float) -> float:
    """Both in one number: loss + weight x leak.

    Raises ConfigError: the weight is negative.
    """
    check_range("weight", weight, 0)
    return loss + weight * leak
