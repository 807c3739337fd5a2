"""Compiled code, the precision of products on CUDA, and the memory that this process keeps."""

from __future__ import annotations

import ctypes
import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import numba
import torch

Tensors = TypeVar("Tensors", bound=tuple[torch.Tensor | None, ...])


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


@cache
def kernels(name: str) -> Any:
    """A module of Triton kernels whose ``try_out`` has run on the GPU; None, with a warning, where it fails."""
    try:
        module = importlib.import_module(name)
        module.try_out()
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises that is missing or too old
        warnings.warn(
            f"the GPU is used more slowly: Triton compiles no kernel of {name} here, most often for lack of a C "
            f"compiler such as gcc ({type(error).__name__}: {error})",
            stacklevel=2,
        )
        return None
    return module


def prepare_cuda() -> None:
    """Set how this process computes on CUDA; nothing changes on the CPU, nor for a process without a GPU.

    Products and convolutions of float32 may use TF32: their inputs are read with 10 bits of mantissa, sums stay
    float32. That is several times as fast, and the answers change by about 1e-3. `tf32` takes it back where more bits
    count. cuDNN times its algorithms once per shape and keeps the fastest.
    """
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or refuse TF32 inside, for products and convolutions of float32 on CUDA."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Take numbers below 1e-38 for 0 inside, on the CPU: a network that is sure of its answers has many as gradients.

    Each costs a hundred times what another number costs: a third of the time of some fits.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host on a device; on CUDA the copy runs while the host goes on."""
    if device.type != "cuda" or tensor.device.type == "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def make_ahead(made: Iterator[Tensors], device: torch.device) -> Iterator[Tensors]:
    """The items of an iterator; on CUDA each is made on a stream of its own while the device works on the one before.

    What makes an item may wait for numbers of the device: it waits for that stream alone.
    """
    if device.type != "cuda":
        yield from made
        return
    making = torch.cuda.Stream(device)
    making.wait_stream(torch.cuda.current_stream(device))
    while True:
        with torch.cuda.stream(making):
            item = next(made, None)
        if item is None:
            return
        hand_over(item, making)
        yield item


def hand_over(made: Iterable[torch.Tensor | None], making: torch.cuda.Stream) -> None:
    """Let the stream that this thread works on wait for, and use, tensors that were made on another one."""
    using = torch.cuda.current_stream(making.device)
    using.wait_stream(making)
    for tensor in made:
        if tensor is not None:
            tensor.record_stream(using)


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
