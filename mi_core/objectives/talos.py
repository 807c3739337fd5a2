"""Talos (He and Zhang, "Quantifying and mitigating privacy risks of contrastive learning", CCS 2021, section 5.1).

SimCLR against an adversary that tells a sensitive attribute of the images from the backbone's embeddings: equation 8,
L = L_contrastive - lambda L_adversary, through a gradient reversal layer, adversary and encoder taking turns by epoch
(algorithm 1). Of E epochs the encoder is trained in E / 2. The adversary reads both views (equation 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import VARIANTS, check_choice, check_range
from mi_core.objectives.base import numbered, width_of
from mi_core.objectives.gradient_reversal import Adversary, reverse
from mi_core.objectives.simclr import SimCLR, SimCLRParameters


@dataclass(frozen=True)
class TalosParameters(SimCLRParameters):
    """Settings of SimCLR, and of the adversary.

    Args:
        values: K: the attribute is 0 to K - 1.
        factor: lambda, how much the adversary counts; the paper finds 2 to 3 best.
        variant: with ``paper`` the adversary takes the first epoch, with ``released`` the encoder does, and the
            adversary ends in a ReLU (an epoch of the authors' script is two here).
    """

    values: int = 2
    factor: float = 2.0
    variant: str = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("values", self.values, 2)
        check_range("factor", self.factor, 0)
        check_choice("variant", self.variant, VARIANTS)


class Talos(SimCLR):
    """SimCLR that hides an attribute (ContrastiveLeaks, CCS 2021): an adversary and the encoder take turns by epoch.

    It is chosen where an encoder is trained, not added to one that is there. The adversary is smaller than the attacks
    it stands for: that it fails does not show that they do, so audit with larger ones (`attribute_inference`).
    """

    Parameters = TalosParameters
    hides = "attributes"
    source = "Talos: ContrastiveLeaks (CCS 2021), section 5.1"
    target = "attribute"
    alternates = True

    def __init__(self, backbone: nn.Module, parameters: TalosParameters) -> None:
        super().__init__(backbone, parameters)
        self.adversary = Adversary(width_of(backbone), parameters.values, parameters.variant)
        self.factor = parameters.factor
        self.adversary_first = parameters.variant == "paper"
        self.censoring = True

    @classmethod
    def encode_targets(cls, parameters: Any, labels: Sequence[int | None], captions: Sequence[str]) -> torch.Tensor:
        """The values (N,) int64 of the attribute.

        Raises ConfigError: a sample has no value, or one that is not below ``values``.
        """
        return numbered(labels, parameters.values, "attribute", "set parameters.values")

    def start_epoch(self, epoch: int) -> None:
        """Give encoder or adversary its turn; the other keeps weights and batch statistics."""
        self.censoring = (epoch % 2 == 1) == self.adversary_first
        for part in (self.backbone, self.projection):
            part.requires_grad_(self.censoring)
        self.adversary.requires_grad_(not self.censoring)
        self.train(self.training)

    def train(self, mode: bool = True) -> Talos:
        """Training mode for the part whose turn it is."""
        super().train(mode)
        if not self.censoring:
            self.backbone.eval()
            self.projection.eval()
        return self

    def forward(self, views: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Views (B, 2, C, H, W) and values (B,): the adversary's loss in its epochs, else that of both.

        Gradients of the latter are those of equation 8 for the backbone, and of NT-Xent for the projection head.
        """
        assert targets is not None
        both, images = targets.repeat(2), views.transpose(0, 1).flatten(0, 1)
        if not self.censoring:
            with torch.no_grad():
                embeddings = self.backbone(images)
            return F.cross_entropy(self.adversary(embeddings).float(), both)
        embeddings = self.backbone(images)
        hidden = F.cross_entropy(self.adversary(reverse(embeddings, self.factor)).float(), both)
        return self.contrast(embeddings) + hidden
