"""The backbones that are built here: small convolutional networks for CPUs, and torchvision's without a classifier.

Residual networks (He et al., CVPR 2016), VGG with batch norm (Simonyan and Zisserman, ICLR 2015) and MobileNetV2
(Sandler et al., CVPR 2018). The CIFAR stem keeps the resolution: stride 1 and no max-pooling, as in the MoCo CIFAR
recipe that EncoderMI uses. The ImageNet stem is torchvision's own. B images, C channels, H height, W width, D width of
the embedding.

Vision transformers (Dosovitskiy et al., ICLR 2021; the small one of Touvron et al., ICML 2021): the embedding is the
class token after the last norm; of a network without one, as I-JEPA's (Assran et al., CVPR 2023), it is the mean of the
patches. Patch and image size are free. Two networks are called ViT-S: that of MoCo v3 (Chen et al., ICCV 2021) has 12
attention heads, that of DeiT, timm, DINO and DINOv2 has 6. Registers (Darcet et al., ICLR 2024) are further class
tokens, whose positions stay 0.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

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
        return self.layers(images)


class ResNet8(nn.Module):
    """A stem with stride 2 and basic blocks of 32, 64 and D channels.

    Args:
        images: the shape of the images.
        width: D. Networks that differ in D alone show what the width of an embedding does.
    """

    def __init__(self, images: ImageShape, width: int = 128) -> None:
        super().__init__()
        self.width = width
        self.stem = nn.Sequential(
            nn.Conv2d(images.channels, 32, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
        )
        self.blocks = nn.Sequential(_block(32, 32), _block(32, 64), _block(64, width))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, C, H, W) to embeddings (B, D): means over H / 8 x W / 8 positions."""
        maps: torch.Tensor = self.blocks(self.stem(images))
        return maps.mean(dim=(2, 3))


def _torchvision() -> Any:
    """The networks of torchvision, imported when one is built: that takes a process two seconds."""
    from torchvision import models

    return models


def _block(before: int, after: int) -> nn.Module:
    """A basic block; one that changes the width halves the resolution."""
    shortcut: nn.Module | None = None
    if after != before:
        shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride=2, bias=False), nn.BatchNorm2d(after))
    stride = 1 if shortcut is None else 2
    return _torchvision().resnet.BasicBlock(before, after, stride=stride, downsample=shortcut)


class _PooledFeatures(nn.Module):
    """The convolutions of a classification network of torchvision, and the mean over positions."""

    def __init__(self, features: nn.Module, width: int) -> None:
        super().__init__()
        self.features = features
        self.width = width

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps: torch.Tensor = self.features(images)
        return maps.mean(dim=(2, 3))


def vgg11_bn(images: ImageShape) -> nn.Module:
    """VGG-11 with batch norm, the unknown architecture of EncoderMI's experiments, D = 512."""
    features = _torchvision().vgg11_bn(weights=None).features
    if images.channels != 3:
        features[0] = nn.Conv2d(images.channels, 64, 3, padding=1)
        nn.init.kaiming_normal_(features[0].weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(features[0].bias)
    return _PooledFeatures(features, 512)


def mobilenetv2(images: ImageShape, *, cifar_stem: bool) -> nn.Module:
    """MobileNetV2, one of ContrastiveLeaks' three architectures, D = 1280.

    The CIFAR stem has stride 1 in the first and the second stage.
    """
    features = _torchvision().mobilenet_v2(weights=None).features
    if images.channels != 3:
        features[0][0] = nn.Conv2d(images.channels, 32, 3, stride=2, padding=1, bias=False)
        nn.init.kaiming_normal_(features[0][0].weight, mode="fan_out")
    if cifar_stem:
        features[0][0].stride = (1, 1)
        features[2].conv[1][0].stride = (1, 1)
    return _PooledFeatures(features, 1280)


def resnet(images: ImageShape, name: str, *, cifar_stem: bool) -> nn.Module:
    """A residual network by torchvision's name, such as ``resnet18`` (D = 512) or ``resnet50`` (D = 2048)."""
    network: nn.Module = getattr(_torchvision(), name)(weights=None)
    network.width = network.fc.in_features  # type: ignore[union-attr]
    network.fc = nn.Identity()
    if cifar_stem:
        network.conv1 = nn.Conv2d(images.channels, 64, 3, stride=1, padding=1, bias=False)
        network.maxpool = nn.Identity()
    elif images.channels != 3:
        network.conv1 = nn.Conv2d(images.channels, 64, 7, stride=2, padding=3, bias=False)
    return network


class PatchMean(nn.Module):
    """A transformer of torchvision without its class token: (B, C, S, S) to the mean (B, D) of the normed patches."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.conv_proj, self.encoder = network.conv_proj, network.encoder
        self.encoder.pos_embedding = nn.Parameter(self.encoder.pos_embedding.detach()[:, 1:].clone())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The mean of the patches."""
        states: torch.Tensor = self.encoder(self.conv_proj(images).flatten(2).transpose(1, 2))
        return states.mean(dim=1)


def vision_transformer(
    images: ImageShape, *, width: int, layers: int, heads: int, registers: int = 0, class_token: bool = True
) -> nn.Module:
    """A ViT without its classifier: (B, C, S, S) to (B, width); the hidden layers are four times as wide."""
    network: nn.Module = _torchvision().VisionTransformer(
        image_size=images.size,
        patch_size=images.patch,
        num_layers=layers,
        num_heads=heads,
        hidden_dim=width,
        mlp_dim=4 * width,
    )
    network.heads = nn.Identity()
    network = network if class_token else PatchMean(network)
    if images.channels != 3:
        network.conv_proj = nn.Conv2d(images.channels, width, images.patch, stride=images.patch)
    if registers:
        _add_registers(network, registers)
    network.width = width  # type: ignore[assignment]
    return network


def _add_registers(network: Any, count: int) -> None:
    token, positions = network.class_token.detach(), network.encoder.pos_embedding.detach()
    registers = torch.empty(1, count, token.shape[2]).normal_(std=1e-6)
    network.class_token = nn.Parameter(torch.cat([token, registers], dim=1))
    none = torch.zeros_like(registers)
    network.encoder.pos_embedding = nn.Parameter(torch.cat([positions[:, :1], none, positions[:, 1:]], dim=1))
