"""Common parts of the benchmarks: their cases, how images are augmented, a slow encoder, and how a rate is told."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from mi_core.provenance import now, versions
from pipelines.errors import UserError

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


def chosen_of(given: Iterable[str], known: Iterable[str]) -> list[str]:
    """The cases that ``--case`` asks for; nothing given: all.

    Raises:
        UserError: a case is not known.
    """
    allowed = list(known)
    chosen = list(given) or allowed
    for name in chosen:
        if name not in allowed:
            raise UserError(f"--case {name}, allowed: {', '.join(allowed)}")
    return chosen


def dated(**result: Any) -> dict[str, Any]:
    """A result with its date and the versions of the packages."""
    return {**result, "created": now(), "versions": versions()}


LATENCY_VIEWS, LATENCY_SECONDS, LATENCY_REQUESTS = 64, 0.05, 40  # of a request, and requests per chunk


def slow_answer(images: torch.Tensor) -> torch.Tensor:
    """As behind a network: images (B, C, H, W) to means (B, 3 C) of the whole, of the upper and of the left half."""
    for _ in images.split(LATENCY_VIEWS):
        time.sleep(LATENCY_SECONDS)
    half = images.shape[2] // 2
    parts = (images, images[:, :, :half], images[:, :, :, :half])
    return torch.cat([part.mean(dim=(2, 3)) for part in parts], dim=1)
