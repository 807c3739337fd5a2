"""PartCrop (Zhu et al., CCS 2024): whether an encoder recognises where a part of an image belongs.

A part of an image is compared with all positions of the image's feature map. For a member the responses concentrate
where the part lies.

129 queries per image: a global view, whose feature map must be visible, and 128 small parts of it, see
`mi_core.features.part_energy`. The network has hidden layers of 512, 256 and 128 with weights from N(0, 0.01), trained
by Adam at 1e-3 with a weight decay of 5e-4 for 100 epochs in batches of 100. The last epoch is used; the released
script picks the best one on the test samples. Members and non-members get the same global view; there they do not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from torch import nn

from mi_core import mlp
from mi_core.attacks.network import NetworkAttack, TrainingParameters
from mi_core.features import Measure
from mi_core.features.part_energy import PartEnergies
from mi_core.records import Features


@dataclass(frozen=True)
class PartCropParameters(TrainingParameters):
    """Settings of PartCrop.

    Args:
        parts: parts per image.
        part_ratio: by how much their side is less than the image's: 2 in the paper for images of 32 pixels, 4 for those
            of 64. An encoder that takes one size only gets its parts enlarged to that.
        weight_decay: L2 penalty of Adam.
    """

    parts: int = 128
    part_ratio: int = 2
    weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        self.measure()
        super().__post_init__()

    def measure(self) -> PartEnergies:
        """Divergences of the parts' responses."""
        return PartEnergies(self.parts, self.part_ratio)

    def training(self) -> mlp.Training:
        """Optimizer and schedule."""
        return replace(super().training(), weight_decay=self.weight_decay)


class PartCrop(NetworkAttack):
    """A network on how concentrated the responses of parts to the feature map are.

    It draws crops of its own and does not have to know how the encoder was trained. An API that answers one vector per
    image shows no feature map, so there it cannot be run.
    """

    name = "part-crop"
    queries = "129"
    threat_model = (
        "embeddings of parts and the feature map of a view; known members and non-members, or a shadow encoder"
    )
    source = "PartCrop (CCS 2024)"
    reference = frozenset({"known", "shadow"})
    outputs = ("backbone",)
    Parameters = PartCropParameters

    @property
    def needs(self) -> tuple[Measure, ...]:
        """Divergences of the parts' responses."""
        return (self.parameters.measure(),)

    def _inputs(self, features: Features) -> npt.NDArray[np.float32]:
        return np.asarray(features[self.needs[0]], dtype=np.float32)

    def _network(self, width: int) -> nn.Module:
        network = mlp.layers(width, 512, 256, 128, 1)
        for layer in network:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.01)
                nn.init.zeros_(layer.bias)
        return network
