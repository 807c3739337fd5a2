"""Loops over numbers as machine code, for steps that a batched tensor operation makes several times slower on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """To machine code at the first call, which other processes then find ready; it runs beside other threads.

    Sums may be reordered and infinities are not expected (numba's ``fastmath``). Where neither the folder of the
    source nor the user's cache can be written, every process compiles for itself.
    """
    try:
        ready: Callable[..., Any] = numba.njit(function, nogil=True, fastmath=True, cache=True)
    except RuntimeError:  # no place for a cache
        ready = numba.njit(function, nogil=True, fastmath=True)
    return ready
