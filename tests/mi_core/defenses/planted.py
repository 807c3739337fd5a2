"""Small classifiers whose answers give something away by construction, and attackers who are trained on answers."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from torch import nn

from mi_core.defenses.base import ProviderData, answers
from mi_core.encoders.checkpoint import Encoder, channelwise

WIDTH, CLASSES, VALUES = 16, 4, 3


def attribute_images(count: int, seed: int, shift: float = 50) -> ProviderData:
    """Images of 4 x 4 pixels: one of pixels 0 to 2 is brighter by the attribute, one of 8 to 11 by the class."""
    generator = np.random.default_rng(seed)
    attributes, labels = generator.integers(0, VALUES, count), generator.integers(0, CLASSES, count)
    pixels = generator.normal(128, 25, (count, WIDTH))
    pixels[np.arange(count), attributes] += shift
    pixels[np.arange(count), 8 + labels] += 90
    images = torch.tensor(pixels.clip(0, 255).reshape(count, 1, 4, 4), dtype=torch.uint8)
    return ProviderData(images, torch.tensor(labels), torch.tensor(attributes))


def classifier() -> Encoder:
    """Tells the class of `attribute_images`; its embedding is the pixels."""
    backbone, head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
    with torch.no_grad():
        backbone.weight.copy_(torch.eye(WIDTH))
        head.weight.copy_(3 * torch.eye(WIDTH)[8 : 8 + CLASSES])
        for layer in (backbone, head):
            layer.bias.zero_()
    return encoder_of(nn.Sequential(nn.Flatten(), backbone), head)


def encoder_of(backbone: nn.Module, head: nn.Module) -> Encoder:
    """A classifier of grey images around 1/2."""
    return Encoder(backbone, {"logits": head}, channelwise((0.5,), 1), channelwise((0.25,), 1)).eval()


def through_a_file(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state as it comes back from files of arrays, of NumPy and of safetensors."""
    file = io.BytesIO()
    np.savez(file, **state)
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        return dict(safetensors.numpy.load(safetensors.numpy.save(dict(arrays))))


def same_answers(one: Encoder, other: Encoder, images: torch.Tensor) -> bool:
    """Whether two encoders answer with the same bits."""
    with torch.inference_mode():
        found, expected = one(images.float() / 255), other(images.float() / 255)
    return found.keys() == expected.keys() and all(torch.equal(found[output], expected[output]) for output in found)


class Sharper(nn.Module):
    """Logits of ten classes of `membership_images`, larger by what only members' images have."""

    classes = 10

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(10, 12, generator=torch.Generator().manual_seed(0)))

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        sure = 1 + 3 * embeddings[:, 12:].mean(dim=1, keepdim=True).clamp_min(0)
        found: torch.Tensor = sure * (embeddings[:, :12] @ self.weight.T)
        return found


def membership_images(count: int, seed: int, *, member: bool) -> ProviderData:
    """Images whose last row is brighter if they were trained on; the class is what `Sharper` tells of three in four."""
    generator = np.random.default_rng(seed)
    pixels = np.concatenate(
        [generator.integers(40, 216, (count, 12)), generator.normal(170 if member else 110, 30, (count, 4))], axis=1
    )
    images = torch.tensor(pixels.clip(0, 255).reshape(count, 1, 4, 4), dtype=torch.uint8)
    labels = answers(encoder_of(nn.Flatten(), Sharper()), images, "logits").argmax(dim=1)
    wrong = torch.from_numpy(generator.random(count) < 0.25)
    return ProviderData(images, torch.where(wrong, (labels + 1) % Sharper.classes, labels))
