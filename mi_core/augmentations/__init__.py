"""Random views of images: one recipe per pre-training framework, as batched tensor operations.

`AUGMENTATIONS` is the table of recipes, under the names of `mi_core.objectives.OBJECTIVES`; `operations` holds what
the recipes are made of, `views` several views of each image.
"""

from __future__ import annotations

from mi_core.augmentations.byol import BYOLAugmentation
from mi_core.augmentations.clip import CLIPAugmentation
from mi_core.augmentations.dino import DINOAugmentation
from mi_core.augmentations.i_jepa import IJEPAAugmentation
from mi_core.augmentations.mae import MAEAugmentation
from mi_core.augmentations.moco import MoCoV1Augmentation, MoCoV2Augmentation, MoCoV3Augmentation
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.augmentations.supervised import SupervisedAugmentation

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
