"""Encoders on disk: a description (plain JSON) and the weights (safetensors bytes), with a fingerprint.

Checkpoints are data: nothing here unpickles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import ConfigError, check_choice
from mi_core.streams import seeded_generators

OUTPUTS = ("backbone", "projection", "prediction", "prototypes", "logits")
"""Embeddings that encoders expose, as their framework defines: ``prototypes`` are the scores of a projection by DINO's
prototypes, ``logits`` those of a classifier."""
INTERPOLATIONS = ("bilinear", "bicubic")


class Encoder(nn.Module):
    """An encoder as an audit queries it: images (B, C, H, W) in [0, 1] to one embedding per output it exposes.

    Args:
        backbone: images to (B, D).
        heads: by output name, each applied to the result of the one before, the first to the backbone's.
        mean, std: per-channel normalisation (1, C, 1, 1) applied to the images first.
        size: side of the images that the backbone takes, to which others are resized; None: any.
        interpolation: ``bilinear`` or ``bicubic``, antialiased, where images are resized.
        text: texts to embeddings beside those of ``projection``, where the encoder has such a tower.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(
        self,
        backbone: nn.Module,
        heads: Mapping[str, nn.Module],
        mean: torch.Tensor,
        std: torch.Tensor,
        *,
        size: int | None = None,
        interpolation: str = "bilinear",
        text: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.heads = dict(heads)
        for name, head in heads.items():
            setattr(self, name, head)
        self.text = text
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.size = size
        self.interpolation = check_choice("interpolation", interpolation, INTERPOLATIONS)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the embeddings."""
        return ("backbone", *self.heads)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Embeddings before any normalisation of their length, by output name."""
        embeddings: dict[str, torch.Tensor] = {"backbone": self.backbone(self._normalised(images))}
        last = embeddings["backbone"]
        for name, head in self.heads.items():
            last = embeddings[name] = head(last)
        return embeddings

    def _normalised(self, images: torch.Tensor) -> torch.Tensor:
        return (self._resized(images) - self.mean) / self.std

    def _resized(self, images: torch.Tensor) -> torch.Tensor:
        if self.size is not None and images.shape[2:] != (self.size, self.size):
            size, mode = (self.size, self.size), self.interpolation
            images = F.interpolate(images, size, mode=mode, antialias=True, align_corners=False).clamp(0, 1)
        return images


def channelwise(values: Sequence[float], channels: int) -> torch.Tensor:
    """One value for all channels, or one per channel, as (1, C, 1, 1).

    Raises ConfigError: the number of values is neither 1 nor C.
    """
    if len(values) not in (1, channels):
        raise ConfigError(f"{list(values)} has {len(values)} values for {channels} channels; give 1 or {channels}")
    return torch.tensor(values).expand(channels).reshape(1, -1, 1, 1).clone()


def weights_bytes(module: nn.Module) -> bytes:
    """The weights and buffers of a module as safetensors, on the CPU, contiguous."""
    return safetensors.torch.save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    )


def load_weights(module: nn.Module, data: bytes) -> None:
    """Load safetensors bytes written by `weights_bytes` into a module of the same layout. Raises as `load_tensors`."""
    load_tensors(module, safetensors.torch.load(data))


def load_tensors(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Load weights by name into a module of the same layout.

    Raises ConfigError: keys are missing or unexpected, or a shape differs; the message lists the first of each.
    """
    expected = module.state_dict()
    missing = [name for name in expected if name not in tensors]
    unexpected = sorted(tensors.keys() - expected)
    shapes = wrong_shapes({name: tensors[name] for name in expected if name in tensors}, expected)
    if missing or unexpected or shapes:
        raise ConfigError(
            f"weights do not fit the encoder: missing {missing[:3]}, unexpected {unexpected[:3]}, "
            f"wrong shape {shapes[:3]}"
        )
    module.load_state_dict(tensors)


def wrong_shapes(tensors: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> list[str]:
    """The tensors, in words, whose shape is not the expected one of that name."""
    return [
        f"{name} {tuple(tensor.shape)} instead of {tuple(expected[name].shape)}"
        for name, tensor in tensors.items()
        if tensor.shape != expected[name].shape
    ]


def surroundings(encoder: Encoder) -> dict[str, Any]:
    """The arguments of an encoder besides backbone and heads, for another one like it."""
    return {name: getattr(encoder, name) for name in ("mean", "std", "size", "interpolation", "text")}


def fingerprint(module: nn.Module) -> str:
    """Sha256 over the names, dtypes, shapes and bytes of all weights and buffers: the identity of an encoder."""
    return fingerprint_of(module.state_dict())


def fingerprint_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """The `fingerprint` of a module with these weights and buffers by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        array = tensor.detach().cpu().contiguous()
        digest.update(f"{name}:{array.dtype}:{tuple(array.shape)};".encode())
        digest.update(array.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def seeded(seed: int, build: Callable[[], Any]) -> Any:
    """Call ``build`` with torch's generators seeded, and leave them as they were."""
    with seeded_generators(seed % 2**63):
        return build()
