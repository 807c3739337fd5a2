"""CLIP (Radford et al., ICML 2021): images and their captions attract, the other pairs of the batch repel.

SigLIP (Zhai et al., "Sigmoid loss for language image pre-training", ICCV 2023): every pair is judged by itself.

CLIP asks which of all captions belongs to an image. SigLIP asks of every image and every caption whether they belong
together, so no sum over the batch is needed.

Text towers: a small transformer over bytes that needs no vocabulary, and frozen ones of open_clip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import ConfigError, check_fields, check_shape
from mi_core.encoders.clip import TextTower, import_open_clip, open_clip_config
from mi_core.objectives.base import Objective, gather, own_rows, similarities, width_of

PAD, END = 256, 257  # besides the 256 bytes
_BATCH = 256
_MOST_SCALE = math.log(100.0)  # section 2.5: the logits are never scaled by more than 100


def image_text_info_nce(images: torch.Tensor, texts: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The symmetric loss of figure 3 of CLIP: mean of the cross-entropies over images and over texts.

    Takes (B, D) embeddings of any length, row i of both being one pair, B equal on all workers, and the factor of the
    cosines, above 0.
    Returns a scalar, float32: the mean over this worker's pairs, against the pairs of all workers.
    Raises ShapeError: the shapes differ.

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
        check_fields(self, "temperature", low=0.01)
        check_fields(self, "projection_width", "text_width", "text_layers", "text_heads", low=1)
        check_fields(self, "text_length", low=2)
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
        super().__init__(backbone)
        self.settings = parameters
        self.projection = nn.Linear(width_of(backbone), parameters.projection_width, bias=False)
        out = parameters.projection_width
        if parameters.text_tower == "bytes":
            layers, heads, length = parameters.text_layers, parameters.text_heads, parameters.text_length
            width = parameters.text_width
            self.text: nn.Module = TextTransformer(width, out, layers=layers, heads=heads, length=length)
        else:
            self.text = nn.Linear(int(open_clip_config(parameters.architecture)["embed_dim"]), out, bias=False)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / parameters.temperature)))

    @classmethod
    def encode_targets(cls, parameters: Any, labels: Sequence[int | None], captions: Sequence[str]) -> torch.Tensor:
        """Tokens (N, L) int64, or with a frozen tower the text embeddings (N, E) float32.

        Raises ConfigError: a caption is empty, or the frozen tower cannot be loaded.
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
        return self.loss(images, texts)

    def loss(self, images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        """The loss of the embeddings (B, D) of both."""
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

    Returns a scalar, float32: the mean over this worker's images, with the captions of all workers.
    Raises ShapeError: the shapes differ.

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

    def loss(self, images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        """The loss of the embeddings (B, D) of both."""
        return sigmoid_loss(images, texts, self.scale.exp(), self.bias)

    def after_step(self, progress: float) -> None:
        """The scale is not bounded."""


def byte_tokens(captions: Sequence[str], length: int) -> torch.Tensor:
    """The UTF-8 bytes of N captions, each closed by an end mark and filled up to ``length``: (N, length) int64.

    Longer captions are cut.

    Example:
        >>> byte_tokens(["a", "abcd"], 4).tolist()
        [[97, 257, 256, 256], [97, 98, 99, 257]]
    """
    tokens = torch.full((len(captions), length), PAD, dtype=torch.int64)
    for row, caption in enumerate(captions):
        codes = [*caption.encode()[: length - 1], END]
        tokens[row, : len(codes)] = torch.tensor(codes)
    return tokens


def without_padding(targets: torch.Tensor) -> torch.Tensor:
    """Tokens (B, L) int64 up to the end of the longest of B captions; embeddings (B, E) of a frozen tower as they are.

    Example:
        >>> without_padding(byte_tokens(["a", "ab"], 5)).tolist()
        [[97, 257, 256], [97, 98, 257]]
    """
    if targets.is_floating_point():
        return targets
    return targets[:, : int((targets == END).int().argmax(dim=1).max()) + 1]


class TextTransformer(nn.Module):
    """A causal transformer; the state at the end mark, projected (Radford et al., 2021, section 2.4).

    Args:
        width: of the tokens' states.
        out: width of the text embedding.
        layers, heads: of the transformer.
        length: tokens of a caption, at most.
    """

    def __init__(self, width: int, out: int, *, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(258, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.01)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.projection = nn.Linear(width, out, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens (B, L) int64 to embeddings (B, out)."""
        ends, length = (tokens == END).int().argmax(dim=1), tokens.shape[1]
        mask = torch.full((length, length), -torch.inf, device=tokens.device).triu(1)
        states = self.layers(self.tokens(tokens) + self.positions[:length], mask=mask, is_causal=True)
        last = states[torch.arange(len(tokens), device=tokens.device), ends]
        return self.projection(self.norm(last))


class CaptionEncoder(TextTower):
    """Texts to embeddings: what encodes a text for ``tower``, and the tower that training fits.

    Args:
        tower: encoded texts to (B, E).
        encode: texts to what the tower takes.
    """

    def __init__(self, tower: nn.Module, encode: Callable[[Sequence[str]], torch.Tensor]) -> None:
        super().__init__()
        self.tower = tower
        self.encode = encode

    def tokens(self, captions: Sequence[str]) -> torch.Tensor:
        """B texts to tokens (B, L) int64, or to the embeddings (B, E) of a frozen tower."""
        return without_padding(self.encode(captions)).to(next(self.tower.parameters()).device)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The output of `tokens` to embeddings (B, E)."""
        return self.tower(tokens)


@torch.no_grad()
def frozen_text_embeddings(architecture: str, weights: str, captions: Sequence[str]) -> torch.Tensor:
    """Embeddings (N, E) float32 of captions by an open_clip text tower, such as ViT-B-32, with a weights file.

    Raises ConfigError: open_clip is not installed, or it cannot load the weights.
    """
    model, tokenizer = _frozen_tower(architecture, weights)
    distinct = list(dict.fromkeys(captions))
    blocks = [
        model.encode_text(tokenizer(distinct[start : start + _BATCH])).float()
        for start in range(0, len(distinct), _BATCH)
    ]
    row_of = {caption: row for row, caption in enumerate(distinct)}
    return torch.cat(blocks)[[row_of[caption] for caption in captions]]


@lru_cache(maxsize=1)
def _frozen_tower(architecture: str, weights: str) -> tuple[Any, Any]:
    """Model and tokenizer, once per process: streamed training encodes captions batch by batch."""
    open_clip = import_open_clip()
    if not Path(weights).is_file():
        raise ConfigError(f"text_weights = {weights!r} is no file; give the weights of open_clip's {architecture}")
    try:
        return open_clip.create_model(architecture, pretrained=weights).eval(), open_clip.get_tokenizer(architecture)
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        raise ConfigError(f"open_clip {architecture} with {weights}: {' '.join(str(error).split())[:300]}") from error
