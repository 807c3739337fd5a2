"""Vision transformers (Dosovitskiy et al., ICLR 2021; the small one of Touvron et al., ICML 2021): torchvision's.

The embedding is the class token after the last norm. Patch and image size are free.
"""

from __future__ import annotations

from torch import nn

from mi_core.encoders.input import ImageShape


def vision_transformer(images: ImageShape, *, width: int, layers: int, heads: int) -> nn.Module:
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
    network.width = width  # type: ignore[assignment]
    return network


def vit_tiny(images: ImageShape) -> nn.Module:
    """A ViT for CPUs: 4 layers, 4 heads, D = 128."""
    return vision_transformer(images, width=128, layers=4, heads=4)


def vit_s(images: ImageShape) -> nn.Module:
    """ViT-S as in MoCo v3: 12 layers, 12 heads, D = 384."""
    return vision_transformer(images, width=384, layers=12, heads=12)


def vit_b(images: ImageShape) -> nn.Module:
    """ViT-B: 12 layers, 12 heads, D = 768."""
    return vision_transformer(images, width=768, layers=12, heads=12)
