"""The views of DINO (Caron et al., ICCV 2021, section A) as its released code draws them without small crops."""

from __future__ import annotations

from dataclasses import dataclass

from mi_core.augmentations.moco import MoCoV3Augmentation


@dataclass(frozen=True)
class DINOAugmentation(MoCoV3Augmentation):
    """MoCo v3's, with crops of at least 14 % of the area, resized by bicubic interpolation."""

    crop_scale: tuple[float, float] = (0.14, 1.0)
    interpolation: str = "bicubic"
