"""Crop, flip, colour jitter and grayscale in one compiled pass per view, on the CPU.

A view stays in the cache of its core from the first operation to the last, which is several times faster than to pass
over a whole batch once per operation. Letters as in `operations`.
"""

from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from mi_core.augmentations.operations import BRIGHTNESS, CONTRAST, GRAY, SATURATION, ViewParameters
from mi_core.runtime import compiled

_R, _G, _B = (np.float32(share) for share in GRAY)
_0, _1, _2, _3, _4, _6 = (np.float32(value) for value in (0, 1, 2, 3, 4, 6))
_1_5, _2_5 = np.float32(1.5), np.float32(2.5)
_HALF, _TINY = np.float32(0.5), np.float32(1e-12)
SPLIT = 64  # views from which on threads share them


def jittered_crops(images: torch.Tensor, made: ViewParameters) -> torch.Tensor:
    """Views (B, C, *size) float32 in [0, 1], channels last in memory; images (B, C, H, W) uint8 or float32 in [0, 1].

    Images of a GPU are sent to the CPU, and views are sent back.
    """
    batch, channels = images.shape[:2]
    result = torch.empty(batch, *made.size, channels)
    given = images, made.boxes, made.mirrored, made.factors, made.order, made.gray
    inputs = [tensor.cpu().contiguous().numpy() for tensor in given]
    threads = torch.get_num_threads() if batch >= SPLIT else 1
    bounds = [batch * number // threads for number in range(threads + 1)]
    arrays = (*inputs, result.numpy().reshape(batch, -1))
    work = [[array[start:end] for array in arrays] for start, end in itertools.pairwise(bounds)]
    scale = np.float32(1 / 255) if images.dtype == torch.uint8 else _1
    settings = scale, made.size[0], made.gray_first, made.interpolation == "bicubic"
    if threads == 1:
        _views(*work[0], *settings)
    else:
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(_views, *part, *settings) for part in work]:
                done.result()
    return result.to(images.device).permute(0, 3, 1, 2)


@compiled
def _cubic(distance: Any) -> Any:
    """Keys' kernel with a = -0.5, at distances below 2 pixels."""
    if distance < _1:
        return (_1_5 * distance - _2_5) * distance * distance + _1
    return ((_2_5 - _HALF * distance) * distance - _4) * distance + _2


@compiled
def _taps(start: Any, length: Any, pixels: int, scale: Any, cubic: bool, places: Any, weights: Any) -> int:
    """Input pixels (T, size) of every output pixel along one axis and their weights; returns how many of T count."""
    size = weights.shape[1]
    step = length / np.float32(size)
    unit = max(step, _1)
    reach = unit * (_2 if cubic else _1)
    low = max(0, math.ceil(start - _HALF))  # the first pixel whose centre lies in the box
    high = max(low + 1, min(pixels, math.ceil(start + length - _HALF)))
    most = 1
    for number in range(size):
        centre = start + (np.float32(number) + _HALF) * step
        first = max(low, int(centre - reach + _HALF))
        count, total = 0, _0
        for pixel in range(first, min(high, first + len(weights))):
            away = abs(np.float32(pixel) + _HALF - centre)
            if away >= reach:
                continue
            weight = _cubic(away / unit) if cubic else _1 - away / unit
            places[count, number], weights[count, number] = pixel, weight
            total += weight
            count += 1
        for tap in range(count):
            weights[tap, number] *= scale / total
        for tap in range(count, len(weights)):
            places[tap, number], weights[tap, number] = low, _0
        most = max(most, count)
    return most


@compiled
def _crop(image: Any, rows: Any, row_weights: Any, columns: Any, column_weights: Any, line: Any, view: Any) -> None:
    """One line of the result after the other: first down the columns of the image, then along that line."""
    wide = columns.shape[1]
    for channel in range(len(image)):
        for row in range(rows.shape[1]):
            line[:] = _0
            for tap in range(len(rows)):
                weight = row_weights[tap, row]
                pixels = image[channel, rows[tap, row]]
                for column in range(len(line)):
                    line[column] += weight * np.float32(pixels[column])
            out = view[channel, row * wide : (row + 1) * wide]
            out[:] = _0
            for tap in range(len(columns)):
                places, weights = columns[tap], column_weights[tap]
                for column in range(wide):
                    out[column] += weights[column] * line[places[column]]
            for column in range(wide):  # weights that sum to 1 within rounding
                out[column] = min(max(out[column], _0), _1)


@compiled
def _blend(view: Any, offset: Any, factor: Any) -> None:
    for channel in range(len(view)):
        pixels = view[channel]
        for place in range(len(pixels)):
            pixels[place] = min(max(offset + factor * pixels[place], _0), _1)


@compiled
def _gray_mean(view: Any) -> Any:
    total = _0
    if len(view) == 1:
        for place in range(view.shape[1]):
            total += view[0, place]
    else:
        red, green, blue = view[0], view[1], view[2]
        for place in range(view.shape[1]):
            total += _R * red[place] + _G * green[place] + _B * blue[place]
    return total / np.float32(view.shape[1])


@compiled
def _saturate(view: Any, factor: Any) -> None:
    red, green, blue = view[0], view[1], view[2]
    rest = _1 - factor
    for place in range(view.shape[1]):
        offset = rest * (_R * red[place] + _G * green[place] + _B * blue[place])
        red[place] = min(max(offset + factor * red[place], _0), _1)
        green[place] = min(max(offset + factor * green[place], _0), _1)
        blue[place] = min(max(offset + factor * blue[place], _0), _1)


@compiled
def _turn_hue(view: Any, shift: Any) -> None:
    """Turn the hue by ``shift`` sixths of the circle.

    HSV to RGB in closed form: each channel rises from the least by a trapezoid of the hue.
    """
    reds, greens, blues = view[0], view[1], view[2]
    for place in range(view.shape[1]):
        red, green, blue = reds[place], greens[place], blues[place]
        most, least = max(red, green, blue), min(red, green, blue)
        chroma = most - least
        inverse = _1 / max(chroma, _TINY)
        hue = (red - green) * inverse + _4
        hue = (blue - red) * inverse + _2 if green == most else hue
        hue = (green - blue) * inverse if red == most else hue
        hue += shift
        hue -= _6 * np.float32(np.floor(hue / _6))
        reds[place] = min(max(least + chroma * min(max(abs(hue - _3) - _1, _0), _1), _0), _1)
        greens[place] = min(max(least + chroma * min(max(_2 - abs(hue - _2), _0), _1), _0), _1)
        blues[place] = min(max(least + chroma * min(max(_2 - abs(hue - _4), _0), _1), _0), _1)


@compiled
def _take_colour(view: Any) -> None:
    red, green, blue = view[0], view[1], view[2]
    for place in range(view.shape[1]):
        gray = _R * red[place] + _G * green[place] + _B * blue[place]
        red[place], green[place], blue[place] = gray, gray, gray


@compiled
def _views(
    images: Any,
    boxes: Any,
    mirrored: Any,
    factors: Any,
    order: Any,
    gray: Any,
    result: Any,
    scale: Any,
    tall: int,
    gray_first: bool,
    cubic: bool,
) -> None:
    batch, channels, height, width = images.shape
    wide = result.shape[1] // channels // tall
    side = 4 if cubic else 2  # pixels within reach of an output pixel, where nothing shrinks
    reach_down, reach_across = side * max(1, -(-height // tall)) + 2, side * max(1, -(-width // wide)) + 2
    rows, row_weights = np.empty((reach_down, tall), np.uint32), np.empty((reach_down, tall), np.float32)
    columns, column_weights = np.empty((reach_across, wide), np.uint32), np.empty((reach_across, wide), np.float32)
    line = np.empty(width, np.float32)
    view = np.empty((channels, tall * wide), np.float32)
    for number in range(batch):
        down = _taps(boxes[number, 0], boxes[number, 2], height, scale, cubic, rows, row_weights)
        across = _taps(boxes[number, 1], boxes[number, 3], width, _1, cubic, columns, column_weights)
        if mirrored[number]:
            columns[:across], column_weights[:across] = (
                columns[:across, ::-1].copy(),
                column_weights[:across, ::-1].copy(),
            )
        _crop(images[number], rows[:down], row_weights[:down], columns[:across], column_weights[:across], line, view)
        if gray_first and gray[number] and channels == 3:
            _take_colour(view)
        for step in range(4):
            kind = order[number, step]
            factor = factors[number, kind]
            if kind == BRIGHTNESS:
                if factor != _1:
                    _blend(view, _0, factor)
            elif kind == CONTRAST:
                if factor != _1:
                    _blend(view, (_1 - factor) * _gray_mean(view), factor)
            elif channels == 3:
                if kind == SATURATION:
                    if factor != _1:
                        _saturate(view, factor)
                elif factor != _0:
                    _turn_hue(view, _6 * factor)
        if gray[number] and channels == 3 and not gray_first:
            _take_colour(view)
        pixels = result[number]
        for place in range(tall * wide):
            for channel in range(channels):
                pixels[place * channels + channel] = view[channel, place]
