"""Boxes of random resized crops, drawn as torchvision's ``RandomResizedCrop.get_params`` draws them, in batches.

SimCLR's ports to PyTorch, MoCo (He et al., CVPR 2020) and open_clip all crop by it. Letters: B images, T tries.
"""

from __future__ import annotations

import math

import torch

TRIES = 10
"""Boxes that are tried before the crop is the centre of the image (torchvision's number)."""


def crop_boxes(
    areas: torch.Tensor,
    ratios: torch.Tensor,
    top: torch.Tensor,
    left: torch.Tensor,
    *,
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> torch.Tensor:
    """Turn uniform numbers into boxes of whole pixels.

    A try draws a share of the area and the logarithm of the ratio of width to height, each uniformly, and rounds both
    sides. The first try that fits into the image is the box. If none fits, the box is the largest one in the centre
    whose ratio is allowed. Sides are computed in float64, so that no device or batch rounds one differently.

    Args:
        areas, ratios: (B, T) uniform numbers in [0, 1), one of each per try.
        top, left: (B,) uniform numbers in [0, 1) for the position.
        height, width: of the images, in pixels.
        scale: range of the share of the area.
        ratio: range of width / height.

    Returns:
        (B, 4) float32: top, left, height and width in whole pixels, inside the image.

    Example:
        >>> first, second = torch.tensor([[0.5]]), torch.tensor([[0.5]])
        >>> crop_boxes(first, second, torch.zeros(1), torch.zeros(1), height=8, width=8, scale=(.2, 1), ratio=(.5, 2))
        tensor([[0., 0., 6., 6.]])
    """
    area = (scale[0] + (scale[1] - scale[0]) * areas.double()) * height * width
    low, high = math.log(ratio[0]), math.log(ratio[1])
    shape = torch.exp(low + (high - low) * ratios.double())
    wide, tall = (area * shape).sqrt().round(), (area / shape).sqrt().round()
    fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
    first = fits.int().argmax(dim=1, keepdim=True)
    wide, tall = wide.gather(1, first)[:, 0], tall.gather(1, first)[:, 0]
    down, across = _offset(top, height - tall), _offset(left, width - wide)
    drawn = torch.stack([down, across, tall, wide], dim=1).float()
    return torch.where(fits.any(dim=1, keepdim=True), drawn, drawn.new_tensor(_centre(height, width, ratio)))


def _offset(number: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
    """A whole number from 0 to ``most``, each equally likely."""
    return (number.double() * (most + 1)).floor()


def _centre(height: int, width: int, ratio: tuple[float, float]) -> list[int]:
    """Top, left, height and width of the largest box in the centre of the image whose ratio is allowed."""
    tall, wide = height, width
    if width / height < ratio[0]:
        tall = round(width / ratio[0])
    elif width / height > ratio[1]:
        wide = round(height * ratio[1])
    return [(height - tall) // 2, (width - wide) // 2, tall, wide]
