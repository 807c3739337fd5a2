"""The views of each pre-training framework but SimCLR's.

- MoCo: v1 (He et al., CVPR 2020, section 3.3), v2 (Chen et al., 2020) and v3 (ICCV 2021, appendix A). The operations
  and their order are those of the authors' code: v1 takes the colour out before the jitter, v2 and v3 blur with
  Pillow's filter. v3 treats its two views differently; the views of an attack take the two recipes in turn.
- BYOL (Grill et al., 2020, appendix B), which Barlow Twins and VICReg took over.
- CLIP (Radford et al., ICML 2021, section 2.3): a random square crop, and nothing else. The range of the crop and its
  bicubic interpolation are those of the open reproduction (open_clip); the paper does not give them.
- DINO (Caron et al., ICCV 2021, section A) as its released code draws them without small crops.
- I-JEPA (Assran et al., CVPR 2023, and its released settings): crops alone.
- MAE (He et al., CVPR 2022, section A.1): crops and flips alone.
- Supervised training in ContrastiveLeaks (He and Zhang, CCS 2021): the image, or its mirror image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from mi_core.augmentations import operations
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.checks import check_range


@dataclass(frozen=True)
class MoCoV1Augmentation(SimCLRAugmentation):
    """Random crop of at least 20 % of the area, grayscale 0.2, colour jitter always, flip; as for ImageNet."""

    crop_scale: tuple[float, float] = (0.2, 1.0)
    jitter_probability: float = 1.0
    hue: float = 0.4

    gray_first: ClassVar[bool] = True


@dataclass(frozen=True)
class MoCoV2Augmentation(SimCLRAugmentation):
    """v1's crop, milder jitter with probability 0.8, and a blur with probability 0.5; as for ImageNet."""

    crop_scale: tuple[float, float] = (0.2, 1.0)
    blur: float = 0.5

    def blurred(self, images: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        """Images (B, C, H, W) blurred by ``sigma`` (B,) pixels, as Pillow does it."""
        return operations.pillow_blur(images, sigma, self.blur_sigma[1])


@dataclass(frozen=True)
class MoCoV3Augmentation(MoCoV2Augmentation):
    """Even views are always blurred; odd ones with ``blur_odd``, solarised with ``solarize_odd``; as for ResNet-50."""

    saturation: float = 0.2
    blur: float = 1.0
    blur_odd: float = 0.1
    solarize_odd: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("augmentation.blur_odd", self.blur_odd, 0, 1)
        check_range("augmentation.solarize_odd", self.solarize_odd, 0, 1)

    def late(self, view: int | torch.Tensor) -> tuple[float | torch.Tensor, float | torch.Tensor]:
        """Probabilities of blur and of solarisation, which depend on the view."""
        odd = view % 2
        if not isinstance(odd, torch.Tensor):
            return (self.blur_odd, self.solarize_odd) if odd else (self.blur, self.solarize)
        blur = self.blur + (self.blur_odd - self.blur) * odd
        return blur, self.solarize + (self.solarize_odd - self.solarize) * odd


@dataclass(frozen=True)
class BYOLAugmentation(MoCoV3Augmentation):
    """MoCo v3's, with crops of at least 8 % of the area; as for ImageNet."""

    crop_scale: tuple[float, float] = (0.08, 1.0)


@dataclass(frozen=True)
class CLIPAugmentation(SimCLRAugmentation):
    """Random crop of at least 90 % of the area."""

    crop_scale: tuple[float, float] = (0.9, 1.0)
    flip: float = 0.0
    jitter_probability: float = 0.0
    grayscale: float = 0.0
    interpolation: str = "bicubic"


@dataclass(frozen=True)
class DINOAugmentation(MoCoV3Augmentation):
    """MoCo v3's, with crops of at least 14 % of the area, resized by bicubic interpolation."""

    crop_scale: tuple[float, float] = (0.14, 1.0)
    interpolation: str = "bicubic"


@dataclass(frozen=True)
class IJEPAAugmentation(SimCLRAugmentation):
    """Crops of at least 30 % of the area; nothing is flipped, no colours change."""

    crop_scale: tuple[float, float] = (0.3, 1.0)
    flip: float = 0.0
    jitter_probability: float = 0.0
    grayscale: float = 0.0


@dataclass(frozen=True)
class MAEAugmentation(SimCLRAugmentation):
    """Crops of at least 20 % of the area, resized by bicubic interpolation, and flips; no colours change."""

    crop_scale: tuple[float, float] = (0.2, 1.0)
    jitter_probability: float = 0.0
    grayscale: float = 0.0
    interpolation: str = "bicubic"


@dataclass(frozen=True)
class SupervisedAugmentation(SimCLRAugmentation):
    """The whole image, or its mirror image."""

    crop_scale: tuple[float, float] = (1.0, 1.0)
    crop_ratio: tuple[float, float] = (1.0, 1.0)
    jitter_probability: float = 0.0
    grayscale: float = 0.0
