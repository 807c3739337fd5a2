"""Random views of images: one recipe per pre-training framework, as batched tensor operations.

`AUGMENTATIONS` is the table of recipes, under the names of `mi_core.objectives.OBJECTIVES`, and of four frameworks
whose encoders are only loaded; `operations` holds what the recipes are made of, `views` several views of each image.
"""

from __future__ import annotations

from mi_core.augmentations.frameworks import (
    BYOLAugmentation,
    CLIPAugmentation,
    DINOAugmentation,
    IJEPAAugmentation,
    MAEAugmentation,
    MoCoV1Augmentation,
    MoCoV2Augmentation,
    MoCoV3Augmentation,
    SupervisedAugmentation,
)
from mi_core.augmentations.simclr import SimCLRAugmentation

AUGMENTATIONS: dict[str, type[SimCLRAugmentation]] = {
    "simclr": SimCLRAugmentation,
    "moco-v1": MoCoV1Augmentation,
    "moco-v2": MoCoV2Augmentation,
    "moco-v3": MoCoV3Augmentation,
    "byol": BYOLAugmentation,
    "barlow-twins": BYOLAugmentation,
    "vicreg": BYOLAugmentation,
    "dino": DINOAugmentation,
    "mae": MAEAugmentation,
    "i-jepa": IJEPAAugmentation,
    "clip": CLIPAugmentation,
    "siglip": CLIPAugmentation,
    "supervised": SupervisedAugmentation,
    "talos": SimCLRAugmentation,
}
