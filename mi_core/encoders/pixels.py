"""The pixels themselves as an embedding: what every encoder should be better than."""

from __future__ import annotations

import torch


def pixels(images: torch.Tensor) -> torch.Tensor:
    """Images (B, C, H, W) to (B, C * H * W); load it as ``python:mi_core.encoders.pixels:pixels``."""
    return images.flatten(1)
