"""Crop boxes: torchvision's distribution, as a loop draws it, and its rule where no box fits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torchvision.transforms import RandomResizedCrop

from mi_core.augmentations.simclr import TRIES, crop_boxes

RATIO = (3 / 4, 4 / 3)


def looped(numbers: torch.Tensor, scale: tuple[float, float], height: int, width: int) -> list[int]:
    """One box from (22,) uniform numbers, as `RandomResizedCrop` has it: areas, ratios, top and left."""
    areas, ratios, (top, left) = numbers[:TRIES].tolist(), numbers[TRIES : 2 * TRIES].tolist(), numbers[-2:].tolist()
    for area, ratio in zip(areas, ratios, strict=True):
        pixels = height * width * (scale[0] + (scale[1] - scale[0]) * area)
        shape = math.exp(math.log(RATIO[0]) + (math.log(RATIO[1]) - math.log(RATIO[0])) * ratio)
        wide, tall = round(math.sqrt(pixels * shape)), round(math.sqrt(pixels / shape))
        if 0 < wide <= width and 0 < tall <= height:
            return [math.floor(top * (height - tall + 1)), math.floor(left * (width - wide + 1)), tall, wide]
    tall, wide = min(height, round(width / RATIO[0])), min(width, round(height * RATIO[1]))
    return [(height - tall) // 2, (width - wide) // 2, tall, wide]


@pytest.mark.parametrize(
    ("scale", "height", "width"),
    [((0.08, 1.0), 32, 32), ((0.95, 1.0), 9, 14), ((0.5, 1.0), 30, 8), ((0.001, 0.01), 8, 8)],
)
def test_boxes_are_those_of_a_loop(scale: tuple[float, float], height: int, width: int) -> None:
    numbers = torch.rand(2000, 2 * TRIES + 2, generator=torch.Generator().manual_seed(1))
    areas, ratios = numbers[:, :TRIES], numbers[:, TRIES : 2 * TRIES]
    settings = {"height": height, "width": width, "scale": scale, "ratio": RATIO}
    ours = crop_boxes(areas, ratios, numbers[:, -2], numbers[:, -1], **settings)  # type: ignore[arg-type]
    assert ours.tolist() == [looped(row, scale, height, width) for row in numbers]
    down, across = ours[:, 0] + ours[:, 2], ours[:, 1] + ours[:, 3]
    assert float(ours[:, :2].min()) >= 0
    assert float(ours[:, 2:].min()) >= 1
    assert float(down.max()) <= height
    assert float(across.max()) <= width


@pytest.mark.parametrize(("height", "width"), [(10, 40), (40, 10), (16, 16)])
def test_where_nothing_fits_the_centre_is_cropped(height: int, width: int) -> None:
    ours = crop_boxes(
        torch.full((1, TRIES), 0.999), torch.zeros(1, TRIES), torch.zeros(1), torch.zeros(1),
        height=height, width=width, scale=(0.999, 1.0), ratio=RATIO,
    )  # fmt: skip
    expected = RandomResizedCrop.get_params(torch.empty(1, height, width), [4.0, 4.0], list(RATIO))
    assert ours[0].tolist() == list(map(float, expected))


def test_positions_reach_both_borders() -> None:
    most = np.nextafter(np.float32(1), np.float32(0))
    for number, expected in ((0.0, [0, 0]), (float(most), [4, 4])):
        place = torch.tensor([number])
        box = crop_boxes(
            torch.tensor([[0.0]]),
            torch.tensor([[0.5]]),
            place,
            place,
            height=8,
            width=8,
            scale=(0.25, 1.0),
            ratio=(0.5, 2),
        )
        assert box[0].tolist() == [*expected, 4, 4]
