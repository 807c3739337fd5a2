"""Prototypes: directions that an embedding is compared with, the last layer of DINO's head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


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
