"""Image operations on batches with one parameter per image; each equals torchvision's functional one, image by image.

Letters: B images, C channels (1 or 3), H height, W width, S output size. Images are float32 in [0, 1], and stay there.
Nothing here draws random numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from mi_core.checks import ConfigError

_GRAY = (0.2989, 0.587, 0.114)
JITTERS = ("brightness", "contrast", "saturation", "hue")


def resized_crop(
    images: torch.Tensor,
    top: torch.Tensor,
    left: torch.Tensor,
    height: torch.Tensor,
    width: torch.Tensor,
    size: tuple[int, int],
) -> torch.Tensor:
    """Cut a box out of each image and resize it: bilinear, antialiased where it shrinks.

    Boxes may lie between pixels; a pixel belongs to the box if its centre does. With whole numbers this is
    ``torchvision.transforms.functional.resized_crop(..., antialias=True)``.

    Args:
        images: (B, C, H, W).
        top, left, height, width: (B,) in pixels, inside the image; height and width at least 1.
        size: height and width of the result.

    Returns:
        (B, C, *size)
    """
    rows = _resampling(top, height, images.shape[2], size[0])
    columns = _resampling(left, width, images.shape[3], size[1])
    cut = rows[:, None] @ images @ columns[:, None].transpose(2, 3)
    return cut.clamp_(0, 1)  # weights that sum to 1 within rounding


def _resampling(start: torch.Tensor, length: torch.Tensor, pixels: int, size: int) -> torch.Tensor:
    """(B, size, pixels) weights of every input pixel in every output pixel along one axis; rows sum to 1."""
    start, length = start[:, None, None], length[:, None, None]
    scale = length / size
    centres = torch.arange(pixels, device=start.device, dtype=torch.float32) + 0.5
    sampled = start + (torch.arange(size, device=start.device, dtype=torch.float32)[:, None] + 0.5) * scale
    weights = (1 - (centres - sampled).abs() / scale.clamp_min(1)).clamp_min(0)
    weights = weights * ((centres >= start) & (centres < start + length))
    return weights / weights.sum(dim=2, keepdim=True)


def horizontal_flip(images: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Mirror the images of a mask (B,) bool left to right."""
    return torch.where(_per_image(chosen), images.flip(3), images)


def rotate(images: torch.Tensor, degrees: torch.Tensor) -> torch.Tensor:
    """Turn each image counter-clockwise about its centre: bilinear, black outside; ``degrees`` (B,)."""
    radians = torch.deg2rad(degrees)
    cosine, sine = radians.cos(), radians.sin()
    height, width = images.shape[2:]
    zero = torch.zeros_like(cosine)
    # affine_grid counts in half widths and half heights, a rotation in pixels
    first = torch.stack([cosine, -sine * height / width, zero], dim=1)
    second = torch.stack([sine * width / height, cosine, zero], dim=1)
    grid = F.affine_grid(torch.stack([first, second], dim=1), list(images.shape), align_corners=False)
    turned = F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return turned.clamp_(0, 1)  # weights that sum to 1 within rounding


def adjust_brightness(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Multiply by ``factor`` (B,) >= 0: 0 is black, 1 the image."""
    return (images * _per_image(factor)).clamp(0, 1)


def adjust_contrast(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Blend with the mean grey of the image; ``factor`` (B,) >= 0: 0 is flat, 1 the image."""
    mean = _gray(images).mean(dim=(1, 2, 3), keepdim=True)
    return _blend(images, mean, factor)


def adjust_saturation(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Blend with the grey image; ``factor`` (B,) >= 0: 0 is grey, 1 the image. One channel: unchanged."""
    return images if images.shape[1] == 1 else _blend(images, _gray(images), factor)


def adjust_hue(images: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Turn the hue by ``shift`` (B,) in [-0.5, 0.5] of the colour circle. One channel: unchanged."""
    if images.shape[1] == 1:
        return images
    value, most = images.max(dim=1)
    least = images.min(dim=1).values
    chroma = value - least
    saturation = torch.where(value > 0, chroma / value.clamp_min(1e-12), torch.zeros_like(value))
    red, green, blue = images.unbind(1)
    safe = torch.where(chroma > 0, chroma, torch.ones_like(chroma))
    sextant = torch.stack([(green - blue) / safe, 2 + (blue - red) / safe, 4 + (red - green) / safe], dim=1)
    hue = sextant.gather(1, most[:, None])[:, 0] / 6 + shift[:, None, None]
    # HSV to RGB in closed form: channel n is value - value * saturation * max(0, min(k, 4 - k, 1)), k = (n + 6 h) mod 6
    offsets = torch.tensor([5.0, 3.0, 1.0], device=images.device)[None, :, None, None]
    place = torch.remainder(offsets + 6 * hue[:, None], 6)
    ramp = torch.minimum(place, 4 - place).clamp(0, 1)
    return (value[:, None] * (1 - saturation[:, None] * ramp)).clamp(0, 1)


def color_jitter(images: torch.Tensor, factors: dict[str, torch.Tensor], order: torch.Tensor) -> torch.Tensor:
    """Brightness, contrast, saturation and hue, each image in an order of its own.

    Args:
        images: (B, C, H, W).
        factors: name out of `JITTERS` to (B,) factors; a missing one is left out.
        order: (B, 4) int64: a permutation of the positions in `JITTERS` per image.

    Raises:
        ConfigError: an unknown name.
    """
    unknown = [name for name in factors if name not in JITTERS]
    if unknown:
        raise ConfigError(f"jitter {unknown[0]!r}, allowed: {', '.join(JITTERS)}")
    if len(factors) == 1:
        ((name, factor),) = factors.items()
        return _ADJUST[name](images, factor)
    result = images.clone()
    for position in range(len(JITTERS)):
        for name, factor in factors.items():
            rows = torch.nonzero(order[:, position] == JITTERS.index(name))[:, 0]
            if len(rows):
                result[rows] = _ADJUST[name](result[rows], factor[rows])
    return result


def grayscale(images: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Take the colour out of the images of a mask (B,) bool; the number of channels stays."""
    return torch.where(_per_image(chosen), _gray(images).expand_as(images), images)


def gaussian_blur(images: torch.Tensor, sigma: torch.Tensor, kernel: int) -> torch.Tensor:
    """Blur with a Gaussian of ``sigma`` (B,) pixels, reflected at the border.

    Args:
        images: (B, C, H, W), H and W larger than half the kernel.
        sigma: (B,) > 0.
        kernel: odd number of taps.

    Raises:
        ConfigError: the kernel is even or too large for the images.
    """
    reach = kernel // 2
    if kernel % 2 == 0 or reach >= min(images.shape[2:]):
        raise ConfigError(f"blur kernel = {kernel}, allowed: odd, below {2 * min(images.shape[2:])}")
    offsets = torch.arange(-reach, reach + 1, device=images.device, dtype=torch.float32)
    taps = torch.exp(-0.5 * (offsets / sigma[:, None]) ** 2)
    taps = taps / taps.sum(dim=1, keepdim=True)
    for axis in (2, 3):
        length = images.shape[axis]
        padding = (0, 0, reach, reach) if axis == 2 else (reach, reach, 0, 0)
        padded = F.pad(images, padding, mode="reflect")
        blurred = torch.zeros_like(images)
        for tap in range(kernel):
            blurred += _per_image(taps[:, tap]) * padded.narrow(axis, tap, length)
        images = blurred.clamp_(0, 1)  # taps that sum to 1 within rounding
    return images


def solarize(images: torch.Tensor, chosen: torch.Tensor, threshold: float = 0.5) -> torch.Tensor:
    """Invert the pixels at or above ``threshold`` in the images of a mask (B,) bool."""
    return torch.where(_per_image(chosen) & (images >= threshold), 1 - images, images)


_ADJUST: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "brightness": adjust_brightness,
    "contrast": adjust_contrast,
    "saturation": adjust_saturation,
    "hue": adjust_hue,
}


def _per_image(values: torch.Tensor) -> torch.Tensor:
    return values[:, None, None, None]


def _gray(images: torch.Tensor) -> torch.Tensor:
    """(B, 1, H, W) luma of ITU-R BT.601."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, dim=1)
    luma: torch.Tensor = _GRAY[0] * red + _GRAY[1] * green + _GRAY[2] * blue
    return luma


def _blend(images: torch.Tensor, other: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    share = _per_image(factor)
    return (share * images + (1 - share) * other).clamp(0, 1)
