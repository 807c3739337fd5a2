"""A four-layer convolutional network for images of 8 to 32 pixels: trains in under a minute on one core."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from mi_core.encoders.input import ImageShape

WIDTHS = (16, 32, 64, 128)
STRIDES = (1, 1, 2, 2)


class Conv4(nn.Module):
    """Four 3x3 convolutions with batch norm and ReLU, then the mean over positions: (B, C, H, W) to (B, 128)."""

    width = WIDTHS[-1]

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        before = channels
        for index, (width, stride) in enumerate(zip(WIDTHS, STRIDES, strict=True), start=1):
            layers[f"conv{index}"] = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
            layers[f"norm{index}"] = nn.BatchNorm2d(width)
            layers[f"relu{index}"] = nn.ReLU(inplace=True)
            before = width
        self.layers = nn.Sequential(layers)

    def maps(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, C, H, W) to feature maps (B, 128, H / 4, W / 4)."""
        found: torch.Tensor = self.layers(images)
        return found

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, C, H, W) to embeddings (B, 128)."""
        return self.maps(images).mean(dim=(2, 3))


def conv4(images: ImageShape) -> Conv4:
    """The backbone of the quickstart (97,392 parameters for one channel), D = 128."""
    return Conv4(images.channels)
