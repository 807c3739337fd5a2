"""MobileNetV2 (Sandler et al., CVPR 2018), one of ContrastiveLeaks' three architectures."""

from __future__ import annotations

from torch import nn

from mi_core.encoders.input import ImageShape
from mi_core.encoders.pooled import PooledFeatures


def mobilenetv2(images: ImageShape) -> PooledFeatures:
    """MobileNetV2 with the CIFAR stem: stride 1 in the first and the second stage, D = 1280."""
    return _without_classifier(images, cifar_stem=True)


def mobilenetv2_imagenet(images: ImageShape) -> PooledFeatures:
    """MobileNetV2 with the ImageNet stem, D = 1280."""
    return _without_classifier(images, cifar_stem=False)


def _without_classifier(images: ImageShape, *, cifar_stem: bool) -> PooledFeatures:
    from torchvision.models import mobilenet_v2

    features = mobilenet_v2(weights=None).features
    stride = 1 if cifar_stem else 2
    if images.channels != 3:
        features[0][0] = nn.Conv2d(images.channels, 32, 3, stride=stride, padding=1, bias=False)
        nn.init.kaiming_normal_(features[0][0].weight, mode="fan_out")
    if cifar_stem:
        features[0][0].stride = (1, 1)
        features[2].conv[1][0].stride = (1, 1)
    return PooledFeatures(features, 1280)
