"""CLIP's vision transformer (Radford et al., ICML 2021), as open_clip defines it (the ``clip`` extra)."""

from __future__ import annotations

import logging
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
    return split_tower(f"ViT-B-{images.patch}", image_size=images.size)[0]


def split_tower(architecture: str, *, image_size: int | None = None) -> tuple[CLIPBackbone, nn.Linear, dict[str, Any]]:
    """The image tower of an open_clip model with fresh weights, its projection as a layer, and its preprocessing.

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
    tower.proj = None
    layer = nn.Linear(projection.shape[0], projection.shape[1], bias=False)
    layer.weight = nn.Parameter(projection.detach().T.contiguous())
    return CLIPBackbone(tower, projection.shape[0]), layer, dict(open_clip.get_model_preprocess_cfg(model))


def import_open_clip() -> Any:
    """The open_clip package. Raises ConfigError naming the extra when it is missing."""
    try:
        import open_clip
    except ImportError as error:
        raise ConfigError("this needs open_clip: pip install 'encoder-audit[clip]'") from error
    return open_clip
