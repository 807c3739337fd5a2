"""Image towers of models that answer in words (LLaVA, PaliGemma, Qwen-VL): of their folder, what the tower needs.

Such a folder is read as if it held the tower alone: a config of the tower, and its weights without their prefix. The
language model and the layer between the two are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from mi_core.checks import ConfigError


@dataclass(frozen=True)
class Tower:
    """The image tower of a model.

    Args:
        kind: the ``model_type`` of the tower, where its config does not say.
        prefix: of its weights; that of the whole model may stand before it.
    """

    kind: str
    prefix: str

    def config(self, whole: Mapping[str, Any]) -> bytes:
        """The config of the tower.

        Raises:
            ConfigError: that of the model has none.
        """
        own = whole.get("vision_config")
        if not isinstance(own, dict):
            raise ConfigError(f"config.json of a {whole['model_type']} has no vision_config, which defines its tower")
        said = own.get("model_type")
        known = self.kind if said in (None, whole["model_type"]) else str(said)  # Qwen's tower has the model's own name
        named = {"model_type": known, "architectures": [_CLASSES[known]] if known in _CLASSES else []}
        return json.dumps({**own, **named}, sort_keys=True).encode()

    def name(self, whole: str) -> str | None:
        """The name of a weight within the tower; None: it is of another part."""
        found = re.fullmatch(rf"(?:model\.)?{re.escape(self.prefix)}\.(.+)", whole)
        return None if found is None else found[1]


_CLASSES = {"clip_vision_model": "CLIPVisionModel"}  # without the layer behind it that CLIP's own tower has
TOWERS = {
    "llava": Tower("clip_vision_model", "vision_tower"),
    "llava_next": Tower("clip_vision_model", "vision_tower"),
    "llava_onevision": Tower("siglip_vision_model", "vision_tower"),
    "paligemma": Tower("siglip_vision_model", "vision_tower"),
    "qwen2_vl": Tower("qwen2_vl_vision", "visual"),
    "qwen2_5_vl": Tower("qwen2_5_vl_vision", "visual"),
}
"""Towers by the ``model_type`` of the whole model."""


class PackedTower(nn.Module):
    """A tower of Qwen-VL for square images of one side: (B, 3, S, S) to the vectors that its language model reads.

    The tower itself takes the patches of all images in one row, those that it merges one after another, and every
    patch twice, for it takes films of two images.
    """

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower
        self.config: Any = tower.config

    @property
    def block(self) -> int:
        """Side of a block of merged patches, in pixels."""
        return int(self.config.patch_size * self.config.spatial_merge_size)

    def forward(self, pixel_values: torch.Tensor) -> SimpleNamespace:
        """Vectors (B, L, D) of the L blocks of each image, row by row; nothing is pooled.

        Raises:
            ConfigError: blocks do not fill the image.
        """
        count, channels, side, _ = pixel_values.shape
        patch, merge, block = self.config.patch_size, self.config.spatial_merge_size, self.block
        if side % block:
            raise ConfigError(f"it takes images whose side is a multiple of {block} px, not {side}; set size")
        blocks = side // block
        parts = pixel_values.reshape(count, channels, blocks, merge, patch, blocks, merge, patch)
        patches = parts.permute(0, 2, 5, 3, 6, 1, 4, 7)[..., None, :, :]  # blocks, patches in one, channels, time
        rows = patches.expand(*patches.shape[:6], self.config.temporal_patch_size, patch, patch)
        grid = torch.tensor([[1, blocks * merge, blocks * merge]] * count, device=pixel_values.device)
        answer = self.tower(rows.reshape(count * (blocks * merge) ** 2, -1), grid_thw=grid)
        vectors = answer.pooler_output.reshape(count, blocks * blocks, -1)
        return SimpleNamespace(last_hidden_state=vectors, pooler_output=None)
