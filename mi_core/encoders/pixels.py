"""What needs no torchvision: small convolutional networks, and pixels, which every encoder should be better than."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn

from mi_core.checks import ConfigError


@dataclass(frozen=True)
class ImageShape:
    """C colour channels, side of the image and, for transformers, of its patches in pixels."""

    channels: int
    size: int
    patch: int = 0


class Conv4(nn.Module):
    """Four 3x3 convolutions with batch norm and ReLU, D = 128.

    Trains on images of 8 to 32 pixels in under a minute on one core.
    """

    width = 128

    def __init__(self, images: ImageShape) -> None:
        super().__init__()
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        before = images.channels
        for index, (width, stride) in enumerate(((16, 1), (32, 1), (64, 2), (128, 2)), start=1):
            layers[f"conv{index}"] = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
            layers[f"norm{index}"] = nn.BatchNorm2d(width)
            layers[f"relu{index}"] = nn.ReLU(inplace=True)
            before = width
        self.layers = nn.Sequential(layers)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, C, H, W) to embeddings (B, 128): means over H / 4 x W / 4 positions."""
        maps: torch.Tensor = self.layers(images)
        return maps.mean(dim=(2, 3))


class KerasConv4(nn.Module):
    """The encoder of Keras' SimCLR example, which the Additive Logistic Mechanism attacks, D = 128.

    Four 3x3 convolutions of 128 channels with stride 2, no padding and no norm; all positions go to a dense layer.
    """

    width = 128

    def __init__(self, images: ImageShape) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        side = images.size
        for index in range(4):
            layers += [nn.Conv2d(128 if index else images.channels, 128, 3, stride=2), nn.ReLU(inplace=True)]
            side = (side - 1) // 2
        if side < 1:
            raise ConfigError(f"backbone = 'keras-conv4' needs images of 31 pixels or more, got {images.size}")
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * side * side, 128), nn.ReLU(inplace=True))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, C, S, S) to embeddings (B, 128)."""
        embeddings: torch.Tensor = self.layers(images)
        return embeddings


def pixels(images: torch.Tensor) -> torch.Tensor:
    """Images (B, C, H, W) to (B, C * H * W); load it as ``python:mi_core.encoders.pixels:pixels``."""
    return images.flatten(1)
