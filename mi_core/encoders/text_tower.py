"""The text side of an encoder in two steps: texts to tokens on the host, tokens to embeddings with gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import nn


class TextTower(nn.Module, ABC):
    """Texts to embeddings (B, E) of B texts. `embed` can be differentiated, and goes through `torch.func.vmap`."""

    @abstractmethod
    def tokens(self, captions: Sequence[str]) -> torch.Tensor:
        """The input of `embed` for B texts: (B, ...), on the device of the weights."""

    @abstractmethod
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens (B, ...) to embeddings (B, E); nothing is read by the host."""

    def forward(self, captions: Sequence[str] | torch.Tensor) -> torch.Tensor:
        """B texts, or their tokens (B, ...), to embeddings (B, E)."""
        return self.embed(captions if isinstance(captions, torch.Tensor) else self.tokens(captions))

    def weights(self) -> list[str]:
        """Names of the parameters that embeddings depend on, in the order in which tokens pass them."""
        return [name for name, _ in self.named_parameters()]
