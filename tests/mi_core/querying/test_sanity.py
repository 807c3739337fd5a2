"""Two views of an image find each other: perfectly where the embedding is the image, by chance where it is nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders.checkpoint import Encoder, channelwise
from mi_core.encoders.pixels import pixels
from mi_core.querying.sanity import agreement, consistency, recognises, views_found
from mi_core.streams import stream_keys

COUNT = 100
IMAGES = torch.randint(0, 256, (COUNT, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
STREAMS = stream_keys(0, "train", "pool", [str(row) for row in range(COUNT)])
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


def found(kind: str | None, size: int | None = None) -> torch.Tensor:
    return views_found(None if kind is None else encoder(kind, size), IMAGES, STREAMS, MILD)


def test_consistency() -> None:
    assert consistency(found("pixels")).value > 0.95
    chance = consistency(found("noise"))
    assert chance.low <= 1 / COUNT <= chance.high
    assert chance.value < 0.1
    bare = consistency(found(None))
    assert (bare.value, bare.n) == (consistency(found("pixels")).value, COUNT)
    assert consistency(found("pixels", size=12)).value > 0.95
    assert torch.equal(pixels(IMAGES), IMAGES.flatten(1))


def hits(*runs: tuple[int, int]) -> torch.Tensor:
    """Runs of (value, how often)."""
    return torch.tensor([bool(value) for value, times in runs for _ in range(times)])


@pytest.mark.parametrize(
    ("own", "reference", "works"),
    [
        (hits((1, 20), (0, 44)), hits((1, 20), (0, 44)), False),  # the same images: nothing learned
        (hits((1, 20), (0, 44)), hits((0, 44), (1, 20)), False),  # others, as many
        (hits((1, 24), (0, 40)), hits((1, 18), (0, 46)), True),  # the same and six more: 1/64, though intervals overlap
        (hits((1, 23), (0, 41)), hits((1, 18), (0, 46)), False),  # five more: 1/32
        (hits((1, 18), (0, 46)), hits((1, 40), (0, 24)), False),  # worse
        (hits((1, 63), (0, 1)), hits((1, 64)), True),  # nearly all: no room to be better
        (hits((1, 58), (0, 6)), hits((1, 64)), False),
    ],
)
def test_an_encoder_works_if_it_is_surely_better_on_the_same_images(
    own: torch.Tensor, reference: torch.Tensor, works: bool
) -> None:
    assert recognises(own, reference) is works


def test_recognition_is_of_the_same_images() -> None:
    with pytest.raises(ShapeError, match="reference has shape"):
        recognises(hits((1, 4)), hits((1, 3)))
    with pytest.raises(ShapeError, match="matched has shape"):
        consistency(torch.ones(2, 2, dtype=torch.bool))


def test_bad_input() -> None:
    with pytest.raises(ShapeError, match="streams has shape"):
        views_found(None, IMAGES, STREAMS[:3], MILD)
    with pytest.raises(ConfigError, match="images = 1"):
        views_found(None, IMAGES[:1], STREAMS[:1], MILD)


def test_two_ways_of_decoding_are_compared() -> None:
    same = agreement(encoder("pixels"), IMAGES, IMAGES)
    assert (round(same.cosine, 5), round(same.centred, 5), same.images) == (1.0, 1.0, COUNT)
    brighter = (IMAGES.int() + 40).clamp(0, 255).to(torch.uint8)
    apart = agreement(encoder("pixels"), IMAGES, brighter)
    assert apart.centred < apart.cosine < 0.999
    with pytest.raises(ShapeError, match="second"):
        agreement(encoder("pixels"), IMAGES, IMAGES[1:])
