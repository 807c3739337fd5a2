"""The SimCLR recipe: the right operations, each as often and as strongly as its settings say, from its own numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mi_core.augmentations import AUGMENTATIONS
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.augmentations.views import clean, make_views
from mi_core.checks import ConfigError, ShapeError
from mi_core.objectives import OBJECTIVES
from mi_core.streams import OF_PIXELS, pixel_streams, stream_keys, uniforms
from tests.raising import refused

FULL = SimCLRAugmentation(rotation=15, blur=0.5, solarize=0.2)
NUMBERS = 34  # random numbers of a view
OFF: dict[str, Any] = {
    "crop_scale": (1.0, 1.0),
    "crop_ratio": (1.0, 1.0),
    "flip": 0,
    "jitter_probability": 0,
    "grayscale": 0,
}


def inputs(count: int = 60, channels: int = 3, size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=generator)
    return images, stream_keys(2, "train", "pool", [str(row) for row in range(count)])


def test_every_framework_has_a_recipe() -> None:
    assert set(AUGMENTATIONS) == {*OBJECTIVES, "mae", "i-jepa"}  # encoders of the last two are loaded, not trained


def test_views_do_not_depend_on_batch_order_or_on_being_drawn_together() -> None:
    images, streams = inputs()
    together = make_views(images, streams, FULL, views=4)
    assert together.shape == (60, 4, 3, 16, 16)
    assert together.dtype == torch.float32
    assert 0 <= float(together.min()) <= float(together.max()) <= 1
    for view in range(4):
        torch.testing.assert_close(FULL(images, streams, epoch=0, view=view), together[:, view], atol=1e-6, rtol=0)
    rows = torch.tensor([41, 3, 17])
    torch.testing.assert_close(
        make_views(images[rows], streams[rows], FULL, views=4), together[rows], atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("name", ["simclr", "moco-v1", "moco-v3", "clip"])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_compiled_pass_and_the_batched_operations_draw_the_same_views(channels: int, name: str) -> None:
    images, streams = inputs(channels=channels)
    recipe = AUGMENTATIONS[name](blur=0.3, solarize=0.3)
    compiled = make_views(images, streams, recipe, views=3, size=24)
    batched = make_views(images, streams, replace(recipe, rotation=1e-6), views=3, size=24)  # the angle moves nothing
    torch.testing.assert_close(compiled, batched, atol=2e-5, rtol=0)


def test_parameters_are_bit_identical_for_any_batch() -> None:
    _, streams = inputs()
    whole = FULL.boxes(uniforms(streams, epoch=0, view=2, count=NUMBERS), 16, 16)
    for row in (0, 9, 59):
        alone = FULL.boxes(uniforms(streams[row : row + 1], epoch=0, view=2, count=NUMBERS), 16, 16)
        assert torch.equal(whole[row], alone[0])


def test_query_views_never_coincide_with_training_views() -> None:
    images, _ = inputs(8)
    training = stream_keys(0, "train", "pool", [str(row) for row in range(8)])
    asked = [pixel_streams(nonce, 0, purpose, images.byte()) for purpose in OF_PIXELS for nonce in ("", "7")]
    seen = torch.cat(
        [
            FULL(images, streams, epoch=epoch, view=view)
            for streams, epochs in ((training, range(5)), *((one, range(1)) for one in asked))
            for epoch in epochs
            for view in range(6)
        ]
    ).flatten(1)
    assert len(torch.unique(seen, dim=0)) == len(seen) == 8 * 6 * 9


@pytest.mark.parametrize(
    ("change", "share"),
    [
        ({"flip": 0.3}, 0.3),
        ({"jitter_probability": 0.6, "brightness": 0.5}, 0.6),
        ({"jitter_probability": 1.0, "hue": 0.2}, 1.0),
        ({"grayscale": 0.25}, 0.25),
        ({"blur": 0.7}, 0.7),
        ({"solarize": 0.2}, 0.2),
        ({"rotation": 10.0}, 1.0),
        ({}, 0.0),
    ],
    ids=str,
)
def test_operations_happen_as_often_as_asked(change: dict[str, Any], share: float) -> None:
    images, streams = inputs(600)
    settings = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0} | OFF | change
    drawn = SimCLRAugmentation(**settings)(images, streams, epoch=3, view=1)
    changed = (drawn - clean(images)).abs().flatten(1).amax(dim=1) > 1e-5
    assert abs(float(changed.float().mean()) - share) <= 4 * np.sqrt(share * (1 - share) / 600) + 1e-9


def test_switching_one_operation_on_leaves_the_others_alone() -> None:
    images, streams = inputs()
    plain = replace(FULL, solarize=0.0)(images, streams, epoch=0, view=0)
    more = FULL(images, streams, epoch=0, view=0)
    same = (plain == more).flatten(1).all(dim=1)
    chosen = uniforms(streams, epoch=0, view=0, count=16)[:, 15] < 0.2
    assert torch.equal(same, ~chosen)


def test_jitter_factors_are_those_of_the_recipe() -> None:
    images, streams = inputs()
    recipe = SimCLRAugmentation(**(OFF | {"jitter_probability": 1.0, "contrast": 0, "saturation": 0, "hue": 0}))
    factor = 0.6 + 0.8 * uniforms(streams, epoch=0, view=0, count=16)[:, 7]
    expected = (clean(images) * factor[:, None, None, None]).clamp(0, 1)
    torch.testing.assert_close(recipe(images, streams, epoch=0, view=0), expected, atol=1e-6, rtol=0)


def test_one_channel_keeps_no_colour_operations() -> None:
    images, streams = inputs(channels=1, size=8)
    strong = SimCLRAugmentation(**(OFF | {"jitter_probability": 1.0, "brightness": 0, "contrast": 0, "grayscale": 1.0}))
    torch.testing.assert_close(strong(images, streams, epoch=0, view=0), clean(images), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"flip": 1.5}, "augmentation.flip = 1.5"),
        ({"hue": 0.6}, "augmentation.hue = 0.6"),
        ({"brightness": -0.1}, "augmentation.brightness = -0.1"),
        ({"rotation": 270}, "augmentation.rotation = 270"),
        ({"crop_scale": (0.0, 1.0)}, r"augmentation.crop_scale = \[0.0, 1.0\]"),
        ({"crop_scale": (0.5, 1.2)}, "augmentation.crop_scale"),
        ({"crop_ratio": (2.0, 1.0)}, "augmentation.crop_ratio"),
        ({"blur_sigma": (0.0, 1.0)}, "augmentation.blur_sigma"),
        ({"interpolation": "nearest"}, "augmentation.interpolation = 'nearest', allowed: bicubic, bilinear"),
    ],
)
def test_impossible_settings(change: dict[str, Any], expected: str) -> None:
    refused(ConfigError, expected, SimCLRAugmentation, **change)


def test_wrong_shapes() -> None:
    images, streams = inputs(4)
    refused(ShapeError, "streams has shape", make_views, images, streams[:3], FULL, views=2)
    refused(ConfigError, "views = 0", make_views, images, streams, FULL, views=0)
