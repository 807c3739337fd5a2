"""A small classifier of real handwritten digits, whose backbone is frozen pixels or a random network."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from mi_core.defenses.base import ProviderData
from mi_core.encoders.checkpoint import Encoder, seeded


@cache
def digits() -> ProviderData:
    """1,797 images (N, 1, 8, 8) uint8 with their classes."""
    found = load_digits()
    images = np.minimum(found.images * 16, 255).astype(np.uint8)
    return ProviderData(torch.from_numpy(images[:, None]), torch.from_numpy(found.target.astype(np.int64)))


def classifier(seed: int = 0, head: nn.Module | None = None, width: int = 128) -> Encoder:
    """An encoder with outputs backbone, projection and logits; its heads are untrained."""

    def build() -> Encoder:
        backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU())
        heads = {"projection": nn.Linear(96, width), "logits": head or nn.Linear(width, 10)}
        return Encoder(backbone, heads, torch.full((1, 1, 1, 1), 0.3), torch.full((1, 1, 1, 1), 0.3))

    encoder: Encoder = seeded(seed, build)
    return encoder.eval()
