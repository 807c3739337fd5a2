"""Every batched operation against torchvision's functional one, image by image, with the same parameters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as reference

from mi_core.augmentations import operations
from mi_core.checks import ConfigError

BATCH = 24


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=[(3, 32, 32), (1, 8, 8), (3, 17, 24)], ids=str)
def images(request: pytest.FixtureRequest) -> torch.Tensor:
    drawn = torch.rand((BATCH, *request.param), generator=generator())
    drawn[0], drawn[1], drawn[2] = 0, 1, 0.25  # black, white and flat images have no hue and no contrast
    drawn[3] = drawn[3].round()
    return drawn


def numbers(low: float, high: float, seed: int = 1) -> torch.Tensor:
    return low + (high - low) * torch.rand(BATCH, generator=generator(seed))


def test_resized_crop(images: torch.Tensor) -> None:
    height, width = images.shape[2:]
    tall = torch.randint(1, height + 1, (BATCH,), generator=generator(2))
    wide = torch.randint(1, width + 1, (BATCH,), generator=generator(3))
    top = (numbers(0, 1, 4) * (height - tall + 1)).long()
    left = (numbers(0, 1, 5) * (width - wide + 1)).long()
    for size in ((height, width), (5, 7), (40, 33)):
        ours = operations.resized_crop(images, top.float(), left.float(), tall.float(), wide.float(), size)
        for row in range(BATCH):
            box = [int(top[row]), int(left[row]), int(tall[row]), int(wide[row])]
            theirs = reference.resized_crop(images[row], *box, list(size), InterpolationMode.BILINEAR, antialias=True)
            torch.testing.assert_close(ours[row], theirs, atol=2e-6, rtol=0)


def test_crops_between_pixels_follow_the_image() -> None:
    ramp = torch.linspace(0, 1, 64).expand(1, 1, 64, 64).contiguous()
    box = [torch.tensor([value]) for value in (3.3, 10.6, 40.2, 30.5)]
    cut = operations.resized_crop(ramp, *box, (64, 64))[0, 0, 0]
    where = (10.6 + (torch.arange(64) + 0.5) * 30.5 / 64 - 0.5) / 63  # the ramp at the sampled points
    torch.testing.assert_close(cut[2:-2], where[2:-2], atol=2e-6, rtol=0)


def test_a_mirrored_crop_is_the_crop_turned(images: torch.Tensor) -> None:
    chosen = numbers(0, 1) < 0.5
    box = (numbers(0, 2), numbers(0, 2), numbers(3, 6), numbers(3, 6))
    straight = operations.resized_crop(images, *box, size=(7, 9))
    ours = operations.resized_crop(images, *box, size=(7, 9), mirrored=chosen)
    for row in range(BATCH):
        torch.testing.assert_close(
            ours[row], straight[row].flip(2) if chosen[row] else straight[row], atol=1e-6, rtol=0
        )


def test_rotate(images: torch.Tensor) -> None:
    degrees = numbers(-180, 180)
    ours = operations.rotate(images, degrees)
    for row in range(BATCH):
        theirs = reference.rotate(images[row], float(degrees[row]), InterpolationMode.BILINEAR)
        torch.testing.assert_close(ours[row], theirs, atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "theirs", "low", "high"),
    [
        ("brightness", reference.adjust_brightness, 0, 2),
        ("contrast", reference.adjust_contrast, 0, 2),
        ("saturation", reference.adjust_saturation, 0, 2),
        ("hue", reference.adjust_hue, -0.5, 0.5),
    ],
)
def test_adjustments(
    images: torch.Tensor, name: str, theirs: Callable[..., torch.Tensor], low: float, high: float
) -> None:
    images[0] = images[0, :1]  # a grey image has no hue
    factors = numbers(low, high)
    order = torch.arange(4).expand(BATCH, 4)
    result = operations.color_jitter(images, {name: factors}, order, torch.ones(BATCH, dtype=torch.bool))
    for row in range(BATCH):
        torch.testing.assert_close(result[row], theirs(images[row], float(factors[row])), atol=3e-6, rtol=0)


def test_color_jitter_follows_the_order_of_each_image(images: torch.Tensor) -> None:
    functions = [
        reference.adjust_brightness,
        reference.adjust_contrast,
        reference.adjust_saturation,
        reference.adjust_hue,
    ]
    factors = {
        name: numbers(*((-0.5, 0.5) if name == "hue" else (0, 2)), seed=7 + index)
        for index, name in enumerate(operations.JITTERS)
    }
    order = torch.stack([torch.randperm(4, generator=generator(20 + row)) for row in range(BATCH)])
    before = images.clone()
    chosen = torch.arange(BATCH) % 5 > 0
    ours = operations.color_jitter(images, factors, order, chosen)
    assert torch.equal(images, before)
    for row in range(BATCH):
        expected = images[row]
        for index in order[row].tolist() if chosen[row] else ():
            expected = functions[index](expected, float(factors[operations.JITTERS[index]][row]))
        torch.testing.assert_close(ours[row], expected, atol=1e-5, rtol=0)
    with pytest.raises(ConfigError, match="jitter 'gamma', allowed: brightness"):
        operations.color_jitter(images, {"gamma": factors["hue"]}, order, chosen)


def test_grayscale(images: torch.Tensor) -> None:
    chosen = numbers(0, 1) < 0.5
    ours = operations.grayscale(images, chosen)
    for row in range(BATCH):
        gray = images.shape[1] == 1 or not chosen[row]
        theirs = images[row] if gray else reference.rgb_to_grayscale(images[row], 3)
        torch.testing.assert_close(ours[row], theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kernel", [3, 7])
def test_gaussian_blur(images: torch.Tensor, kernel: int) -> None:
    sigma = numbers(0.1, 2)
    ours = operations.gaussian_blur(images, sigma, kernel)
    for row in range(BATCH):
        theirs = reference.gaussian_blur(images[row], [kernel, kernel], [float(sigma[row])] * 2)
        torch.testing.assert_close(ours[row], theirs, atol=3e-6, rtol=0)


@pytest.mark.parametrize("kernel", [4, 17, 65])
def test_blur_kernels_that_do_not_fit(kernel: int) -> None:
    with pytest.raises(ConfigError, match=f"blur kernel = {kernel}, allowed: odd, below 16"):
        operations.gaussian_blur(torch.zeros(2, 1, 8, 8), torch.ones(2), kernel)


def test_solarize(images: torch.Tensor) -> None:
    chosen = numbers(0, 1) < 0.5
    ours = operations.solarize(images, chosen)
    for row in range(BATCH):
        theirs = reference.solarize(images[row], 0.5) if chosen[row] else images[row]
        torch.testing.assert_close(ours[row], theirs)
