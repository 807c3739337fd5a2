"""VGG (Simonyan and Zisserman, ICLR 2015) with batch norm: the unknown architecture of EncoderMI's experiments."""

from __future__ import annotations

from torch import nn

from mi_core.encoders.input import ImageShape
from mi_core.encoders.pooled import PooledFeatures


def vgg11_bn(images: ImageShape) -> PooledFeatures:
    """VGG-11 with batch norm, torchvision's convolutions, D = 512."""
    from torchvision.models import vgg11_bn as torchvision_vgg11_bn

    features = torchvision_vgg11_bn(weights=None).features
    if images.channels != 3:
        features[0] = nn.Conv2d(images.channels, 64, 3, padding=1)
        nn.init.kaiming_normal_(features[0].weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(features[0].bias)
    return PooledFeatures(features, 512)
