"""The views of SimCLR (Chen et al., "A simple framework for contrastive learning", ICML 2020, appendix A and B.9).

Random resized crop, flip, colour jitter, grayscale, blur; with rotation and solarisation for other recipes of the
kind. The defaults are those for CIFAR-10: colour strength 0.5, no blur. Every quantity has a random number of its own,
at a fixed place of the stream, so switching one operation on does not change the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import permutations
from typing import ClassVar

import torch

from mi_core import runtime
from mi_core.augmentations import operations
from mi_core.augmentations.operations import ViewParameters
from mi_core.checks import ConfigError, check_choice, check_range
from mi_core.streams import uniforms

TRIES = 10
"""Boxes that are tried before the crop is the centre of the image (torchvision's number)."""


def _one_pass(device: str) -> Callable[[torch.Tensor, ViewParameters], torch.Tensor]:
    """What makes views of images on a kind of device."""
    fused = runtime.kernels("mi_core.augmentations.fused") if device == "cuda" else None
    if fused is not None:
        return fused.jittered_crops
    from mi_core.augmentations import compiled  # numba takes its time to import

    return compiled.jittered_crops


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


_ORDERS = torch.tensor(list(permutations(range(len(operations.JITTERS)))))  # (24, 4)
_COLUMNS = (
    "area", "ratio", "top", "left", "flip", "rotation", "jitter", "brightness", "contrast", "saturation", "hue",
    "order", "grayscale", "blur", "sigma", "solarize",
)  # fmt: skip
_NUMBERS = len(_COLUMNS) + 2 * (TRIES - 1)  # behind the columns: area and ratio of every further try


@dataclass(frozen=True)
class SimCLRAugmentation:
    """One random view per image.

    Args:
        crop_scale: range of the crop's share of the area, in (0, 1].
        crop_ratio: range of the crop's width / height; see `boxes`.
        flip: probability of a left-right flip.
        rotation: largest angle in degrees; outside is black.
        jitter_probability: probability of colour jitter.
        brightness, contrast, saturation: factors are uniform in [max(0, 1 - x), 1 + x].
        hue: shifts are uniform in [-x, x], x at most 0.5.
        grayscale: probability of losing the colour.
        blur: probability of a Gaussian blur, with a kernel of a tenth of the image (see `blurred`).
        blur_sigma: range of its standard deviation in pixels.
        solarize: probability of inverting the bright half.
        interpolation: how a crop is resized, ``bilinear`` or ``bicubic``.

    Raises:
        ConfigError: a probability or range is impossible.
    """

    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    rotation: float = 0.0
    jitter_probability: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    grayscale: float = 0.2
    blur: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarize: float = 0.0
    interpolation: str = "bilinear"

    gray_first: ClassVar[bool] = False
    """Whether the colour is lost before the jitter, not after it."""

    def __post_init__(self) -> None:
        for name in ("flip", "jitter_probability", "grayscale", "blur", "solarize"):
            check_range(f"augmentation.{name}", getattr(self, name), 0, 1)
        for name in ("brightness", "contrast", "saturation"):
            check_range(f"augmentation.{name}", getattr(self, name), 0)
        check_range("augmentation.hue", self.hue, 0, 0.5)
        check_range("augmentation.rotation", self.rotation, 0, 180)
        check_choice("augmentation.interpolation", self.interpolation, ("bilinear", "bicubic"))
        for name, high in (("crop_scale", 1.0), ("crop_ratio", math.inf), ("blur_sigma", math.inf)):
            low, top = getattr(self, name)
            if not 0 < low <= top <= high:
                raise ConfigError(f"augmentation.{name} = [{low}, {top}], allowed: 0 < low <= high <= {high:g}")

    def __call__(
        self,
        images: torch.Tensor,
        stream_keys: torch.Tensor,
        *,
        epoch: int,
        view: int | torch.Tensor,
        size: int | None = None,
    ) -> torch.Tensor:
        """One view of every image.

        Args:
            images: (B, C, H, W) uint8, or float32 in [0, 1].
            stream_keys: (B,) int64, from `streams.stream_keys`.
            epoch, view: which view; ``view`` may be one per image (B,).
            size: height and width S of the view; default: those of the images.

        Returns:
            (B, C, S, S) float32 in [0, 1].
        """
        drawn = uniforms(stream_keys, epoch=epoch, view=view, count=_NUMBERS)
        number = dict(zip(_COLUMNS, drawn.unbind(1), strict=False))
        height, width = images.shape[2:]
        wanted = (height, width) if size is None else (size, size)
        boxes = self.boxes(drawn, height, width)
        mirrored, gray = number["flip"] < self.flip, number["grayscale"] < self.grayscale
        factors, order = self._factors(number, images.shape[1])
        made = ViewParameters(
            boxes, wanted, mirrored, factors, order, gray, self.gray_first, interpolation=self.interpolation
        )
        one_pass = _one_pass(images.device.type)
        if self.rotation:
            neutral = factors.new_tensor(list(operations.JITTERS.values())).expand_as(factors)
            cut = one_pass(images, replace(made, factors=neutral, gray=torch.zeros_like(gray)))
            images = operations.rotate(cut, (2 * number["rotation"] - 1) * self.rotation)
            whole = boxes.new_tensor([0, 0, *wanted]).expand_as(boxes)
            made = replace(made, boxes=whole, mirrored=torch.zeros_like(mirrored))
        result = one_pass(images, made)
        blur, solarize = self.late(view)
        if isinstance(blur, torch.Tensor) or blur:
            low, high = self.blur_sigma
            blurred = self.blurred(result, low + (high - low) * number["sigma"])
            result = torch.where((number["blur"] < blur)[:, None, None, None], blurred, result)
        if isinstance(solarize, torch.Tensor) or solarize:
            result = operations.solarize(result, number["solarize"] < solarize)
        return result

    def late(self, view: int | torch.Tensor) -> tuple[float | torch.Tensor, float | torch.Tensor]:
        """Probabilities of blur and of solarisation, per recipe or per image (B,), in views ``view``."""
        return self.blur, self.solarize

    def blurred(self, images: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        """Images (B, C, H, W) blurred by ``sigma`` (B,) pixels.

        The kernel has an odd number of taps near a tenth of the image, at least 3 (SimCLR, appendix A).
        """
        return operations.gaussian_blur(images, sigma, kernel=max(3, 2 * (images.shape[3] // 20) + 1))

    def boxes(self, drawn: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Boxes of the crops, drawn as torchvision's ``RandomResizedCrop.get_params`` draws them, in batches.

        SimCLR's ports to PyTorch, MoCo (He et al., CVPR 2020) and open_clip all crop by it. A try draws a share of the
        area and the logarithm of the ratio of width to height, each uniformly, and rounds both sides. The first try
        that fits into the image is the box. If none fits, the box is the largest one in the centre whose ratio is
        allowed. Sides are computed in float64, so that no device or batch rounds one differently.

        Args:
            drawn: (B, 34) all random numbers of the views, in [0, 1).
            height, width: of the images, in pixels.

        Returns:
            (B, 4) float32: top, left, height and width in whole pixels, inside the image.
        """
        areas, ratios = (  # (B, TRIES) each
            torch.cat([drawn[:, [column]], drawn[:, len(_COLUMNS) + column :: 2]], dim=1).double() for column in (0, 1)
        )
        smallest, largest = self.crop_scale
        area = (smallest + (largest - smallest) * areas) * height * width
        low, high = map(math.log, self.crop_ratio)
        shape = torch.exp(low + (high - low) * ratios)
        wide, tall = (area * shape).sqrt().round(), (area / shape).sqrt().round()
        fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
        first = fits.int().argmax(dim=1, keepdim=True)
        wide, tall = wide.gather(1, first)[:, 0], tall.gather(1, first)[:, 0]
        top, left = (drawn[:, _COLUMNS.index(name)] for name in ("top", "left"))
        box = torch.stack([_offset(top, height - tall), _offset(left, width - wide), tall, wide], dim=1).float()
        centre = box.new_tensor(_centre(height, width, self.crop_ratio))
        return torch.where(fits.any(dim=1, keepdim=True), box, centre)

    def _factors(self, number: dict[str, torch.Tensor], channels: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Factors (B, 4) of the colour jitter in the order of `operations.JITTERS`, and the order of each image."""
        chosen = number["jitter"] < self.jitter_probability
        factors = []
        for name, neutral in operations.JITTERS.items():
            strength = getattr(self, name) if channels > 1 or name in ("brightness", "contrast") else 0.0
            low, high = (-strength, strength) if name == "hue" else (max(0.0, 1 - strength), 1 + strength)
            factors.append(torch.where(chosen, low + (high - low) * number[name], neutral))
        orders = _ORDERS.to(number["order"].device)
        return torch.stack(factors, dim=1), orders[(number["order"] * len(_ORDERS)).long()]
