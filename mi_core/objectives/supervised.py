"""Supervised training with cross-entropy: the baseline of ContrastiveLeaks (He and Zhang, CCS 2021, section 3.2).

With a frozen backbone it is the second half of a contrastive model there: a linear layer on a pre-trained encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import check_range
from mi_core.objectives.base import Objective, numbered, width_of


@dataclass(frozen=True)
class SupervisedParameters:
    """``classes`` L: labels are 0 to L - 1. ``freeze_backbone``: only the linear layer learns."""

    classes: int = 10
    freeze_backbone: bool = False

    def __post_init__(self) -> None:
        check_range("classes", self.classes, 2)


class Supervised(Objective):
    """Supervised cross-entropy: the backbone and a linear layer on it, or that layer alone on a frozen backbone."""

    Parameters = SupervisedParameters
    heads = ("logits",)
    views = 1
    target = "class"

    def __init__(self, backbone: nn.Module, parameters: SupervisedParameters) -> None:
        super().__init__(backbone.requires_grad_(not parameters.freeze_backbone))
        self.frozen = parameters.freeze_backbone
        self.logits = nn.Linear(width_of(backbone), parameters.classes)

    @classmethod
    def encode_targets(cls, parameters: Any, labels: Sequence[int | None], captions: Sequence[str]) -> torch.Tensor:
        """The labels (N,) int64.

        Raises ConfigError: a sample has no label, or one that is not below ``classes``.
        """
        return numbered(labels, parameters.classes, "label", "set parameters.classes, or give labelled data")

    def train(self, mode: bool = True) -> Supervised:
        """Training mode; a frozen backbone keeps its batch statistics."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def forward(self, views: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Cross-entropy of views (B, 1, C, H, W) and labels (B,)."""
        assert targets is not None
        return F.cross_entropy(self.logits(self.backbone(views[:, 0])).float(), targets)
