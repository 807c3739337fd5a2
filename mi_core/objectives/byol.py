"""BYOL (Grill et al., "Bootstrap your own latent", NeurIPS 2020): one view predicts the other, without negatives.

The online network (backbone, projector, predictor) predicts what the target network (backbone, projector) makes of the
other view. The target network follows the online one by momentum, so there is nothing else to repel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import check_fields, check_shape
from mi_core.encoders.heads import projection_head
from mi_core.objectives.base import MomentumObjective, width_of


def byol_loss(predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Equation 2 of BYOL: the mean of 2 - 2 cos over B predictions.

    Takes (B, D) of any length; gradients flow to the predictions only. Returns a scalar, float32, in [0, 4].
    Raises ShapeError: the shapes differ.

    Example:
        >>> byol_loss(torch.eye(2), 3 * torch.eye(2)).item(), byol_loss(torch.eye(2), -torch.eye(2)).item()
        (0.0, 4.0)
    """
    batch, width = check_shape("predictions", predictions, "B D")
    check_shape("targets", targets, "B D", B=batch, D=width)
    return 2 - 2 * F.cosine_similarity(predictions.float(), targets.detach().float(), dim=1).mean()


@dataclass(frozen=True)
class BYOLParameters:
    """Settings of BYOL; the defaults are those of its ImageNet experiments (section 3.3).

    Args:
        momentum: tau of the first step; it rises to 1.
        projection_hidden: width of the hidden layers of projector and predictor.
        projection_width: width of what both answer.
    """

    momentum: float = 0.996
    projection_hidden: int = 4096
    projection_width: int = 256

    def __post_init__(self) -> None:
        check_fields(self, "momentum", low=0, high=1)
        check_fields(self, "projection_hidden", "projection_width", low=1)


class BYOL(MomentumObjective):
    """BYOL (NeurIPS 2020): each view predicts a momentum encoder's projection of the other; no negatives."""

    Parameters = BYOLParameters
    heads = ("projection", "prediction")

    def __init__(self, backbone: nn.Module, parameters: BYOLParameters) -> None:
        super().__init__(backbone)
        hidden, out = parameters.projection_hidden, parameters.projection_width
        self.projection = projection_head((width_of(backbone), hidden, out), batch_norm=True)
        self.prediction = projection_head((out, hidden, out), batch_norm=True)
        self.momentum = parameters.momentum
        self.add_key_encoder()

    def forward(self, views: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The symmetric loss of views (B, 2, C, H, W); there are no targets."""
        (first, second), (key_first, key_second) = self.answer(views)
        return byol_loss(first, key_second) + byol_loss(second, key_first)
