"""CLIP and its kin (Radford et al., ICML 2021), as open_clip defines them (the ``clip`` extra), in parts.

The backbone is the image tower before its projection, the projection leads to the space that images and texts share.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import ConfigError, import_extra
from mi_core.encoders.backbones import ImageShape


class TextTower(nn.Module, ABC):
    """Texts to embeddings (B, E) of B texts. `embed` can be differentiated, and goes through `torch.func.vmap`."""

    @abstractmethod
    def tokens(self, captions: Sequence[str]) -> torch.Tensor:
        """The input of `embed` for B texts: (B, ...), on the device of the weights."""

    @abstractmethod
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens (B, ...) to embeddings (B, E); nothing is read by the host."""

    def forward(self, captions: Sequence[str] | torch.Tensor) -> torch.Tensor:
        """B texts, or their tokens (B, ...), to embeddings (B, E)."""
        return self.embed(captions if isinstance(captions, torch.Tensor) else self.tokens(captions))

    def weights(self) -> list[str]:
        """Names of the parameters that embeddings depend on, in the order in which tokens pass them."""
        return [name for name, _ in self.named_parameters()]


_FIRST, _LAST = ("positional_embedding", "token_embedding", "cls_emb"), ("text_projection",)
_ASIDE = ("logit_scale", "logit_bias", "text_decoder")  # the temperature is no layer, CoCa's decoder reads embeddings


class CLIPBackbone(nn.Module):
    """The image tower before its projection: (B, 3, S, S) to (B, D)."""

    def __init__(self, tower: nn.Module, width: int | None) -> None:
        super().__init__()
        self.tower = tower
        self.width = width

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, 3, S, S) to embeddings (B, D)."""
        return self.tower(images)


class OtherTower(CLIPBackbone):
    """An image tower that is no vision transformer of open_clip's own, and gives no feature map."""


class AttentionPooling(nn.Module):
    """The attention pooling of CLIP's ResNets without its last linear layer: (B, D, H, W) to (B, D)."""

    def __init__(self, pool: Any) -> None:
        super().__init__()
        self.positional_embedding = pool.positional_embedding
        self.q_proj, self.k_proj, self.v_proj = pool.q_proj, pool.k_proj, pool.v_proj
        self.heads = pool.num_heads

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Feature maps (B, D, H, W) to the vector (B, D) that the mean over positions attends to."""
        rows = maps.flatten(2).transpose(1, 2)  # (B, L, D)
        rows = torch.cat([rows.mean(dim=1, keepdim=True), rows], dim=1) + self.positional_embedding
        query, key, value = (
            layer(part).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer, part in ((self.q_proj, rows[:, :1]), (self.k_proj, rows), (self.v_proj, rows))
        )
        return F.scaled_dot_product_attention(query, key, value).flatten(1)


def clip_vit_b(images: ImageShape) -> CLIPBackbone:
    """CLIP's ViT-B with patches of 32 or 16 pixels, D = 768; needs the clip extra."""
    if images.patch not in (16, 32) or images.channels != 3:
        raise ConfigError("clip-vit-b has patches of 16 or 32 pixels and 3 channels; write clip-vit-b/32")
    return split_tower(f"ViT-B-{images.patch}", image_size=images.size).backbone


class OpenCLIPText(TextTower):
    """The text side of an open_clip model with its tokenizer: texts to embeddings."""

    def __init__(self, model: nn.Module, tokenizer: Any) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer

    def tokens(self, captions: Sequence[str]) -> torch.Tensor:
        """B texts to tokens (B, L) int64."""
        return self.tokenizer(list(captions)).to(next(self.model.parameters()).device)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens (B, L) to embeddings (B, E)."""
        return self.model.encode_text(tokens)  # type: ignore[operator]

    def weights(self) -> list[str]:
        """Names of the parameters in order, which is not that of their definition; without the learned temperature."""

        def place(name: str) -> int:
            parts = set(name.split("."))
            return bool(parts.intersection(_LAST)) - bool(parts.intersection(_FIRST))

        return sorted((name for name in super().weights() if not set(name.split(".")).intersection(_ASIDE)), key=place)


@dataclass(frozen=True)
class SplitTower:
    """An open_clip model in parts."""

    backbone: CLIPBackbone  # the image tower before its projection
    # to the space shared with texts; an identity where the tower has no width of its own before it
    projection: nn.Module
    projection_key: str  # where the projection's weights stand among the tower's; empty: nowhere
    text: OpenCLIPText | None  # texts to embeddings; None where open_clip would have to download files for it

    @property
    def notes(self) -> list[str]:
        """Remarks for readers of its outputs."""
        same = isinstance(self.projection, nn.Identity)
        return [
            *(["backbone and projection are the same, the tower ends in the shared space"] if same else []),
            *(["its text side is left out, for its tokenizer is not in open_clip"] if self.text is None else []),
        ]


def split_tower(architecture: str, *, image_size: int | None = None) -> SplitTower:
    """The parts of an open_clip model with fresh weights.

    Raises ConfigError: open_clip is not installed, has no such model, or cannot build it.
    """
    visual, text = _built(architecture, image_size)
    if hasattr(visual, "output_tokens"):
        visual.output_tokens = False
    projection, key = take_projection(visual)
    width = getattr(projection, "in_features", None)
    family = CLIPBackbone if key == "proj" else OtherTower
    return SplitTower(family(visual, width), projection, key, text)


def _built(architecture: str, image_size: int | None) -> tuple[Any, OpenCLIPText | None]:
    """Image tower and text side with fresh weights."""
    open_clip, config = import_open_clip(), open_clip_config(architecture)
    try:
        with _quiet():
            if any(config["text_cfg"].get(part) for part in ("hf_model_name", "hf_tokenizer_name")):  # a download
                quick = config.get("quick_gelu", False)
                return open_clip.model._build_vision_tower(config["embed_dim"], config["vision_cfg"], quick), None
            sizes = {"pretrained": None, "load_weights": False, "force_image_size": image_size}
            model = open_clip.create_model(architecture, **sizes)
    except Exception as error:
        raise ConfigError(f"open_clip cannot build {architecture}: {' '.join(str(error).split())[:160]}") from error
    visual, model.visual = model.visual, nn.Identity()
    return visual, OpenCLIPText(model, open_clip.get_tokenizer(architecture))


@contextmanager
def _quiet() -> Iterator[None]:
    """No warning that weights are fresh, which is meant."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def take_projection(visual: Any) -> tuple[nn.Module, str]:
    """Take the projection out of an image tower; returns it and where its weights stood."""
    if isinstance(getattr(visual, "proj", None), nn.Parameter):
        width, shared = visual.proj.shape
        layer = nn.Linear(width, shared, bias=False)
        layer.weight = nn.Parameter(visual.proj.detach().T.contiguous())
        visual.proj = None
        return layer, "proj"
    if hasattr(visual, "attnpool"):
        last = visual.attnpool.c_proj
        visual.attnpool = AttentionPooling(visual.attnpool)
        return last, "attnpool.c_proj"
    head = getattr(visual, "head", None)
    if isinstance(head, nn.Module) and head.state_dict():
        visual.head = nn.Identity()
        return head, "head"
    last = visual.trunk.get_classifier()
    place = next((name for name, module in visual.named_modules() if module is last), "")
    if not isinstance(last, nn.Linear) or not place:
        return nn.Identity(), ""
    visual.set_submodule(place, nn.Identity())
    return last, place


def import_open_clip() -> Any:
    """The open_clip package. Raises ConfigError naming the extra when it is missing."""
    return import_extra("open_clip", "this", "clip")


def open_clip_config(architecture: str) -> dict[str, Any]:
    """The settings that open_clip builds an architecture from. Raises ConfigError: open_clip has no such model."""
    config = import_open_clip().get_model_config(architecture)
    if config is None:
        raise ConfigError(f"open_clip has no model {architecture!r}; see open_clip.list_models()")
    return dict(config)
