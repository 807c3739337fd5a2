"""What turns the convolutions of a classification network into a backbone."""

from __future__ import annotations

import torch
from torch import nn


class PooledFeatures(nn.Module):
    """Convolutions, then the mean over positions: (B, C, H, W) to (B, D)."""

    def __init__(self, features: nn.Module, width: int) -> None:
        super().__init__()
        self.features = features
        self.width = width

    def maps(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, C, H, W) to feature maps (B, D, H', W')."""
        found: torch.Tensor = self.features(images)
        return found

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, C, H, W) to embeddings (B, D)."""
        return self.maps(images).mean(dim=(2, 3))
