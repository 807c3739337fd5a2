"""An encoder that lets wait, as one behind a network does: up to 64 views are answered after 50 ms."""

from __future__ import annotations

import time

import torch

VIEWS, SECONDS, REQUESTS = 64, 0.05, 40  # of a request, and requests per chunk


def answer(images: torch.Tensor) -> torch.Tensor:
    """Images (B, C, H, W) to embeddings (B, 3 C): means of the whole, the upper and the left half."""
    for _ in images.split(VIEWS):
        time.sleep(SECONDS)
    half = images.shape[2] // 2
    parts = (images, images[:, :, :half], images[:, :, :, :half])
    return torch.cat([part.mean(dim=(2, 3)) for part in parts], dim=1)
