"""Two views of an image find each other: perfectly where the embedding is the image, by chance where it is nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders.checkpoint import Encoder, channelwise
from mi_core.encoders.pixels import pixels
from mi_core.sanity import view_consistency
from mi_core.streams import stream_keys

COUNT = 100
IMAGES = torch.randint(0, 256, (COUNT, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
STREAMS = stream_keys(0, "probe", "pool", [str(row) for row in range(COUNT)])
MILD = SimCLRAugmentation(
    crop_scale=(0.95, 1.0), crop_ratio=(1.0, 1.0), flip=0, jitter_probability=1.0, brightness=0.3, contrast=0,
    saturation=0, hue=0, grayscale=0,
)  # fmt: skip


class _Fixed(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.kind == "noise":
            return torch.randn(len(images), 16, generator=torch.Generator().manual_seed(len(images)))
        return images.flatten(1)


def encoder(kind: str, size: int | None = None) -> Encoder:
    return Encoder(_Fixed(kind), {}, channelwise((0.0,), 3), channelwise((1.0,), 3), size=size)


def test_consistency() -> None:
    assert view_consistency(encoder("pixels"), IMAGES, STREAMS, MILD).value > 0.95
    chance = view_consistency(encoder("noise"), IMAGES, STREAMS, MILD)
    assert chance.low <= 1 / COUNT <= chance.high
    assert chance.value < 0.1
    bare = view_consistency(None, IMAGES, STREAMS, MILD)
    assert (bare.value, bare.n) == (view_consistency(encoder("pixels"), IMAGES, STREAMS, MILD).value, COUNT)
    assert view_consistency(encoder("pixels", size=12), IMAGES, STREAMS, MILD).value > 0.95
    assert torch.equal(pixels(IMAGES), IMAGES.flatten(1))


def test_bad_input() -> None:
    with pytest.raises(ShapeError, match="streams has shape"):
        view_consistency(None, IMAGES, STREAMS[:3], MILD)
    with pytest.raises(ConfigError, match="images = 1"):
        view_consistency(None, IMAGES[:1], STREAMS[:1], MILD)
