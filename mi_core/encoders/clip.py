"""CLIP's vision transformer (Radford et al., ICML 2021), as open_clip defines it (the ``clip`` extra)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mi_core.checks import ConfigError
from mi_core.encoders.input import ImageShape


class CLIPBackbone(nn.Module):
    """The image tower before its projection: (B, 3, S, S) to (B, D)."""

    def __init__(self, tower: nn.Module, width: int) -> None:
        super().__init__()
        self.tower = tower
        self.width = width

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, 3, S, S) to embeddings (B, D)."""
        embeddings: torch.Tensor = self.tower(images)
        return embeddings


def clip_vit_b(images: ImageShape) -> CLIPBackbone:
    """CLIP's ViT-B with patches of 32 or 16 pixels, D = 768; needs the clip extra."""
    if images.patch not in (16, 32) or images.channels != 3:
        raise ConfigError("clip-vit-b has patches of 16 or 32 pixels and 3 channels; write clip-vit-b/32")
    return split_tower(f"ViT-B-{images.patch}", image_size=images.size).backbone


class OpenCLIPText(nn.Module):
    """The text side of an open_clip model with its tokenizer: texts to embeddings."""

    def __init__(self, model: nn.Module, tokenizer: Any) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer

    def forward(self, captions: Sequence[str]) -> torch.Tensor:
        """B texts to embeddings (B, E)."""
        place = next(self.model.parameters()).device
        embeddings: torch.Tensor = self.model.encode_text(self.tokenizer(list(captions)).to(place))  # type: ignore[operator]
        return embeddings


@dataclass(frozen=True)
class SplitTower:
    """An open_clip model in parts: image tower, its projection as a layer, text side, preprocessing."""

    backbone: CLIPBackbone
    projection: nn.Linear
    text: OpenCLIPText
    preprocessing: dict[str, Any]


def split_tower(architecture: str, *, image_size: int | None = None) -> SplitTower:
    """The parts of an open_clip model with fresh weights.

    Raises:
        ConfigError: open_clip is not installed, has no such model, or its image tower is not a ViT with a projection.
    """
    open_clip = import_open_clip()
    if architecture not in open_clip.list_models():
        raise ConfigError(f"open_clip has no model {architecture!r}; see open_clip.list_models()")
    logging.disable(logging.WARNING)  # fresh weights are meant
    try:
        model = open_clip.create_model(architecture, pretrained=None, load_weights=False, force_image_size=image_size)
    finally:
        logging.disable(logging.NOTSET)
    tower = model.visual
    projection = getattr(tower, "proj", None)
    if not isinstance(projection, nn.Parameter):
        raise ConfigError(
            f"open_clip {architecture}: only vision transformers with a projection can be split; load it "
            "through python:module:function"
        )
    preprocessing = dict(open_clip.get_model_preprocess_cfg(model))
    tower.proj = None
    layer = nn.Linear(projection.shape[0], projection.shape[1], bias=False)
    layer.weight = nn.Parameter(projection.detach().T.contiguous())
    model.visual = nn.Identity()
    text = OpenCLIPText(model, open_clip.get_tokenizer(architecture))
    return SplitTower(CLIPBackbone(tower, projection.shape[0]), layer, text, preprocessing)


def import_open_clip() -> Any:
    """The open_clip package. Raises ConfigError naming the extra when it is missing."""
    try:
        import open_clip
    except ImportError as error:
        raise ConfigError("this needs open_clip: pip install 'encoder-audit[clip]'") from error
    return open_clip
