"""VGG (Simonyan and Zisserman, ICLR 2015) with batch norm: the unknown architecture of EncoderMI's experiments."""

from __future__ import annotations

import torch
from torch import nn

from mi_core.encoders.input import ImageShape


class VGG(nn.Module):
    """The convolutions of a VGG, then the mean over positions: (B, C, H, W) to (B, 512), H and W at least 32."""

    width = 512

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, C, H, W) to embeddings (B, 512)."""
        maps: torch.Tensor = self.features(images)
        return maps.mean(dim=(2, 3))


def vgg11_bn(images: ImageShape) -> VGG:
    """VGG-11 with batch norm, torchvision's convolutions, D = 512."""
    from torchvision.models import vgg11_bn as torchvision_vgg11_bn

    features = torchvision_vgg11_bn(weights=None).features
    if images.channels != 3:
        features[0] = nn.Conv2d(images.channels, 64, 3, padding=1)
        nn.init.kaiming_normal_(features[0].weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(features[0].bias)
    return VGG(features)
