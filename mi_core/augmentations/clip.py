"""The views of CLIP (Radford et al., ICML 2021, section 2.3): a random square crop, and nothing else.

The range of the crop and its bicubic interpolation are those of the open reproduction (open_clip); the paper does not
give them.
"""

from __future__ import annotations

from dataclasses import dataclass

from mi_core.augmentations.simclr import SimCLRAugmentation


@dataclass(frozen=True)
class CLIPAugmentation(SimCLRAugmentation):
    """Random crop of at least 90 % of the area."""

    crop_scale: tuple[float, float] = (0.9, 1.0)
    flip: float = 0.0
    jitter_probability: float = 0.0
    grayscale: float = 0.0
    interpolation: str = "bicubic"
