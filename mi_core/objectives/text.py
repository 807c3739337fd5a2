"""Text towers for CLIP: a small transformer over bytes that needs no vocabulary, and frozen ones of open_clip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mi_core.checks import ConfigError
from mi_core.encoders.clip import TextTower, import_open_clip

PAD, END = 256, 257  # besides the 256 bytes
_BATCH = 256


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
        embeddings: torch.Tensor = self.projection(self.norm(last))
        return embeddings


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
        embeddings: torch.Tensor = self.tower(tokens)
        return embeddings


def frozen_text_width(architecture: str) -> int:
    """Width E of the text embeddings of an open_clip model.

    Raises:
        ConfigError: open_clip is not installed, or has no such model.
    """
    config = import_open_clip().get_model_config(architecture)
    if config is None:
        raise ConfigError(f"text_tower: open_clip has no model {architecture!r}; see open_clip.list_models()")
    return int(config["embed_dim"])


@torch.no_grad()
def frozen_text_embeddings(architecture: str, weights: str, captions: Sequence[str]) -> torch.Tensor:
    """Embeddings (N, E) float32 of captions by an open_clip text tower and its tokenizer.

    Args:
        architecture: a model name of open_clip, for example ViT-B-32.
        weights: path of its weights file.
        captions: N texts.

    Raises:
        ConfigError: open_clip is not installed, or it cannot load the weights.
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
