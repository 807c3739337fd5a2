"""Crop, flip, colour jitter and grayscale in one kernel per view, on CUDA, and filters in one kernel per axis.

The same mathematics as `compiled`. One program makes one view: it reads pixels of the image, which stay in the cache,
and writes each pixel of the view once. Where the contrast changes it goes over the view twice, since the mean grey
comes first. Letters as in `operations`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from mi_core.augmentations import operations
from mi_core.augmentations.operations import ViewParameters

_R, _G, _B = map(tl.constexpr, operations.GRAY)
_CONTRAST, _SATURATION, _HUE = map(tl.constexpr, (operations.CONTRAST, operations.SATURATION, operations.HUE))
_STEPS = tl.constexpr(len(operations.JITTERS))
BLOCK, WARPS = 512, 8  # pixels that a program has in its registers, and their threads by 32: two pixels a thread


def try_out() -> None:
    """Run both kernels once on the GPU; raises what a missing compiler or an old driver does."""
    images, none = torch.zeros(1, 1, 2, 2, device="cuda"), torch.zeros(1, dtype=torch.bool, device="cuda")
    box, order = torch.ones(1, 4, device="cuda"), torch.arange(4, device="cuda")[None]
    made = ViewParameters(box, (2, 2), none, box, order, none)
    filtered(jittered_crops(images, made), torch.ones(1, 1, device="cuda"), "reflect")


def jittered_crops(images: torch.Tensor, made: ViewParameters) -> torch.Tensor:
    """As `compiled.jittered_crops`, of images on CUDA."""
    batch, channels, height, width = images.shape
    result = torch.empty(batch, *made.size, channels, device=images.device)
    given = images, made.boxes, made.mirrored.byte(), made.factors, made.order, made.gray.byte()
    with torch.cuda.device_of(images):
        _make_view[(batch,)](
            *(one.contiguous() for one in given),
            result,
            *(height, width, *made.size),
            1 / 255 if images.dtype == torch.uint8 else 1.0,
            COLOURS=channels == 3,
            GRAY_FIRST=made.gray_first,
            CUBIC=made.interpolation == "bicubic",
            BLOCK=BLOCK,
            num_warps=WARPS,
        )
    return result.permute(0, 3, 1, 2)


def filtered(images: torch.Tensor, taps: torch.Tensor, border: str) -> torch.Tensor:
    """Images (B, C, H, W), filtered along rows and columns by taps (B, T), T odd, and clamped to [0, 1].

    ``border``: ``reflect``, or ``replicate``.
    """
    if not images.is_contiguous(memory_format=torch.channels_last):
        images = images.contiguous()
    size = images[0].numel()
    for axis in (2, 3):
        result = torch.empty_like(images)
        with torch.cuda.device_of(images):
            _filter[(len(images), triton.cdiv(size, BLOCK))](
                *(images, taps.contiguous(), result, size, images.shape[axis], images.stride(axis), taps.shape[1]),
                REFLECT=border == "reflect",
                BLOCK=BLOCK,
            )
        images = result
    return images


@triton.jit
def _clamp(pixels):
    return tl.minimum(tl.maximum(pixels, 0.0), 1.0)


@triton.jit
def _luma(red, green, blue, COLOURS: tl.constexpr):
    return _R * red + _G * green + _B * blue if COLOURS else red


@triton.jit
def _without_colour(red, green, blue, chosen):
    luma = _luma(red, green, blue, True)
    return tl.where(chosen, luma, red), tl.where(chosen, luma, green), tl.where(chosen, luma, blue)


@triton.jit
def _weight(pixel, sampled, unit, start, length, CUBIC: tl.constexpr):
    """Weight of an input pixel in output pixels whose centres are sampled there, not yet divided by their sum."""
    centre = pixel + 0.5
    away = tl.abs(centre - sampled) / unit
    if CUBIC:
        near = (1.5 * away - 2.5) * away * away + 1
        far = ((2.5 - 0.5 * away) * away - 4) * away + 2
        weight = tl.where(away < 1, near, tl.where(away < 2, far, 0.0))
    else:
        weight = tl.maximum(1 - away, 0.0)
    return tl.where((centre >= start) & (centre < start + length), weight, 0.0)


@triton.jit
def _crop(image, box, row, column, height, width, tall, wide, scale, COLOURS: tl.constexpr, CUBIC: tl.constexpr):
    """Pixels of the crop at rows and columns of the view."""
    top, left, long, broad = tl.load(box), tl.load(box + 1), tl.load(box + 2), tl.load(box + 3)
    unit_down, unit_across = tl.maximum(long / tall, 1.0), tl.maximum(broad / wide, 1.0)
    reach_down, reach_across = unit_down * (2 if CUBIC else 1), unit_across * (2 if CUBIC else 1)
    down, across = top + (row + 0.5) * (long / tall), left + (column + 0.5) * (broad / wide)
    first_row, first_column = tl.ceil(down - reach_down - 0.5), tl.ceil(across - reach_across - 0.5)
    red, green, blue, total = down * 0, down * 0, down * 0, down * 0
    for below in range(tl.ceil(2 * reach_down).to(tl.int32)):
        down_weight = _weight(first_row + below, down, unit_down, top, long, CUBIC)
        line = (first_row + below).to(tl.int32) * width
        for beside in range(tl.ceil(2 * reach_across).to(tl.int32)):
            weight = down_weight * _weight(first_column + beside, across, unit_across, left, broad, CUBIC)
            here = image + line + (first_column + beside).to(tl.int32)
            counts = weight != 0
            total += weight
            red += weight * tl.load(here, mask=counts, other=0).to(tl.float32)
            if COLOURS:
                green += weight * tl.load(here + height * width, mask=counts, other=0).to(tl.float32)
                blue += weight * tl.load(here + 2 * height * width, mask=counts, other=0).to(tl.float32)
    share = scale / total
    return _clamp(red * share), _clamp(green * share), _clamp(blue * share)


@triton.jit
def _turn_hue(red, green, blue, shift):
    """By ``shift`` of the circle, as `compiled` does."""
    most, least = tl.maximum(tl.maximum(red, green), blue), tl.minimum(tl.minimum(red, green), blue)
    chroma = most - least
    inverse = 1 / tl.maximum(chroma, 1e-12)
    hue = tl.where(green == most, (blue - red) * inverse + 2, (red - green) * inverse + 4)
    hue = tl.where(red == most, (green - blue) * inverse, hue) + 6 * shift
    hue -= 6 * tl.floor(hue / 6)
    return (
        _clamp(least + chroma * _clamp(tl.abs(hue - 3) - 1)),
        _clamp(least + chroma * _clamp(2 - tl.abs(hue - 2))),
        _clamp(least + chroma * _clamp(2 - tl.abs(hue - 4))),
    )


@triton.jit
def _jitter(red, green, blue, factors, order, steps, mean, COLOURS: tl.constexpr):
    """The first operations of the colour jitter; ``mean`` is the grey that the contrast goes from."""
    for step in range(steps):
        kind = tl.load(order + step)
        factor = tl.load(factors + kind)
        if kind == _HUE:
            if COLOURS and factor != 0:
                red, green, blue = _turn_hue(red, green, blue, factor)
        elif factor != 1:
            luma = _luma(red, green, blue, COLOURS)
            other = tl.where(kind == _SATURATION, luma, tl.where(kind == _CONTRAST, mean, 0.0)) * (1 - factor)
            red, green, blue = (
                _clamp(other + factor * red),
                _clamp(other + factor * green),
                _clamp(other + factor * blue),
            )
    return red, green, blue


@triton.jit
def _pixels(
    images, boxes, mirrored, factors, order, gray, number, at, steps, mean, height, width, tall, wide, scale,
    COLOURS: tl.constexpr, GRAY_FIRST: tl.constexpr, CUBIC: tl.constexpr,
):  # fmt: skip
    """Pixels of a view at places of it, after the first ``steps`` operations of its jitter."""
    at = tl.minimum(at, tall * wide - 1)  # what lies behind is not written
    row, column = at // wide, at % wide
    column = tl.where(tl.load(mirrored + number) != 0, wide - 1 - column, column)
    image = images + number * height * width * (3 if COLOURS else 1)
    red, green, blue = _crop(image, boxes + 4 * number, row, column, height, width, tall, wide, scale, COLOURS, CUBIC)
    if GRAY_FIRST and COLOURS:
        red, green, blue = _without_colour(red, green, blue, tl.load(gray + number) != 0)
    return _jitter(red, green, blue, factors + _STEPS * number, order + _STEPS * number, steps, mean, COLOURS)


@triton.jit
def _make_view(
    images, boxes, mirrored, factors, order, gray, result, height, width, tall, wide, scale,
    COLOURS: tl.constexpr, GRAY_FIRST: tl.constexpr, CUBIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64)
    places, size = tl.arange(0, BLOCK), tall * wide
    mean = tl.zeros((), tl.float32)
    if tl.load(factors + _STEPS * number + _CONTRAST) != 1:
        before = tl.zeros((), tl.int32)  # operations ahead of the contrast
        for step in range(_STEPS):
            if tl.load(order + _STEPS * number + step) == _CONTRAST:
                before = step
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, size, BLOCK):
            at = start + places
            red, green, blue = _pixels(
                images, boxes, mirrored, factors, order, gray, number, at, before, mean, height, width, tall, wide,
                scale, COLOURS, GRAY_FIRST, CUBIC,
            )  # fmt: skip
            total += tl.where(at < size, _luma(red, green, blue, COLOURS), 0.0)
        mean = tl.sum(total, 0) / size
    for start in range(0, size, BLOCK):
        at = start + places
        red, green, blue = _pixels(
            images, boxes, mirrored, factors, order, gray, number, at, _STEPS, mean, height, width, tall, wide,
            scale, COLOURS, GRAY_FIRST, CUBIC,
        )  # fmt: skip
        here = result + (number * size + at) * (3 if COLOURS else 1)
        if COLOURS:
            if not GRAY_FIRST:
                red, green, blue = _without_colour(red, green, blue, tl.load(gray + number) != 0)
            tl.store(here + 1, green, mask=at < size)
            tl.store(here + 2, blue, mask=at < size)
        tl.store(here, red, mask=at < size)


@triton.jit
def _filter(images, taps, result, size, length, stride, count, REFLECT: tl.constexpr, BLOCK: tl.constexpr):
    """A block of one image; ``stride`` leads from a pixel to the next along the axis."""
    number = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = at // stride % length
    total = tl.zeros((BLOCK,), tl.float32)
    for tap in range(count):
        other = place + tap - count // 2
        if REFLECT:
            other = tl.abs(other)
            other = tl.minimum(other, 2 * (length - 1) - other)
        else:
            other = tl.minimum(tl.maximum(other, 0), length - 1)
        pixels = tl.load(images + number * size + at + (other - place) * stride, mask=at < size, other=0)
        total += tl.load(taps + number * count + tap) * pixels
    tl.store(result + number * size + at, _clamp(total), mask=at < size)
