"""An encoder that kills its process on a white image, as a decoder or a driver that crashes would."""

from __future__ import annotations

import os
import signal

import torch

WHITE = 0.99


def encode(images: torch.Tensor) -> torch.Tensor:
    """Images (B, C, H, W) in [0, 1] to their channel means and deviations (B, 2 C)."""
    if bool((images.flatten(1).min(dim=1).values > WHITE).any()):
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.cat([images.mean(dim=(2, 3)), images.std(dim=(2, 3))], dim=1)
