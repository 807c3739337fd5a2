"""An encoder that follows the trained one by momentum, as in MoCo and BYOL."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from mi_core.objectives.base import Objective


class MomentumObjective(Objective):
    """A framework with a query encoder, which learns, and a key encoder, which follows it."""

    copied: ClassVar[tuple[str, ...]] = ("projection",)
    """The heads that the key encoder has."""

    key_backbone: nn.Module
    key_projection: nn.Module
    momentum: float

    def add_key_encoder(self) -> None:
        """Add the key encoder, a copy of the backbone and of some heads without gradients."""
        for part in ("backbone", *self.copied):
            setattr(self, f"key_{part}", copy.deepcopy(getattr(self, part)).requires_grad_(False))

    def answer(self, views: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Both views (B, 2, C, H, W) by the last head, and by that of the key encoder, without gradients."""
        queries = [self._through("", self.heads, views[:, view]) for view in range(2)]
        with torch.no_grad():
            keys = [self._through("key_", self.copied, views[:, view]) for view in range(2)]
        return queries, keys

    def _through(self, prefix: str, heads: Sequence[str], images: torch.Tensor) -> torch.Tensor:
        for part in ("backbone", *heads):
            images = getattr(self, f"{prefix}{part}")(images)
        return images

    def follow(self, momentum: float) -> None:
        """Move the key encoder towards the query encoder."""
        for part in ("backbone", *self.copied):
            momentum_update(getattr(self, f"key_{part}"), getattr(self, part), momentum)

    def restart(self) -> None:
        """The key encoder begins as a copy of the query encoder."""
        for part in ("backbone", *self.copied):
            getattr(self, f"key_{part}").load_state_dict(getattr(self, part).state_dict())


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
