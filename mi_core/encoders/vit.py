"""Vision transformers (Dosovitskiy et al., ICLR 2021; the small one of Touvron et al., ICML 2021): torchvision's.

The embedding is the class token after the last norm; of a network without one, as I-JEPA's (Assran et al., CVPR 2023),
it is the mean of the patches. Patch and image size are free. Two networks are called ViT-S: that of MoCo v3 (Chen et
al., ICCV 2021) has 12 attention heads, that of DeiT, timm, DINO and DINOv2 has 6. Registers (Darcet et al., ICLR 2024)
are further class tokens, whose positions stay 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mi_core.encoders.input import ImageShape


def vision_transformer(
    images: ImageShape, *, width: int, layers: int, heads: int, registers: int = 0, class_token: bool = True
) -> nn.Module:
    """A ViT without its classifier: (B, C, S, S) to (B, width); the hidden layers are four times as wide."""
    from torchvision.models import VisionTransformer

    from mi_core.encoders.patch_mean import PatchMean

    network: nn.Module = (VisionTransformer if class_token else PatchMean)(
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
