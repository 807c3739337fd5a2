"""The SimCLR recipe: operations as often and as strong as its settings say; crop boxes; and recipes as published."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms as T
from PIL import Image, ImageFilter, ImageOps
from scipy.stats import ks_2samp
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.functional import rgb_to_grayscale

from mi_core.augmentations import AUGMENTATIONS
from mi_core.augmentations.frameworks import MoCoV1Augmentation
from mi_core.augmentations.simclr import TRIES, SimCLRAugmentation
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
    assert set(AUGMENTATIONS) == {*OBJECTIVES, "byol", "barlow-twins", "mae", "i-jepa"}  # these are loaded, not trained


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
def test_a_turn_stands_between_crop_and_jitter_and_changes_nothing_else(channels: int, name: str) -> None:
    images, streams = inputs(channels=channels)
    recipe = AUGMENTATIONS[name](blur=0.3, solarize=0.3)
    straight = make_views(images, streams, recipe, views=3, size=24)
    turned = make_views(images, streams, replace(recipe, rotation=1e-6), views=3, size=24)  # the angle moves nothing
    torch.testing.assert_close(straight, turned, atol=2e-5, rtol=0)


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


RATIO = (3 / 4, 4 / 3)


def placed(numbers: torch.Tensor) -> torch.Tensor:
    """All numbers of views (B, 34) of areas, ratios (B, TRIES each), top and left, in this order in ``numbers``."""
    tries = torch.stack([numbers[:, :TRIES], numbers[:, TRIES : 2 * TRIES]], dim=2)
    unused = torch.zeros(len(numbers), NUMBERS - 2 * TRIES - 2)
    return torch.cat([tries[:, 0], numbers[:, -2:], unused, tries[:, 1:].flatten(1)], dim=1)


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
    ours = SimCLRAugmentation(crop_scale=scale, crop_ratio=RATIO).boxes(placed(numbers), height, width)
    assert ours.tolist() == [looped(row, scale, height, width) for row in numbers]
    down, across = ours[:, 0] + ours[:, 2], ours[:, 1] + ours[:, 3]
    assert float(ours[:, :2].min()) >= 0
    assert float(ours[:, 2:].min()) >= 1
    assert float(down.max()) <= height
    assert float(across.max()) <= width


@pytest.mark.parametrize(("height", "width"), [(10, 40), (40, 10), (16, 16)])
def test_where_nothing_fits_the_centre_is_cropped(height: int, width: int) -> None:
    numbers = torch.tensor([[0.999] * TRIES + [0.0] * (TRIES + 2)])
    ours = SimCLRAugmentation(crop_scale=(0.999, 1.0), crop_ratio=RATIO).boxes(placed(numbers), height, width)
    expected = RandomResizedCrop.get_params(torch.empty(1, height, width), [4.0, 4.0], list(RATIO))
    assert ours[0].tolist() == list(map(float, expected))


def test_positions_reach_both_borders() -> None:
    most = np.nextafter(np.float32(1), np.float32(0))
    for number, expected in ((0.0, [0, 0]), (float(most), [4, 4])):
        numbers = torch.tensor([[0.0] * TRIES + [0.5] * TRIES + [number, number]])
        box = SimCLRAugmentation(crop_scale=(0.25, 1.0), crop_ratio=(0.5, 2)).boxes(placed(numbers), 8, 8)
        assert box[0].tolist() == [*expected, 4, 4]


SIZE, COUNT = 40, 1500
CRITICAL = math.sqrt(-math.log(1e-5 / 2) / COUNT)  # two-sample Kolmogorov-Smirnov at 1e-5


def blur(image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


def crop(least: float, interpolation: T.InterpolationMode = T.InterpolationMode.BILINEAR) -> T.RandomResizedCrop:
    return T.RandomResizedCrop(SIZE, scale=(least, 1.0), interpolation=interpolation)


def some(probability: float, transform: object) -> T.RandomApply:
    return T.RandomApply([transform], p=probability)


FLIP, GRAY = T.RandomHorizontalFlip(), T.RandomGrayscale(0.2)
STRONG, MILD = T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.ColorJitter(0.4, 0.4, 0.2, 0.1)
PUBLISHED = {
    "simclr": [crop(0.08), FLIP, some(0.8, STRONG), GRAY],
    "moco-v1": [crop(0.2), GRAY, T.ColorJitter(0.4, 0.4, 0.4, 0.4), FLIP],
    "moco-v2": [crop(0.2), some(0.8, STRONG), GRAY, some(0.5, blur), FLIP],
    "moco-v3, view 0": [crop(0.2), some(0.8, MILD), GRAY, some(1.0, blur), FLIP],
    "moco-v3, view 1": [crop(0.2), some(0.8, MILD), GRAY, some(0.1, blur), some(0.2, ImageOps.solarize), FLIP],
    "clip": [crop(0.9, T.InterpolationMode.BICUBIC)],
}


def photo() -> torch.Tensor:
    """(3, SIZE, SIZE) uint8: colours that change slowly, with fine texture."""
    generator = torch.Generator().manual_seed(3)
    colours = F.interpolate(torch.rand(1, 3, 5, 5, generator=generator), size=(SIZE, SIZE), mode="bicubic")[0]
    texture = 0.05 * torch.randn(3, SIZE, SIZE, generator=generator)
    return ((colours + texture).clamp(0, 1) * 255).to(torch.uint8)


def measures(views: torch.Tensor) -> dict[str, np.ndarray]:
    """Numbers per view, on the scale of 8 bits, that every operation of a recipe moves."""
    views = (views * 255).round()
    gray = views.mean(dim=1)
    across, down = gray.diff(dim=2).abs(), gray.diff(dim=1).abs()
    left, right = gray[:, :, : SIZE // 2], gray[:, :, SIZE // 2 :]
    found = {f"mean {channel}": views[:, channel].mean(dim=(1, 2)).round() for channel in range(3)}
    found |= {
        "contrast": gray.std(dim=(1, 2)),
        "colour": (views.amax(dim=1) - views.amin(dim=1)).mean(dim=(1, 2)),
        "texture across": across.mean(dim=(1, 2)),
        "texture down": down.mean(dim=(1, 2)),
        "curvature": gray.diff(n=2, dim=2).abs().mean(dim=(1, 2)),
        "border": across[:, :, 0].mean(dim=1),
        "left against right": left.mean(dim=(1, 2)) - right.mean(dim=(1, 2)),
        "darkest": (gray.amin(dim=(1, 2)) / 2).round(),
        "brightest": (gray.amax(dim=(1, 2)) / 2).round(),
    }
    return {name: values.numpy() for name, values in found.items()}


@pytest.mark.parametrize("published", PUBLISHED)
def test_views_have_the_distribution_of_the_published_transform(published: str) -> None:
    name, _, view = published.partition(", view ")
    image = photo()
    transform = T.Compose([*PUBLISHED[published], T.ToTensor()])
    random.seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pillow = Image.fromarray(image.permute(1, 2, 0).numpy())
        theirs = torch.stack([transform(pillow) for _ in range(COUNT)])
    streams = stream_keys(0, "train", "pool", list(map(str, range(COUNT))))
    ours = AUGMENTATIONS[name]()(image.expand(COUNT, -1, -1, -1), streams, epoch=0, view=int(view or 0))
    expected = measures(theirs)
    for measure, found in measures(ours).items():
        assert ks_2samp(found, expected[measure]).statistic < CRITICAL, measure


def test_moco_v1_takes_the_colour_out_before_the_jitter() -> None:
    image = photo().expand(64, -1, -1, -1)
    streams = stream_keys(0, "train", "pool", list(map(str, range(64))))
    gray = rgb_to_grayscale(image / 255, 3)
    whole = {"crop_scale": (1.0, 1.0), "crop_ratio": (1.0, 1.0), "flip": 0.0, "grayscale": 1.0}
    for rotation in (0.0, 1e-6):  # in one pass, and in two
        recipe = MoCoV1Augmentation(**whole, rotation=rotation)  # type: ignore[arg-type]
        ours = recipe(image, streams, epoch=0, view=0)
        plain = MoCoV1Augmentation(**whole | {"grayscale": 0.0}, rotation=rotation)  # type: ignore[arg-type]
        torch.testing.assert_close(ours, plain(gray, streams, epoch=0, view=0), atol=2e-5, rtol=0)
