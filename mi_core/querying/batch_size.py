"""How many queries a GPU is best asked at once, found by trying."""

from __future__ import annotations

from collections.abc import Callable

import torch

GAIN = 0.05  # share of the time of a query that twice as many must save, to be worth their memory


def best_batch(start: int, most: int, trial: Callable[[int], float]) -> int:
    """The number of queries for one call: doubled from ``start`` on, as long as each query gets cheaper.

    Args:
        start: queries to begin with, at least 1; halved while they exceed the memory.
        most: nothing above is tried.
        trial: seconds that a call with so many queries takes. Raises `torch.OutOfMemoryError` where they do not fit.

    Returns:
        The largest number that paid. Where memory ended the search it is half of what fitted, since encoders that are
        loaded later need room too, but not below a ``start`` that fitted.

    Raises:
        torch.OutOfMemoryError: not even one query fits.

    Example:
        >>> best_batch(64, 1024, lambda size: 1 + size / 1000)
        1024
        >>> best_batch(64, 1024, lambda size: size / 1000)
        64
    """
    size = start
    while True:
        try:
            seconds = trial(size)
            break
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            size = max(1, size // 2)
    if size < start:
        return max(1, size // 2)
    while 2 * size <= most:
        try:
            doubled = trial(2 * size)
        except torch.OutOfMemoryError:
            return max(start, size // 2)
        if doubled > 2 * seconds * (1 - GAIN):
            return size
        size, seconds = 2 * size, doubled
    return size
