"""Image encoders: images (B, C, H, W) in [0, 1] to embeddings (B, D). `ENCODERS` is the table of backbones."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from mi_core.checks import check_choice
from mi_core.encoders.convnet import conv4
from mi_core.encoders.resnet import resnet8, resnet18, resnet18_imagenet

ENCODERS: dict[str, Callable[[int], nn.Module]] = {
    "conv4": conv4,
    "resnet8": resnet8,
    "resnet18": resnet18,
    "resnet18-imagenet": resnet18_imagenet,
}


def build_backbone(name: str, channels: int) -> nn.Module:
    """A backbone with fresh weights; its ``width`` attribute is the embedding width D.

    Args:
        name: a key of `ENCODERS`.
        channels: colour channels C of the input, 1 or 3.

    Raises:
        ConfigError: no such backbone.
    """
    return ENCODERS[check_choice("backbone", name, ENCODERS)](channels)
