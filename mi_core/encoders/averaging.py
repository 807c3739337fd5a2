"""The attacker who asks for the same image again and again: noise that is drawn anew averages away."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from mi_core.checks import check_range
from mi_core.encoders.checkpoint import Encoder, surroundings


class Numbering(nn.Module):
    """A module that answers the same query anew each time, by how often it was asked before.

    It holds one number per query until `ask_anew`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[int] = Counter()

    def numbers(self, streams: torch.Tensor) -> torch.Tensor:
        """How often each of B queries was asked before, in this batch too: (B,) int64, from 0.

        Args:
            streams: (B,) int64, the same for the same query.
        """
        found = []
        for stream in streams.tolist():
            found.append(self.asked[stream])
            self.asked[stream] += 1
        return torch.tensor(found, dtype=torch.int64, device=streams.device)


def ask_anew(*encoders: nn.Module) -> None:
    """Let encoders answer as if they were never asked: what comes now does not depend on what came before."""
    for module in (module for encoder in encoders for module in encoder.modules()):
        if isinstance(module, Numbering):
            module.asked.clear()


def averaged(encoder: Encoder, queries: int) -> Encoder:
    """The encoder of an attacker who asks several times for every image: the mean of the answers.

    Args:
        encoder: with noise of variance v on its answers, which is left with v / queries where each is drawn anew. The
            answers of one behind an API must not be kept.
        queries: k, asked for each image; 1: the encoder itself.

    Raises ConfigError: fewer than one query.
    """
    check_range("queries", queries, 1)
    return encoder if queries == 1 else _Averaged(encoder, queries)


class _Averaged(Encoder):
    def __init__(self, encoder: Encoder, queries: int) -> None:
        super().__init__(encoder.backbone, encoder.heads, **surroundings(encoder))
        self.asked, self.queries = encoder, queries
        self.eval()

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the embeddings."""
        return self.asked.outputs

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Means of the embeddings, by output name."""
        total = self.asked(images)
        for _ in range(self.queries - 1):
            total = {name: total[name] + more for name, more in self.asked(images).items()}
        return {name: summed / self.queries for name, summed in total.items()}
