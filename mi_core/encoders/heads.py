"""Heads on a backbone: the projection of contrastive frameworks, DINO's prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn


def projection_head(widths: Sequence[int], *, batch_norm: bool, last_norm: bool = False) -> nn.Sequential:
    """Linear layers with ReLU between them: (B, widths[0]) to (B, widths[-1]); two widths make a linear head.

    Args:
        widths: of the backbone's embedding, of the hidden layers, of the projection.
        batch_norm: normalise the hidden layers, as SimCLR and MoCo v3 do and MoCo v2 does not.
        last_norm: normalise the result too, without learned scale (MoCo v3's projector).
    """
    layers: list[nn.Module] = []
    for index, (before, width) in enumerate(pairwise(widths)):
        last = index == len(widths) - 2
        normalised = last_norm if last else batch_norm
        layers.append(nn.Linear(before, width, bias=not normalised))
        if normalised:
            layers.append(nn.BatchNorm1d(width, affine=not last))
        if not last:
            layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


class Prototypes(nn.Module):
    """Cosines with K directions, times a length of each: (B, D) to (B, K). Weights as PyTorch's weight norm names them.

    Args:
        width: D.
        count: K.
    """

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.weight_g = nn.Parameter(torch.ones(count, 1), requires_grad=False)
        self.weight_v = nn.Parameter(torch.empty(count, width).normal_(std=0.02))

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Scores (B, K) of embeddings (B, D) of any length."""
        return F.linear(F.normalize(embeddings, dim=-1), self.weight_g * F.normalize(self.weight_v, dim=1))
