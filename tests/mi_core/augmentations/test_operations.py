"""Every batched operation against torchvision's functional one, image by image, with the same parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as reference

from mi_core.augmentations import compiled, operations
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


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resized_crop(images: torch.Tensor, interpolation: str) -> None:
    height, width = images.shape[2:]
    tall = torch.randint(1, height + 1, (BATCH,), generator=generator(2))
    wide = torch.randint(1, width + 1, (BATCH,), generator=generator(3))
    top = (numbers(0, 1, 4) * (height - tall + 1)).long()
    left = (numbers(0, 1, 5) * (width - wide + 1)).long()
    for size in ((height, width), (5, 7), (40, 33)):
        boxes = torch.stack([top, left, tall, wide], dim=1).float()
        ours = operations.resized_crop(images, boxes, size, interpolation=interpolation)
        for row in range(BATCH):
            box = [int(top[row]), int(left[row]), int(tall[row]), int(wide[row])]
            theirs = reference.resized_crop(
                images[row], *box, list(size), InterpolationMode(interpolation), antialias=True
            )
            torch.testing.assert_close(ours[row], theirs.clamp(0, 1), atol=5e-6, rtol=0)


def test_crops_between_pixels_follow_the_image() -> None:
    ramp = torch.linspace(0, 1, 64).expand(1, 1, 64, 64).contiguous()
    cut = operations.resized_crop(ramp, torch.tensor([[3.3, 10.6, 40.2, 30.5]]), (64, 64))[0, 0, 0]
    where = (10.6 + (torch.arange(64) + 0.5) * 30.5 / 64 - 0.5) / 63  # the ramp at the sampled points
    torch.testing.assert_close(cut[2:-2], where[2:-2], atol=2e-6, rtol=0)


def test_a_mirrored_crop_is_the_crop_turned(images: torch.Tensor) -> None:
    chosen = numbers(0, 1) < 0.5
    boxes = torch.stack([numbers(0, 2), numbers(0, 2), numbers(3, 6), numbers(3, 6)], dim=1)
    straight = operations.resized_crop(images, boxes, size=(7, 9))
    ours = operations.resized_crop(images, boxes, size=(7, 9), mirrored=chosen)
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


FUNCTIONS = [reference.adjust_brightness, reference.adjust_contrast, reference.adjust_saturation, reference.adjust_hue]


def jitters() -> tuple[torch.Tensor, torch.Tensor]:
    """Factors and order of each image; every fifth image stays as it is."""
    factors = torch.stack([numbers(0, 2, seed=7), numbers(0, 2, seed=8), numbers(0, 2, seed=9), numbers(-0.5, 0.5)], 1)
    factors[::5] = torch.tensor([1.0, 1.0, 1.0, 0.0])
    return factors, torch.stack([torch.randperm(4, generator=generator(20 + row)) for row in range(BATCH)])


def jittered(image: torch.Tensor, factors: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """What torchvision makes of one image."""
    for index in order.tolist():
        image = FUNCTIONS[index](image, float(factors[index]))
    return image


def test_color_jitter_follows_the_order_of_each_image(images: torch.Tensor) -> None:
    factors, order = jitters()
    before = images.clone()
    ours = operations.color_jitter(images, factors, order)
    assert torch.equal(images, before)
    assert torch.equal(ours[::5], images[::5])
    for row in range(BATCH):
        torch.testing.assert_close(ours[row], jittered(images[row], factors[row], order[row]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("channels", "before", "after"),
    [(3, (16, 16), (16, 16)), (1, (20, 13), (16, 16)), (3, (64, 48), (9, 17)), (3, (9, 11), (30, 24))],
)
@pytest.mark.parametrize("integers", [True, False])
def test_the_compiled_pass_equals_torchvisions_operations(
    channels: int, before: tuple[int, int], after: tuple[int, int], integers: bool, threads: int
) -> None:
    height, width = before
    count = 2 * compiled.SPLIT
    pixels = torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator(3))
    top, left = (torch.randint(0, side // 2, (count,), generator=generator(side)) for side in before)
    tall = torch.tensor([int(torch.randint(1, height - int(row) + 1, (1,), generator=generator(4))) for row in top])
    wide = torch.tensor([int(torch.randint(1, width - int(row) + 1, (1,), generator=generator(5))) for row in left])
    factors, order = (given.repeat(count // BATCH + 1, 1)[:count] for given in jitters())
    mirrored, gray = (torch.rand(count, generator=generator(seed)) < 0.5 for seed in (6, 7))
    images = pixels if integers else pixels.float() / 255
    torch.set_num_threads(threads)
    try:
        ours = compiled.jittered_crops(
            images,
            torch.stack([top, left, tall, wide], dim=1).float(),
            after,
            mirrored=mirrored,
            factors=factors,
            order=order,
            gray=gray,
        )
    finally:
        torch.set_num_threads(1)
    assert ours.shape == (count, channels, *after)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    for row in range(count):
        box = (int(top[row]), int(left[row]), int(tall[row]), int(wide[row]))
        theirs = reference.resized_crop(
            pixels[row].float() / 255, *box, list(after), InterpolationMode.BILINEAR, antialias=True
        )
        theirs = jittered(theirs.flip(2) if mirrored[row] else theirs, factors[row], order[row])
        if gray[row] and channels == 3:
            theirs = reference.rgb_to_grayscale(theirs, 3)
        torch.testing.assert_close(ours[row], theirs, atol=1e-5, rtol=0)


def test_boxes_between_pixels_are_cut_alike_by_both() -> None:
    images = torch.rand(BATCH, 3, 12, 12, generator=generator(1))
    tall, wide = numbers(1, 12, seed=2), numbers(1, 12, seed=3)
    boxes = torch.stack([numbers(0, 1, seed=4) * (12 - tall), numbers(0, 1, seed=5) * (12 - wide), tall, wide], dim=1)
    neutral = torch.tensor(list(operations.JITTERS.values())).repeat(BATCH, 1)
    ours = compiled.jittered_crops(
        images,
        boxes,
        (12, 12),
        mirrored=torch.zeros(BATCH, dtype=torch.bool),
        factors=neutral,
        order=torch.arange(4).repeat(BATCH, 1),
        gray=torch.zeros(BATCH, dtype=torch.bool),
    )
    torch.testing.assert_close(ours, operations.resized_crop(images, boxes, (12, 12)), atol=1e-6, rtol=0)


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


def test_pillow_blur() -> None:
    texture = torch.randint(0, 256, (BATCH, 32, 32), generator=generator(), dtype=torch.uint8)
    sigma = numbers(0.1, 3)
    ours = operations.pillow_blur(texture[:, None] / 255, sigma)
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
