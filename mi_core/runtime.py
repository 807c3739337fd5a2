"""Compiled code, and the memory that this process keeps."""

from __future__ import annotations

import ctypes
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


_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # names of mallopt's settings in glibc's malloc.h
_LARGE = 2**30


def keep_freed_memory() -> bool:
    """Tell glibc to serve tensors below 1 GiB from memory that the process keeps; whether that was possible.

    By default every large tensor on the CPU is mapped anew and its pages are zeroed by the kernel on first use: 4 % of
    a training step of a small ResNet, and a third of making its views. The process then never shrinks below its peak.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # no glibc
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGE)) and bool(mallopt(_TRIM_THRESHOLD, _LARGE))
