"""torchvision's vision transformer without its class token, as that of I-JEPA (Assran et al., CVPR 2023)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torchvision.models import VisionTransformer


class PatchMean(VisionTransformer):  # type: ignore[misc]
    """Images (B, C, S, S) to the mean (B, D) of their patches after the last norm. Arguments as torchvision's."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        del self.class_token
        self.register_buffer("class_token", torch.empty(1, 0, self.hidden_dim), persistent=False)  # there are none
        self.encoder.pos_embedding = nn.Parameter(self.encoder.pos_embedding.detach()[:, 1:].clone())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The mean of the patches."""
        states: torch.Tensor = self.encoder(self._process_input(images))
        return states.mean(dim=1)
