"""The views of BYOL (Grill et al., 2020, appendix B), which Barlow Twins and VICReg took over."""

from __future__ import annotations

from dataclasses import dataclass

from mi_core.augmentations.moco import MoCoV3Augmentation


@dataclass(frozen=True)
class BYOLAugmentation(MoCoV3Augmentation):
    """MoCo v3's, with crops of at least 8 % of the area; as for ImageNet."""

    crop_scale: tuple[float, float] = (0.08, 1.0)
