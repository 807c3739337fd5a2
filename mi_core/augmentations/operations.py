"""Image operations on batches with one parameter per image; each equals torchvision's functional one, image by image.

Letters: B images, C channels (1 or 3), H height, W width, S output size. Images are float32 in [0, 1], and stay there.
Nothing here draws random numbers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from mi_core.checks import ConfigError

GRAY = (0.2989, 0.587, 0.114)
"""Luma of ITU-R BT.601."""
JITTERS = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0}
"""Operations of a colour jitter, with the factor (of hue, the shift) that changes nothing."""
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(len(JITTERS))
"""Their positions."""


def resized_crop(
    images: torch.Tensor,
    boxes: torch.Tensor,
    size: tuple[int, int],
    mirrored: torch.Tensor | None = None,
    interpolation: str = "bilinear",
) -> torch.Tensor:
    """Cut a box out of each image and resize it, antialiased where it shrinks.

    Boxes may lie between pixels; a pixel belongs to the box if its centre does. With whole numbers this is
    ``torchvision.transforms.functional.resized_crop(..., antialias=True)``, clamped to [0, 1].

    Args:
        images: (B, C, H, W).
        boxes: (B, 4): top, left, height and width in pixels, inside the image; height and width at least 1.
        size: height and width of the result.
        mirrored: (B,) bool, results to turn left to right (which costs nothing here); None: none.
        interpolation: ``bilinear`` or ``bicubic`` (Keys' kernel with a = -0.5, as Pillow has it).

    Returns:
        (B, C, *size)
    """
    batch, channels, down, across = images.shape
    top, left, height, width = boxes.unbind(1)
    rows = _resampling(top, height, down, size[0], interpolation)
    columns = _resampling(left, width, across, size[1], interpolation)
    if mirrored is not None:
        columns = torch.where(mirrored[:, None, None], columns.flip(1), columns)
    # the channels stand beside the columns, so that each axis is one large product per image
    lines = rows @ images.transpose(1, 2).reshape(batch, down, channels * across)
    cut = lines.reshape(batch, size[0] * channels, across) @ columns.transpose(1, 2)
    cut = cut.reshape(batch, size[0], channels, size[1]).transpose(1, 2)
    return cut.clamp_(0, 1)  # weights that sum to 1 within rounding


def _resampling(start: torch.Tensor, length: torch.Tensor, pixels: int, size: int, interpolation: str) -> torch.Tensor:
    """(B, size, pixels) weights of every input pixel in every output pixel along one axis; rows sum to 1."""
    start, length = start[:, None, None], length[:, None, None]
    scale = length / size
    centres = torch.arange(pixels, device=start.device, dtype=torch.float32) + 0.5
    sampled = start + (torch.arange(size, device=start.device, dtype=torch.float32)[:, None] + 0.5) * scale
    distances = (centres - sampled).abs_().div_(scale.clamp_min(1))
    weights = _cubic(distances) if interpolation == "bicubic" else distances.neg_().add_(1).clamp_min_(0)
    weights.mul_((centres >= start) & (centres < start + length))
    return weights.div_(weights.sum(dim=2, keepdim=True))


def _cubic(distances: torch.Tensor) -> torch.Tensor:
    """Weights of Keys' cubic kernel with a = -0.5 at distances >= 0 in pixels; 0 from 2 pixels on."""
    near = (1.5 * distances - 2.5) * distances**2 + 1
    far = ((2.5 - 0.5 * distances) * distances - 4) * distances + 2
    return torch.where(distances < 1, near, torch.where(distances < 2, far, 0.0))


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


def adjust_hue(images: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Turn the hue by ``shift`` (B,) in [-0.5, 0.5] of the colour circle. One channel: unchanged."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    most = torch.maximum(torch.maximum(red, green), blue)
    least = torch.minimum(torch.minimum(red, green), blue)
    chroma = most - least
    inverse = chroma.clamp_min(1e-12).reciprocal_()
    # the hue in sixths of the circle, by the strongest channel; comparing and choosing is several times slower
    hue = torch.lerp((red - green).mul_(inverse).add_(4), (blue - red).mul_(inverse).add_(2), _is(green, most))
    hue = torch.lerp(hue, (green - blue).mul_(inverse), _is(red, most))
    hue += 6 * shift[:, None, None]
    hue.sub_((hue / 6).floor_(), alpha=6)
    # HSV to RGB in closed form: each channel rises from the least by a trapezoid of the hue
    result = torch.empty_like(images)
    torch.addcmul(least, chroma, (hue - 3).abs_().sub_(1).clamp_(0, 1), out=result[:, 0])
    torch.addcmul(least, chroma, (hue - 2).abs_().neg_().add_(2).clamp_(0, 1), out=result[:, 1])
    torch.addcmul(least, chroma, (hue - 4).abs_().neg_().add_(2).clamp_(0, 1), out=result[:, 2])
    return result.clamp_(0, 1)


def _is(channel: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
    """1.0 where a channel is the largest, else 0.0; the smallest difference of two floats in [0, 1] is above 1e-30."""
    return (channel - most).mul_(1e30).add_(1).clamp_(0, 1)


def color_jitter(images: torch.Tensor, factors: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Brightness, contrast, saturation and hue, each image in an order of its own.

    Brightness blends with black, contrast with the mean grey of the image, saturation with the grey image: 0 is that
    other image, 1 the image itself, more goes beyond it. With one channel saturation and hue change nothing.

    Args:
        images: (B, C, H, W).
        factors: (B, 4) in the order of `JITTERS`: three factors >= 0, and a shift of the hue as in `adjust_hue`. An
            image with all of them neutral stays as it is.
        order: (B, 4) int64: a permutation of the positions in `JITTERS` per image.
    """
    # images side by side that turn their hue at the same step, the unchanged ones last: every step works on slices
    chosen = (factors != factors.new_tensor(list(JITTERS.values()))).any(dim=1)
    hue_step = torch.where(chosen, (order == HUE).int().argmax(dim=1), len(JITTERS))
    rank = torch.argsort(hue_step, stable=True)
    *sizes, rest = torch.bincount(hue_step, minlength=len(JITTERS) + 1).tolist()
    factors, order, result = (given.index_select(0, rank) for given in (factors, order, images))
    changed, start, turns = len(images) - rest, 0, bool(factors[:, HUE].any())
    for step, size in enumerate(sizes):
        _blend(result[:changed], factors[:changed], order[:changed, step])
        same = slice(start, start + size)
        if turns and size:
            result[same] = adjust_hue(result[same], factors[same, HUE])
        start += size
    return result.index_select(0, torch.argsort(rank))


def _blend(images: torch.Tensor, factors: torch.Tensor, turn: torch.Tensor) -> None:
    """Brightness, contrast or saturation in place, as ``turn`` (B,) says for each image."""
    own = factors.gather(1, turn[:, None])[:, 0]
    factor = torch.where(turn == HUE, 1.0, own)
    gray = _gray(images)
    mean = gray.mean(dim=(1, 2, 3), keepdim=True) * _per_image(turn == CONTRAST)
    other = torch.addcmul(mean, gray, _per_image((turn == SATURATION).to(gray.dtype)))
    images.lerp_(other.expand_as(images), _per_image(1 - factor)).clamp_(0, 1)


def grayscale(images: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Take the colour out of the images of a mask (B,) bool; the number of channels stays."""
    return torch.lerp(_gray(images).expand_as(images), images, _per_image((~chosen).to(images.dtype)))


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
    return _filtered(images, taps / taps.sum(dim=1, keepdim=True), "reflect")


def pillow_blur(images: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """Blur as Pillow's ``ImageFilter.GaussianBlur(sigma)`` does: three box blurs, the border repeated.

    The boxes have fractional ends, so that their variance is exactly ``sigma`` squared (Gwosdek et al., "Theoretical
    foundations of Gaussian convolution by extended box filtering", SSVM 2011).

    Args:
        images: (B, C, H, W).
        sigma: (B,) >= 0 pixels.
    """
    variance = sigma[:, None] ** 2 / 3  # of each of the three boxes
    inner = (((12 * variance + 1).sqrt() - 1) / 2).floor()
    end = (2 * inner + 1) * (inner * (inner + 1) - 3 * variance) / (6 * (variance - (inner + 1) ** 2))
    reach = int(inner.max()) + 1
    offsets = torch.arange(-reach, reach + 1, device=images.device).abs()
    box = torch.where(offsets <= inner, 1.0, torch.where(offsets == inner + 1, end, 0.0)) / (2 * inner + 1 + 2 * end)
    for _ in range(3):
        images = _filtered(images, box, "replicate")
    return images


def _filtered(images: torch.Tensor, taps: torch.Tensor, border: str) -> torch.Tensor:
    """Filter the rows and columns of each image with its own symmetric taps (B, an odd number), which sum to 1."""
    reach = taps.shape[1] // 2
    for axis in (2, 3):
        length = images.shape[axis]
        padding = (0, 0, reach, reach) if axis == 2 else (reach, reach, 0, 0)
        padded = F.pad(images, padding, mode=border)
        blurred = torch.zeros_like(images)
        for tap in range(taps.shape[1]):
            blurred += _per_image(taps[:, tap]) * padded.narrow(axis, tap, length)
        images = blurred.clamp_(0, 1)  # taps that sum to 1 within rounding
    return images


def solarize(images: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Invert the pixels at or above 0.5 in the images of a mask (B,) bool."""
    return torch.where(_per_image(chosen) & (images >= 0.5), 1 - images, images)


def _per_image(values: torch.Tensor) -> torch.Tensor:
    return values[:, None, None, None]


def _gray(images: torch.Tensor) -> torch.Tensor:
    """(B, 1, H, W) luma of ITU-R BT.601."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, dim=1)
    luma: torch.Tensor = (GRAY[0] * red).add_(green, alpha=GRAY[1]).add_(blue, alpha=GRAY[2])
    return luma
