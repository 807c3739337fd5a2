"""Vision transformers (Dosovitskiy et al., ICLR 2021; the small one of Touvron et al., ICML 2021): torchvision's.

The embedding is the class token after the last norm. Patch and image size are free. Two networks are called ViT-S: that
of MoCo v3 (Chen et al., ICCV 2021) has 12 attention heads, that of DeiT, timm, DINO and DINOv2 has 6. Registers (Darcet
et al., ICLR 2024) are further class tokens, whose positions stay 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mi_core.encoders.input import ImageShape


def vision_transformer(images: ImageShape, *, width: int, layers: int, heads: int, registers: int = 0) -> nn.Module:
    """A ViT without its classifier: (B, C, S, S) to (B, width); the hidden layers are four times as wide."""
    from torchvision.models import VisionTransformer

    network: nn.Module = VisionTransformer(
        image_size=images.size,
        patch_size=images.patch,
        num_layers=layers,
        num_heads=heads,
        hidden_dim=width,
        mlp_dim=4 * width,
    )
    network.heads = nn.Identity()
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


def vit_tiny(images: ImageShape) -> nn.Module:
    """A ViT for CPUs: 4 layers, 4 heads, D = 128."""
    return vision_transformer(images, width=128, layers=4, heads=4)


def vit_s(images: ImageShape) -> nn.Module:
    """ViT-S as in MoCo v3: 12 layers, 12 heads, D = 384."""
    return vision_transformer(images, width=384, layers=12, heads=12)


def vit_b(images: ImageShape) -> nn.Module:
    """ViT-B: 12 layers, 12 heads, D = 768."""
    return vision_transformer(images, width=768, layers=12, heads=12)


def vit_l(images: ImageShape) -> nn.Module:
    """ViT-L: 24 layers, 16 heads, D = 1024."""
    return vision_transformer(images, width=1024, layers=24, heads=16)


def vit_h(images: ImageShape) -> nn.Module:
    """ViT-H: 32 layers, 16 heads, D = 1280."""
    return vision_transformer(images, width=1280, layers=32, heads=16)


def deit_tiny(images: ImageShape) -> nn.Module:
    """DeiT-Ti, which timm calls ViT-Ti: 12 layers, 3 heads, D = 192."""
    return vision_transformer(images, width=192, layers=12, heads=3)


def deit_s(images: ImageShape) -> nn.Module:
    """ViT-S as in DeiT, timm, DINO and DINOv2: 12 layers, 6 heads, D = 384."""
    return vision_transformer(images, width=384, layers=12, heads=6)


def dinov2_s_registers(images: ImageShape) -> nn.Module:
    """DINOv2's ViT-S with 4 registers, D = 384."""
    return vision_transformer(images, width=384, layers=12, heads=6, registers=4)


def dinov2_b_registers(images: ImageShape) -> nn.Module:
    """DINOv2's ViT-B with 4 registers, D = 768."""
    return vision_transformer(images, width=768, layers=12, heads=12, registers=4)


def dinov2_l_registers(images: ImageShape) -> nn.Module:
    """DINOv2's ViT-L with 4 registers, D = 1024."""
    return vision_transformer(images, width=1024, layers=24, heads=16, registers=4)
