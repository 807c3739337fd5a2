"""Common parts of the benchmarks: how images are augmented, and how a rate is told."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

RECIPE: dict[str, Any] = {"crop_scale": (0.2, 1.0), "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def torchvision_view(size: int) -> list[Any]:
    """The steps of `RECIPE` as torchvision has them: a PIL image to a view (3, size, size) in [0, 1]."""
    from torchvision import transforms

    jitter = transforms.ColorJitter(*(RECIPE[name] for name in ("brightness", "contrast", "saturation", "hue")))
    return [
        transforms.RandomResizedCrop(size, scale=RECIPE["crop_scale"]),
        transforms.RandomHorizontalFlip(),
        transforms.RandomApply([jitter], p=0.8),
        transforms.RandomGrayscale(p=0.2),
        transforms.ToTensor(),
    ]


def spread(rates: Sequence[float], digits: int = 2) -> dict[str, float]:
    """Median, least and most of some rates, rounded."""
    found = {"median": statistics.median(rates), "least": min(rates), "most": max(rates)}
    return {name: round(value, digits) for name, value in found.items()}
