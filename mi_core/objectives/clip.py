"""CLIP (Radford et al., ICML 2021): images and their captions attract, the other pairs of the batch repel.

SigLIP (Zhai et al., "Sigmoid loss for language image pre-training", ICCV 2023): every pair is judged by itself.

CLIP asks which of all captions belongs to an image. SigLIP asks of every image and every caption whether they belong
together, so no sum over the batch is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import ConfigError, check_range, check_shape
from mi_core.objectives.base import Objective, gather, own_rows, similarities, width_of
from mi_core.objectives.text import (
    CaptionEncoder,
    TextTransformer,
    byte_tokens,
    frozen_text_embeddings,
    frozen_text_width,
    without_padding,
)

_MOST_SCALE = math.log(100.0)  # section 2.5: the logits are never scaled by more than 100


def image_text_info_nce(images: torch.Tensor, texts: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The symmetric loss of figure 3 of CLIP: mean of the cross-entropies over images and over texts.

    Args:
        images, texts: (B, D) embeddings of any length; row i of both is one pair; B is equal on all workers.
        scale: factor of the cosines, above 0.

    Returns:
        A scalar, float32: the mean over this worker's pairs, against the pairs of all workers.

    Raises:
        ShapeError: the shapes differ.

    Example:
        >>> round(float(image_text_info_nce(torch.eye(2), torch.eye(2), torch.tensor(1.0))), 4)
        0.3133
    """
    batch, width = check_shape("images", images, "B D")
    check_shape("texts", texts, "B D", B=batch, D=width)
    images, texts = F.normalize(images.float(), dim=1), F.normalize(texts.float(), dim=1)
    own = own_rows(batch, images.device)
    of_images = F.cross_entropy(scale * similarities(images, gather(texts)), own)
    of_texts = F.cross_entropy(scale * similarities(texts, gather(images)), own)
    return (of_images + of_texts) / 2


@dataclass(frozen=True)
class CLIPParameters:
    """Settings of CLIP. ``temperature`` is the first one; its inverse is learned (section 2.5: 0.07, at least 0.01).

    The text tower is a small transformer over bytes, or with ``text_tower: open_clip:<architecture>`` and
    ``text_weights`` a frozen one with its own tokenizer, followed by a linear layer that learns.
    """

    temperature: float = 0.07
    projection_width: int = 512
    text_tower: str = "bytes"
    text_weights: str = ""
    text_width: int = 128
    text_layers: int = 4
    text_heads: int = 4
    text_length: int = 76

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, 0.01)
        for name in ("projection_width", "text_width", "text_layers", "text_heads"):
            check_range(name, getattr(self, name), 1)
        check_range("text_length", self.text_length, 2)
        if self.text_width % self.text_heads:
            raise ConfigError(f"text_width = {self.text_width} is not divisible by text_heads = {self.text_heads}")
        frozen = self.text_tower.startswith("open_clip:")
        if self.text_tower != "bytes" and not frozen:
            raise ConfigError(f"text_tower = {self.text_tower!r}, allowed: bytes, open_clip:<architecture>")
        if frozen and not self.text_weights:
            raise ConfigError(f"text_tower = {self.text_tower!r} needs text_weights, the file of its weights")

    @property
    def architecture(self) -> str:
        """Name of a frozen text tower in open_clip."""
        return self.text_tower.partition(":")[2]


class CLIP(Objective):
    """CLIP (ICML 2021): image-text InfoNCE with a learned scale; captions by a small or a frozen text tower."""

    Parameters = CLIPParameters
    views = 1
    target = "caption"

    def __init__(self, backbone: nn.Module, parameters: CLIPParameters) -> None:
        super().__init__()
        self.settings = parameters
        self.backbone = backbone
        self.projection = nn.Linear(width_of(backbone), parameters.projection_width, bias=False)
        self.text: nn.Module
        if parameters.text_tower == "bytes":
            self.text = TextTransformer(
                parameters.text_width,
                parameters.projection_width,
                layers=parameters.text_layers,
                heads=parameters.text_heads,
                length=parameters.text_length,
            )
        else:
            width = frozen_text_width(parameters.architecture)
            self.text = nn.Linear(width, parameters.projection_width, bias=False)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / parameters.temperature)))

    @classmethod
    def encode_targets(cls, parameters: Any, labels: Sequence[int | None], captions: Sequence[str]) -> torch.Tensor:
        """Tokens (N, L) int64, or with a frozen tower the text embeddings (N, E) float32.

        Raises:
            ConfigError: a caption is empty, or the frozen tower cannot be loaded.
        """
        empty = [row for row, caption in enumerate(captions) if not caption.strip()]
        if empty:
            raise ConfigError(f"training image {empty[0]} has no caption; give data.captions, or shards with .txt")
        if parameters.text_tower == "bytes":
            return byte_tokens(captions, parameters.text_length)
        return frozen_text_embeddings(parameters.architecture, parameters.text_weights, captions)

    def text_tower(self) -> nn.Module:
        """Captions to the embeddings that images are drawn to."""
        return CaptionEncoder(self.text, partial(self.encode_targets, self.settings, ()))

    def forward(self, views: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The loss of views (B, 1, C, H, W) and encoded captions (B, ...)."""
        assert targets is not None
        images, texts = self.projection(self.backbone(views[:, 0])), self.text(without_padding(targets))
        return image_text_info_nce(images, texts, self.scale.exp())

    def after_step(self, progress: float) -> None:
        """Keep the learned scale at or below 100."""
        with torch.no_grad():
            self.scale.clamp_(max=_MOST_SCALE)


def sigmoid_loss(images: torch.Tensor, texts: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The sigmoid loss, algorithm 1 of SigLIP: summed over captions, the mean over images.

    Args:
        images, texts: (B, D) embeddings of any length; row i of both is one pair; B is equal on all workers.
        scale: factor of the cosines, above 0.
        bias: added to them; strongly negative at first, since most pairs do not belong together.

    Returns:
        A scalar, float32: the mean over this worker's images, with the captions of all workers.

    Raises:
        ShapeError: the shapes differ.

    Example:
        >>> round(sigmoid_loss(torch.eye(2), torch.eye(2), torch.tensor(1.0), torch.tensor(0.0)).item(), 4)
        1.0064
    """
    batch, width = check_shape("images", images, "B D")
    check_shape("texts", texts, "B D", B=batch, D=width)
    everyone = gather(F.normalize(texts.float(), dim=1))
    logits = scale * similarities(F.normalize(images.float(), dim=1), everyone) + bias
    sign = torch.full_like(logits, -1.0)
    sign[torch.arange(batch, device=logits.device), own_rows(batch, logits.device)] = 1.0
    return -F.logsigmoid(sign * logits).sum(dim=1).mean()


@dataclass(frozen=True)
class SigLIPParameters(CLIPParameters):
    """Settings of SigLIP: CLIP's, with the first temperature of section 3.2 and a bias.

    Args:
        bias: of the first step; it is learned.
    """

    temperature: float = 0.1
    bias: float = -10.0


class SigLIP(CLIP):
    """SigLIP (ICCV 2023): a sigmoid for every pair of image and caption, with a learned scale and bias."""

    Parameters = SigLIPParameters

    def __init__(self, backbone: nn.Module, parameters: SigLIPParameters) -> None:
        super().__init__(backbone, parameters)
        self.bias = nn.Parameter(torch.tensor(parameters.bias))

    def forward(self, views: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The loss of views (B, 1, C, H, W) and encoded captions (B, ...)."""
        assert targets is not None
        images, texts = self.projection(self.backbone(views[:, 0])), self.text(without_padding(targets))
        return sigmoid_loss(images, texts, self.scale.exp(), self.bias)

    def after_step(self, progress: float) -> None:
        """The scale is not bounded."""
