"""An encoder that follows the trained one by momentum, as in MoCo and BYOL."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from mi_core.objectives.base import Objective


class MomentumObjective(Objective):
    """A framework with a query encoder, which learns, and a key encoder, which follows it."""

    projection: nn.Module
    prediction: nn.Module
    momentum: float

    def add_key_encoder(self) -> None:
        """Add the key encoder, a copy of backbone and projection without gradients."""
        self.key_backbone = copy.deepcopy(self.backbone).requires_grad_(False)
        self.key_projection = copy.deepcopy(self.projection).requires_grad_(False)

    def momentum_parts(self) -> tuple[nn.Module, dict[str, nn.Module]]:
        """The key encoder."""
        return self.key_backbone, {"projection": self.key_projection}

    def predict(self, views: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Predictions of both views (B, 2, C, H, W), and the key encoder's projections of both, without gradients."""
        predictions = [self.prediction(self.projection(self.backbone(views[:, view]))) for view in range(2)]
        with torch.no_grad():
            keys = [self.key_projection(self.key_backbone(views[:, view])) for view in range(2)]
        return predictions, keys

    def follow(self, momentum: float) -> None:
        """Move the key encoder towards the query encoder."""
        momentum_update(self.key_backbone, self.backbone, momentum)
        momentum_update(self.key_projection, self.projection, momentum)

    def restart(self) -> None:
        """The key encoder begins as a copy of the query encoder."""
        self.key_backbone.load_state_dict(self.backbone.state_dict())
        self.key_projection.load_state_dict(self.projection.state_dict())


def momentum_update(followers: nn.Module, leaders: nn.Module, momentum: float) -> None:
    """theta_k <- m theta_k + (1 - m) theta_q, in place (He et al., MoCo, CVPR 2020, equation 2).

    Example:
        >>> key, query = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.constant_(key.weight, 1.0), nn.init.constant_(query.weight, 3.0)
        >>> momentum_update(key, query, 0.75)
        >>> key.weight.item()
        1.5
    """
    with torch.no_grad():
        torch._foreach_lerp_(list(followers.parameters()), list(leaders.parameters()), 1 - momentum)


def rising(momentum: float, progress: float) -> float:
    """Momentum that rises to 1 over the training by half a cosine: 1 - (1 - m) (1 + cos(pi progress)) / 2.

    Args:
        momentum: m, of the first step.
        progress: share of all steps that are done, in [0, 1].

    Example:
        >>> rising(0.9, 0.0), round(rising(0.9, 0.5), 3), rising(0.9, 1.0)
        (0.9, 0.95, 1.0)
    """
    return 1 - (1 - momentum) * (1 + math.cos(math.pi * progress)) / 2
