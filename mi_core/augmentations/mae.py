"""The views of MAE (He et al., CVPR 2022, section A.1): crops and flips alone."""

from __future__ import annotations

from dataclasses import dataclass

from mi_core.augmentations.simclr import SimCLRAugmentation


@dataclass(frozen=True)
class MAEAugmentation(SimCLRAugmentation):
    """Crops of at least 20 % of the area, resized by bicubic interpolation, and flips; no colours change."""

    crop_scale: tuple[float, float] = (0.2, 1.0)
    jitter_probability: float = 0.0
    grayscale: float = 0.0
    interpolation: str = "bicubic"
