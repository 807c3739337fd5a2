"""Image operations on batches with one parameter per image; each equals torchvision's functional one, image by image.

Letters: B images, C channels (1 or 3), H height, W width, S output size. Images are float32 in [0, 1], and stay there.
Nothing here draws random numbers. Crop, colour jitter and grayscale are one pass: `compiled` on the CPU, `fused` on
CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from mi_core import runtime
from mi_core.checks import ConfigError

GRAY = (0.2989, 0.587, 0.114)
"""Luma of ITU-R BT.601."""
JITTERS = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0}
"""Operations of a colour jitter, with the factor (of hue, the shift) that changes nothing."""
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(len(JITTERS))
"""Their positions."""


@dataclass(frozen=True)
class ViewParameters:
    """Crop, mirroring, colour jitter and grayscale of B images, in this order.

    A crop is resized, antialiased where it shrinks, as torchvision's ``resized_crop`` does, and clamped to [0, 1].
    Brightness blends with black, contrast with the mean grey of the view, saturation with the grey view: 0 is that
    other image, 1 the view itself, more goes beyond it. With one channel saturation, hue and grayscale change nothing.

    Args:
        boxes: (B, 4) float32: top, left, height and width in pixels, inside the image; height and width at least 1.
            They may lie between pixels; a pixel belongs to the box if its centre does.
        size: height and width of the view.
        mirrored: (B,) bool, views to turn left to right.
        factors: (B, 4) float32 in the order of `JITTERS`: three factors >= 0 and a shift of the hue in [-0.5, 0.5] of
            the colour circle; 1, 1, 1 and 0 change nothing.
        order: (B, 4) int64: a permutation of these positions per image.
        gray: (B,) bool, views to take the colour out of.
        gray_first: take it out before the jitter, not after it.
        interpolation: ``bilinear`` or ``bicubic`` (Keys' kernel with a = -0.5, as Pillow has it).
    """

    boxes: torch.Tensor
    size: tuple[int, int]
    mirrored: torch.Tensor
    factors: torch.Tensor
    order: torch.Tensor
    gray: torch.Tensor
    gray_first: bool = False
    interpolation: str = "bilinear"


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


def pillow_blur(images: torch.Tensor, sigma: torch.Tensor, most: float) -> torch.Tensor:
    """Blur as Pillow's ``ImageFilter.GaussianBlur(sigma)`` does: three box blurs, the border repeated.

    The boxes have fractional ends, so that their variance is exactly ``sigma`` squared (Gwosdek et al., "Theoretical
    foundations of Gaussian convolution by extended box filtering", SSVM 2011).

    Args:
        images: (B, C, H, W).
        sigma: (B,) >= 0 pixels.
        most: none of them is larger; from the host, which need not wait for those of a GPU.
    """
    variance = sigma[:, None] ** 2 / 3  # of each of the three boxes
    inner = (((12 * variance + 1).sqrt() - 1) / 2).floor()
    end = (2 * inner + 1) * (inner * (inner + 1) - 3 * variance) / (6 * (variance - (inner + 1) ** 2))
    reach = int(((4 * most**2 + 1) ** 0.5 - 1) / 2) + 1
    offsets = torch.arange(-reach, reach + 1, device=images.device).abs()
    box = torch.where(offsets <= inner, 1.0, torch.where(offsets == inner + 1, end, 0.0)) / (2 * inner + 1 + 2 * end)
    for _ in range(3):
        images = _filtered(images, box, "replicate")
    return images


def _filtered(images: torch.Tensor, taps: torch.Tensor, border: str) -> torch.Tensor:
    """Filter the rows and columns of each image with its own symmetric taps (B, an odd number), which sum to 1."""
    if images.device.type == "cuda" and (fused := runtime.kernels("mi_core.augmentations.fused")):
        return fused.filtered(images, taps, border)
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
