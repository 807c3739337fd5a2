"""Residual networks (He et al., 2016): torchvision's ResNet-18 and -50, and a small one with one block per stage.

The CIFAR stem is a 3x3 convolution with stride 1 and no max-pooling, as in the MoCo CIFAR recipe that
EncoderMI uses; the ImageNet stem is torchvision's own.
"""

from __future__ import annotations

import torch
from torch import nn

from mi_core.encoders.input import ImageShape

# torchvision's models are imported where they are built: they take a second that other encoders need not wait for


class ResNet8(nn.Module):
    """Stem with stride 2 and three basic blocks of 32, 64, 128 channels: (B, C, H, W) to (B, 128)."""

    width = 128

    def __init__(self, channels: int) -> None:
        from torchvision.models.resnet import BasicBlock

        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 32, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
        )
        self.blocks = nn.Sequential(BasicBlock(32, 32), _downsampling_block(32, 64), _downsampling_block(64, 128))

    def maps(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, C, H, W) to feature maps (B, 128, H / 8, W / 8)."""
        found: torch.Tensor = self.blocks(self.stem(images))
        return found

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, C, H, W) to embeddings (B, 128)."""
        return self.maps(images).mean(dim=(2, 3))


def _downsampling_block(before: int, after: int) -> nn.Module:
    from torchvision.models.resnet import BasicBlock

    shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride=2, bias=False), nn.BatchNorm2d(after))
    block: nn.Module = BasicBlock(before, after, stride=2, downsample=shortcut)
    return block


def resnet8(images: ImageShape) -> nn.Module:
    """The CPU-sized backbone for 32-pixel images (307,360 parameters for three channels), D = 128."""
    return ResNet8(images.channels)


def resnet18(images: ImageShape) -> nn.Module:
    """ResNet-18 with the CIFAR stem: the target of EncoderMI's CIFAR-10 experiments, D = 512."""
    return _without_classifier("resnet18", images, cifar_stem=True)


def resnet18_imagenet(images: ImageShape) -> nn.Module:
    """ResNet-18 with the ImageNet stem (7x7 stride 2, max-pooling), D = 512."""
    return _without_classifier("resnet18", images, cifar_stem=False)


def resnet50(images: ImageShape) -> nn.Module:
    """ResNet-50 with the CIFAR stem, D = 2048."""
    return _without_classifier("resnet50", images, cifar_stem=True)


def resnet50_imagenet(images: ImageShape) -> nn.Module:
    """ResNet-50 with the ImageNet stem, D = 2048."""
    return _without_classifier("resnet50", images, cifar_stem=False)


def _without_classifier(name: str, images: ImageShape, *, cifar_stem: bool) -> nn.Module:
    from torchvision import models

    network: nn.Module = getattr(models, name)(weights=None)
    network.width = network.fc.in_features  # type: ignore[union-attr]
    network.fc = nn.Identity()
    if cifar_stem:
        network.conv1 = nn.Conv2d(images.channels, 64, 3, stride=1, padding=1, bias=False)
        network.maxpool = nn.Identity()
    elif images.channels != 3:
        network.conv1 = nn.Conv2d(images.channels, 64, 7, stride=2, padding=3, bias=False)
    return network
