"""The views of I-JEPA (Assran et al., CVPR 2023, and its released settings): crops alone."""

from __future__ import annotations

from dataclasses import dataclass

from mi_core.augmentations.simclr import SimCLRAugmentation


@dataclass(frozen=True)
class IJEPAAugmentation(SimCLRAugmentation):
    """Crops of at least 30 % of the area; nothing is flipped, no colours change."""

    crop_scale: tuple[float, float] = (0.3, 1.0)
    flip: float = 0.0
    jitter_probability: float = 0.0
    grayscale: float = 0.0
