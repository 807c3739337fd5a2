"""The feature map of a backbone before it is pooled, one vector per position, where a backbone has one.

Backbones of this package give theirs by a method ``maps``; for torchvision's residual networks and vision transformers
and for open_clip's image towers the map is taken from inside.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mi_core.checks import ConfigError


def feature_map(backbone: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """The vectors at all positions of N images.

    Args:
        backbone: of an encoder.
        images: (N, C, H, W), normalised, of a size that the backbone takes.

    Returns (N, L, D), D the width of the embedding: positions row by row; of a transformer the patches alone.
    Raises ConfigError: the backbone has no feature map that could be found.
    """
    if hasattr(backbone, "maps"):
        return _by_position(backbone.maps(images))  # type: ignore[operator]
    family = type(backbone).__name__
    tokens = _TOKENS.get(family)
    if tokens is None:
        raise ConfigError(f"a backbone of type {family} gives no feature map; leave part-crop out for it")
    return tokens(backbone, images)


def fixed_side(backbone: nn.Module) -> int | None:
    """The one side of images that a backbone takes, as transformers with learned positions do; None: any."""
    inside: Any = getattr(backbone, "tower", backbone)
    side = getattr(inside, "image_size", None)
    return side if side is None or isinstance(side, int) else int(side[0])


def _by_position(maps: torch.Tensor) -> torch.Tensor:
    return maps.flatten(2).transpose(1, 2)


def _resnet(network: Any, images: torch.Tensor) -> torch.Tensor:
    maps = network.maxpool(network.relu(network.bn1(network.conv1(images))))
    for stage in (network.layer1, network.layer2, network.layer3, network.layer4):
        maps = stage(maps)
    return _by_position(maps)


def _vision_transformer(network: Any, images: torch.Tensor) -> torch.Tensor:
    tokens = network._process_input(images)
    states: torch.Tensor = network.encoder(torch.cat([network.class_token.expand(len(tokens), -1, -1), tokens], dim=1))
    return states[:, network.class_token.shape[1] :]


def _clip_tower(backbone: Any, images: torch.Tensor) -> torch.Tensor:
    tower = backbone.tower
    before, tower.output_tokens = tower.output_tokens, True
    try:
        tokens: torch.Tensor = tower(images)[1]
    finally:
        tower.output_tokens = before
    return tokens


_TOKENS = {
    "ResNet": _resnet,
    "VisionTransformer": _vision_transformer,
    "PatchMean": _vision_transformer,
    "CLIPBackbone": _clip_tower,
}
