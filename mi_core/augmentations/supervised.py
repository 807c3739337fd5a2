"""The views of supervised training in ContrastiveLeaks (He and Zhang, CCS 2021): the image, or its mirror image."""

from __future__ import annotations

from dataclasses import dataclass

from mi_core.augmentations.simclr import SimCLRAugmentation


@dataclass(frozen=True)
class SupervisedAugmentation(SimCLRAugmentation):
    """The whole image, or its mirror image."""

    crop_scale: tuple[float, float] = (1.0, 1.0)
    crop_ratio: tuple[float, float] = (1.0, 1.0)
    jitter_probability: float = 0.0
    grayscale: float = 0.0
