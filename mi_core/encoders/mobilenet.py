"""MobileNetV2 (Sandler et al., CVPR 2018), one of ContrastiveLeaks' three architectures."""

from __future__ import annotations

import torch
from torch import nn

from mi_core.encoders.input import ImageShape


class MobileNetV2(nn.Module):
    """torchvision's layers, then the mean over positions: (B, C, H, W) to (B, 1280)."""

    width = 1280

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, C, H, W) to embeddings (B, 1280)."""
        maps: torch.Tensor = self.features(images)
        return maps.mean(dim=(2, 3))


def mobilenetv2(images: ImageShape) -> MobileNetV2:
    """MobileNetV2 with the CIFAR stem: stride 1 in the first and the second stage, D = 1280."""
    return _without_classifier(images, cifar_stem=True)


def mobilenetv2_imagenet(images: ImageShape) -> MobileNetV2:
    """MobileNetV2 with the ImageNet stem, D = 1280."""
    return _without_classifier(images, cifar_stem=False)


def _without_classifier(images: ImageShape, *, cifar_stem: bool) -> MobileNetV2:
    from torchvision.models import mobilenet_v2

    features = mobilenet_v2(weights=None).features
    stride = 1 if cifar_stem else 2
    if images.channels != 3:
        features[0][0] = nn.Conv2d(images.channels, 32, 3, stride=stride, padding=1, bias=False)
        nn.init.kaiming_normal_(features[0][0].weight, mode="fan_out")
    if cifar_stem:
        features[0][0].stride = (1, 1)
        features[2].conv[1][0].stride = (1, 1)
    return MobileNetV2(features)
