"""Encoders on disk: a description (plain JSON) and the weights (safetensors bytes), with a fingerprint.

Checkpoints are data: nothing here unpickles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import safetensors.torch
import torch
from torch import nn

from mi_core.checks import ConfigError

OUTPUTS = ("backbone", "projection")


class Encoder(nn.Module):
    """What an audit queries: images (B, C, H, W) in [0, 1] to one embedding per output it exposes.

    Args:
        backbone: images to (B, D); has the attribute ``width``.
        projection: (B, D) to (B, P), or None when only the backbone is exposed.
        mean, std: per-channel normalisation (C,) applied to the images first.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(
        self, backbone: nn.Module, projection: nn.Module | None, mean: torch.Tensor, std: torch.Tensor
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.projection = projection
        self.register_buffer("mean", mean.reshape(1, -1, 1, 1))
        self.register_buffer("std", std.reshape(1, -1, 1, 1))

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Embeddings before any normalisation of their length, by output name."""
        embeddings: dict[str, torch.Tensor] = {"backbone": self.backbone((images - self.mean) / self.std)}
        if self.projection is not None:
            embeddings["projection"] = self.projection(embeddings["backbone"])
        return embeddings


def weights_bytes(module: nn.Module) -> bytes:
    """The weights and buffers of a module as safetensors, on the CPU, contiguous."""
    return safetensors.torch.save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    )


def load_weights(module: nn.Module, data: bytes) -> None:
    """Load safetensors bytes written by `weights_bytes` into a module of the same layout.

    Raises:
        ConfigError: keys are missing or unexpected, or a shape differs; the message lists the first of each.
    """
    tensors = safetensors.torch.load(data)
    expected = module.state_dict()
    missing = [name for name in expected if name not in tensors]
    unexpected = [name for name in tensors if name not in expected]
    shapes = [
        f"{name} {tuple(tensors[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    if missing or unexpected or shapes:
        raise ConfigError(
            f"weights do not fit the encoder: missing {missing[:3]}, unexpected {unexpected[:3]}, "
            f"wrong shape {shapes[:3]}"
        )
    module.load_state_dict(tensors)


def fingerprint(module: nn.Module) -> str:
    """Sha256 over the names, dtypes, shapes and bytes of all weights and buffers: the identity of an encoder."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        array = tensor.detach().cpu().contiguous()
        digest.update(f"{name}:{array.dtype}:{tuple(array.shape)};".encode())
        digest.update(array.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def seeded(seed: int, build: Callable[[], Any]) -> Any:
    """Call ``build`` with torch's CPU generator seeded, and leave the global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        return build()
