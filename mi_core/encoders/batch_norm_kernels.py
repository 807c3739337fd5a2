"""Batch norm in parts as Triton kernels, on images whose channels lie together in memory.

A row is a pixel of an image of one part; a program takes a block of rows and 64 channels. Forward and backward are two
launches each: `_gather` leaves two sums per block, `_finish` adds them up, in the same order every time, and writes the
results of its own block. Squares are of differences from the mean of the part's first image. Of N images its mean is at
most sqrt(N) standard deviations from that of the part, so a mean far from 0 costs no digits of the variance.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable
from triton.language import constexpr

from mi_core.checks import ShapeError

TILE = constexpr(64)  # rows, and channels, that a program reads at a time
BLOCKS = constexpr(64)  # of a part at most, since each of its programs reads the sums of all
PROGRAMS = 1024  # enough for any GPU


@triton.jit
def _read(values, start, rows, pixels, channels):
    """A tile of the program's part as float32, 0 outside; where it lies, and what is inside: (rows, channels) each."""
    row, column = start + tl.arange(0, TILE), tl.program_id(2) * TILE + tl.arange(0, TILE)
    image = (row // pixels * tl.num_programs(1) + tl.program_id(1)).to(tl.int64)
    place = ((image * pixels + row % pixels) * channels)[:, None] + column[None, :]
    inside = (row < rows)[:, None] & (column < channels)[None, :]
    return tl.load(values + place, inside, 0).to(tl.float32), place, inside


@triton.jit
def _gather(images, gradient, moments, sums, rows, span, pixels, channels, FORWARD: constexpr):
    """Sums over a block: forward of x - c and (x - c)^2, c the first moment given; backward of dy and dy (x - c)."""
    block, part, column = tl.program_id(0), tl.program_id(1), tl.program_id(2) * TILE + tl.arange(0, TILE)
    centre = tl.load(moments + part * channels + column, column < channels, 0)[None, :]
    one, two = tl.zeros([TILE, TILE], tl.float32), tl.zeros([TILE, TILE], tl.float32)
    for start in range(block * span, tl.minimum(block * span + span, rows), TILE):
        value, _, inside = _read(images, start, rows, pixels, channels)
        off = tl.where(inside, value - centre, 0)
        factor = off if FORWARD else _read(gradient, start, rows, pixels, channels)[0]
        one += factor
        two += factor * off
    own = sums + (part * tl.num_programs(0) + block) * channels + column
    tl.store(own, tl.sum(one, 0), column < channels)
    tl.store(own + tl.num_programs(0) * tl.num_programs(1) * channels, tl.sum(two, 0), column < channels)


@triton.jit
def _finish(
    images, gradient, moments, sums, rows, span, pixels, channels, FORWARD: constexpr, weight, bias, eps, made, totals
):
    """Forward y, and mean and variance of a part; backward dx, and the part's share of dbias and dweight."""
    block, part, column = tl.program_id(0), tl.program_id(1), tl.program_id(2) * TILE + tl.arange(0, TILE)
    known, own, half = column < channels, part * channels + column, tl.num_programs(1) * channels
    each, blocks = tl.arange(0, BLOCKS)[:, None], tl.num_programs(0)
    left, there = sums + (part * blocks + each) * channels + column[None, :], (each < blocks) & known[None, :]
    one, two = tl.sum(tl.load(left, there, 0), 0), tl.sum(tl.load(left + blocks * half, there, 0), 0)
    mean = tl.load(moments + own, known, 0)
    if FORWARD:
        variance = tl.maximum(two / rows - one / rows * (one / rows), 0)
        mean += one / rows
        inverse = 1 / tl.sqrt(variance + eps)
        one, two = mean, variance
    else:
        inverse = 1 / tl.sqrt(tl.load(moments + half + own, known, 0) + eps)
        two *= inverse
    if block == 0:
        tl.store(totals + own, one, known)
        tl.store(totals + half + own, two, known)
    scale, shift = tl.load(weight + column, known, 0), tl.load(bias + column, known, 0)
    for start in range(block * span, tl.minimum(block * span + span, rows), TILE):
        value, place, inside = _read(images, start, rows, pixels, channels)
        normal = (value - mean[None, :]) * inverse[None, :]
        if FORWARD:
            result = normal * scale[None, :] + shift[None, :]
        else:
            flow, _, _ = _read(gradient, start, rows, pixels, channels)
            result = (flow - (one[None, :] + normal * two[None, :]) / rows) * (scale * inverse)[None, :]
        tl.store(made + place, result, inside)


def _launch(forward: bool, images: torch.Tensor, gradient: torch.Tensor, moments: torch.Tensor, *more: Any) -> Any:
    """What `_finish` makes, (B, C, H, W), and its totals, (2, parts, C); ``more`` is weight, bias, parts and eps."""
    *weights, parts, eps = more
    count, channels, height, width = images.shape
    rows, wide = count // parts * height * width, triton.cdiv(channels, TILE.value)
    most = max(1, min(BLOCKS.value, PROGRAMS // (parts * wide)))
    span = triton.cdiv(triton.cdiv(rows, most), TILE.value) * TILE.value
    grid = triton.cdiv(rows, span), parts, wide
    sums, totals = (moments.new_empty(2, parts, size, channels) for size in (grid[0], 1))
    made = torch.empty_like(images)
    given = images, gradient, moments, sums, rows, span, height * width, channels, forward
    with torch.cuda.device_of(images):
        _gather[grid](*given, num_warps=8)
        _finish[grid](*given, *weights, eps, made, totals, num_warps=8)
    return made, totals[:, :, 0]


def try_out() -> None:
    """Run the kernels once on the GPU; raises what a missing compiler or an old driver does."""
    tiny = torch.zeros(2, 1, 1, 2, device="cuda", requires_grad=True)
    with torch.enable_grad():
        NormalisedParts.apply(tiny, tiny[0, 0, 0, :1], tiny[0, 0, 0, :1], 2, 1.0)[0].sum().backward()


class NormalisedParts(torch.autograd.Function):
    """Normalises parts of a batch by their own mean and variance; row i belongs to part i mod parts."""

    @staticmethod
    def forward(context: Any, images: torch.Tensor, *more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalise images (B, C, H, W) by weight and bias (C,), parts and eps; sums are float32.

        Returns the images in their dtype, of 32 or 16 bits, and (2, parts, C) the means and the (biased) variances.
        Raises ShapeError: parts do not divide B, or have one value per channel.
        """
        parts = more[2]
        if len(images) % parts or images[::parts, 0].numel() < 2:
            raise ShapeError(f"images have the shape {tuple(images.shape)}: a multiple of {2 * parts} images is needed")
        images = images.contiguous(memory_format=torch.channels_last)
        centres = images[:parts].mean(dim=(2, 3), dtype=torch.float32).contiguous()
        normalised, moments = _launch(True, images, images, centres, *more)
        context.save_for_backward(images, moments, *more[:2])
        context.more = more[2:]
        context.mark_non_differentiable(moments)
        return normalised, moments

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of images, weight and bias."""
        images, moments, *weights = context.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        made, totals = _launch(False, images, gradient, moments, *weights, *context.more)
        bias, weight = totals.sum(dim=1)
        return made, weight, bias, None, None
