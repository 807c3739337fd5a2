"""How many queries a GPU is best asked at once, and how long a query takes: both found by trying."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

GAIN = 0.05  # share of the time of a query that twice as many must save, to be worth their memory
TRIES = 3
ENOUGH = 0.2  # seconds of a call that are told from noise of the clock


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


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call that works on a device, after one that warms up.

    Raises:
        torch.OutOfMemoryError: it does not fit.
    """
    began = 0.0
    try:
        for _ in range(2):
            _wait(device)
            began = time.perf_counter()
            call()
        _wait(device)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        raise
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_each(trial: Callable[[int], float], most: int) -> float:
    """Seconds of a query, from calls that grow until one takes long enough.

    Args:
        trial: seconds that a call with so many queries takes.
        most: queries of a call.

    Example:
        >>> round(seconds_each(lambda size: 0.1 + size / 1000, 640), 6)
        0.001391
    """
    size = 1
    while True:
        seconds = min(trial(size) for _ in range(TRIES))  # a busy machine only ever adds time
        if seconds >= ENOUGH or size >= most:
            return seconds / size
        size = min(4 * size, most)
