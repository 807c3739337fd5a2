"""Views of each recipe against the transform that its authors published, written with Pillow and torchvision."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms as T
from PIL import Image, ImageFilter, ImageOps
from scipy.stats import ks_2samp

from mi_core.augmentations import AUGMENTATIONS, operations
from mi_core.augmentations.frameworks import MoCoV1Augmentation
from mi_core.streams import stream_keys

SIZE, COUNT = 40, 1500
CRITICAL = math.sqrt(-math.log(1e-5 / 2) / COUNT)  # see test_crop_boxes


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
    gray = operations.grayscale(image / 255, torch.ones(64, dtype=torch.bool))
    whole = {"crop_scale": (1.0, 1.0), "crop_ratio": (1.0, 1.0), "flip": 0.0, "grayscale": 1.0}
    for rotation in (0.0, 1e-6):  # the compiled pass, and the batched operations
        recipe = MoCoV1Augmentation(**whole, rotation=rotation)  # type: ignore[arg-type]
        ours = recipe(image, streams, epoch=0, view=0)
        plain = MoCoV1Augmentation(**whole | {"grayscale": 0.0}, rotation=rotation)  # type: ignore[arg-type]
        torch.testing.assert_close(ours, plain(gray, streams, epoch=0, view=0), atol=2e-5, rtol=0)
