"""Pre-training frameworks: a loss on the embeddings of views. `OBJECTIVES` is their table."""

from __future__ import annotations

from mi_core.objectives.base import Objective
from mi_core.objectives.clip import CLIP, SigLIP
from mi_core.objectives.dino import DINO
from mi_core.objectives.moco import MoCoV1, MoCoV2, MoCoV3
from mi_core.objectives.simclr import SimCLR
from mi_core.objectives.supervised import Supervised
from mi_core.objectives.talos import Talos
from mi_core.objectives.vicreg import VICReg

OBJECTIVES: dict[str, type[Objective]] = {
    "simclr": SimCLR,
    "moco-v1": MoCoV1,
    "moco-v2": MoCoV2,
    "moco-v3": MoCoV3,
    "vicreg": VICReg,
    "dino": DINO,
    "clip": CLIP,
    "siglip": SigLIP,
    "supervised": Supervised,
    "talos": Talos,
}
