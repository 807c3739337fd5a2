"""Every batched operation against torchvision's functional one, image by image, with the same parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as reference

from mi_core.augmentations import compiled, fused, operations
from mi_core.augmentations.operations import ViewParameters
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


def test_rotate(images: torch.Tensor) -> None:
    degrees = numbers(-180, 180)
    ours = operations.rotate(images, degrees)
    for row in range(BATCH):
        theirs = reference.rotate(images[row], float(degrees[row]), InterpolationMode.BILINEAR)
        torch.testing.assert_close(ours[row], theirs, atol=2e-5, rtol=0)


PASSES = {"compiled": compiled.jittered_crops, "fused": fused.jittered_crops}
"""Ways to make a view; the second is Triton's, which its interpreter computes where there is no GPU."""
FUNCTIONS = [reference.adjust_brightness, reference.adjust_contrast, reference.adjust_saturation, reference.adjust_hue]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def parameters(boxes: torch.Tensor, size: tuple[int, int], **changed: Any) -> ViewParameters:
    """A crop alone, but for what is given."""
    neutral = torch.tensor(list(operations.JITTERS.values())).repeat(len(boxes), 1)
    none, order = torch.zeros(len(boxes), dtype=torch.bool), torch.arange(4).repeat(len(boxes), 1)
    return replace(ViewParameters(boxes, size, none, neutral, order, none), **changed)


def made(way: str, images: torch.Tensor, given: ViewParameters) -> torch.Tensor:
    """The views of one way, on the CPU."""
    if way == "compiled":
        return compiled.jittered_crops(images, given)
    sent = {name: one.to(DEVICE) for name, one in vars(given).items() if isinstance(one, torch.Tensor)}
    return fused.jittered_crops(images.to(DEVICE), replace(given, **sent)).cpu()


def jitters(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Factors and order of each image; every fifth image stays as it is."""
    factors = 2 * torch.rand(count, 4, generator=generator(7))
    factors[:, operations.HUE] = factors[:, operations.HUE] / 2 - 0.5
    factors[::5] = torch.tensor([1.0, 1.0, 1.0, 0.0])
    return factors, torch.stack([torch.randperm(4, generator=generator(20 + row)) for row in range(count)])


@pytest.mark.parametrize(
    ("way", "count", "threads", "integers"),
    [("compiled", 128, 1, True), ("compiled", 128, 3, False), ("fused", 5, 1, True), ("fused", 5, 1, False)],
)
@pytest.mark.parametrize(
    ("channels", "before", "after", "interpolation", "gray_first"),
    [
        (3, (16, 16), (16, 16), "bilinear", False),
        (1, (20, 13), (16, 16), "bilinear", True),
        (3, (32, 24), (9, 17), "bicubic", True),
        (3, (9, 11), (30, 24), "bilinear", False),  # in two blocks of the kernel
    ],
)
def test_views_equal_torchvisions_operations(
    way: str,
    count: int,
    threads: int,
    integers: bool,
    channels: int,
    before: tuple[int, int],
    after: tuple[int, int],
    interpolation: str,
    gray_first: bool,
) -> None:
    height, width = before
    pixels = torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator(3))
    pixels[2], pixels[3] = 0, 64  # black and flat images have no hue and no contrast
    top, left = (torch.randint(0, side // 2, (count,), generator=generator(side)) for side in before)
    tall = torch.tensor([int(torch.randint(1, height - int(row) + 1, (1,), generator=generator(4))) for row in top])
    wide = torch.tensor([int(torch.randint(1, width - int(row) + 1, (1,), generator=generator(5))) for row in left])
    factors, order = jitters(count)
    mirrored, gray = (torch.rand(count, generator=generator(seed)) < 0.5 for seed in (6, 7))
    given = parameters(
        torch.stack([top, left, tall, wide], dim=1).float(),
        after,
        mirrored=mirrored,
        factors=factors,
        order=order,
        gray=gray,
        gray_first=gray_first,
        interpolation=interpolation,
    )
    torch.set_num_threads(threads)
    try:
        ours = made(way, pixels if integers else pixels.float() / 255, given)
    finally:
        torch.set_num_threads(1)
    assert ours.shape == (count, channels, *after)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    for row in range(count):
        box = (int(top[row]), int(left[row]), int(tall[row]), int(wide[row]))
        theirs = reference.resized_crop(
            pixels[row].float() / 255, *box, list(after), InterpolationMode(interpolation), antialias=True
        ).clamp(0, 1)
        theirs = theirs.flip(2) if mirrored[row] else theirs
        steps = [lambda image, row=row: jittered(image, factors[row], order[row])]
        if gray[row] and channels == 3:
            steps.insert(0 if gray_first else 1, lambda image: reference.rgb_to_grayscale(image, 3))
        for step in steps:
            theirs = step(theirs)
        torch.testing.assert_close(ours[row], theirs, atol=1e-5, rtol=0)


def jittered(image: torch.Tensor, factors: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """What torchvision makes of one image."""
    for index in order.tolist():
        image = FUNCTIONS[index](image, float(factors[index]))
    return image


@pytest.mark.parametrize("way", PASSES)
def test_crops_between_pixels_follow_the_image(way: str) -> None:
    ramp = torch.linspace(0, 1, 64).expand(1, 1, 64, 64).contiguous()
    cut = made(way, ramp, parameters(torch.tensor([[3.3, 10.6, 40.2, 30.5]]), (64, 64)))[0, 0, 0]
    where = (10.6 + (torch.arange(64) + 0.5) * 30.5 / 64 - 0.5) / 63  # the ramp at the sampled points
    torch.testing.assert_close(cut[2:-2], where[2:-2], atol=2e-6, rtol=0)


@pytest.mark.parametrize("border", ["reflect", "replicate"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_kernel_that_filters_equals_the_tensors_way(border: str, layout: torch.memory_format) -> None:
    images = torch.rand(5, 3, 17, 13, generator=generator(1)).contiguous(memory_format=layout)
    taps = torch.rand(5, 7, generator=generator(2))
    taps = (taps + taps.flip(1)) / taps.sum(dim=1, keepdim=True) / 2
    ours = fused.filtered(images.to(DEVICE), taps.to(DEVICE), border).cpu()
    torch.testing.assert_close(ours, operations._filtered(images, taps, border), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kernel", [3, 7])
def test_gaussian_blur(images: torch.Tensor, kernel: int) -> None:
    sigma = numbers(0.1, 2)
    ours = operations.gaussian_blur(images, sigma, kernel)
    for row in range(BATCH):
        theirs = reference.gaussian_blur(images[row], [kernel, kernel], [float(sigma[row])] * 2)
        torch.testing.assert_close(ours[row], theirs, atol=3e-6, rtol=0)


def test_pillow_blur() -> None:
    texture = torch.randint(0, 256, (BATCH, 32, 32), generator=generator(), dtype=torch.uint8)
    sigma = numbers(0.1, 3)
    ours = operations.pillow_blur(texture[:, None] / 255, sigma, 3)
    for row in range(BATCH):
        blurred = Image.fromarray(texture[row].numpy()).filter(ImageFilter.GaussianBlur(float(sigma[row])))
        theirs = torch.from_numpy(np.asarray(blurred).copy()) / 255
        torch.testing.assert_close(ours[row, 0], theirs, atol=3.1 / 255, rtol=0)  # it rounds to 8 bits six times
        assert float((ours[row, 0] - theirs).abs().mean()) < 1.2 / 255  # several times as much with other taps


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
