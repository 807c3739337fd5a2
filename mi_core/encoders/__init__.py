"""Image encoders: images (B, C, H, W) in [0, 1] to embeddings (B, D). `ENCODERS` is the table of backbones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import nn

from mi_core.checks import ConfigError, check_choice
from mi_core.encoders.clip import clip_vit_b
from mi_core.encoders.pixels import Conv4, ImageShape, KerasConv4
from mi_core.plugins import plugged_in


@dataclass(frozen=True)
class Architecture:
    """A row of `ENCODERS`."""

    summary: str  # one line for people
    build: Callable[[ImageShape], nn.Module]  # makes the backbone with fresh weights; it has the attribute ``width``, D
    patches: bool = False  # whether a name ends in a patch size, as ``vit-s/16`` does


def _late(what: str, **settings: Any) -> Callable[[ImageShape], nn.Module]:
    """How a backbone of `backbones` is made, which is imported late: torchvision takes a second."""
    return lambda images: getattr(import_module("mi_core.encoders.backbones"), what)(images, **settings)


def _vit(
    summary: str, width: int, layers: int, heads: int, *, registers: int = 0, class_token: bool = True
) -> Architecture:
    how: dict[str, Any] = {"width": width, "layers": layers, "heads": heads, "registers": registers}
    return Architecture(summary, _late("vision_transformer", **how, class_token=class_token), patches=True)


_MOCO_S = _vit("ViT-S as in MoCo v3: 12 layers, 12 heads, D = 384.", 384, 12, 12)
_DEIT_S = _vit("ViT-S as in DeiT, timm, DINO and DINOv2: 12 layers, 6 heads, D = 384.", 384, 12, 6)
_VIT_B = _vit("ViT-B: 12 layers, 12 heads, D = 768.", 768, 12, 12)
_VIT_L = _vit("ViT-L: 24 layers, 16 heads, D = 1024.", 1024, 24, 16)
ENCODERS: dict[str, Architecture] = {
    "conv4": Architecture("The backbone of the quickstart (97,392 parameters for one channel), D = 128.", Conv4),
    "keras-conv4": Architecture(
        "The encoder of Keras' SimCLR example, for images of 31 pixels or more, D = 128.", KerasConv4
    ),
    "resnet8": Architecture(
        "The CPU-sized backbone for 32-pixel images (307,360 parameters for three channels), D = 128.", _late("ResNet8")
    ),
    "resnet8-narrow": Architecture("resnet8 with a narrow last block, D = 32.", _late("ResNet8", width=32)),
    "resnet8-wide": Architecture("resnet8 with a wide last block, D = 256.", _late("ResNet8", width=256)),
    "resnet18": Architecture(
        "ResNet-18 with the CIFAR stem: the target of EncoderMI's CIFAR-10 experiments, D = 512.",
        _late("resnet", name="resnet18", cifar_stem=True),
    ),
    "resnet18-imagenet": Architecture(
        "ResNet-18 with the ImageNet stem (7x7 stride 2, max-pooling), D = 512.",
        _late("resnet", name="resnet18", cifar_stem=False),
    ),
    "resnet50": Architecture(
        "ResNet-50 with the CIFAR stem, D = 2048.", _late("resnet", name="resnet50", cifar_stem=True)
    ),
    "resnet50-imagenet": Architecture(
        "ResNet-50 with the ImageNet stem, D = 2048.", _late("resnet", name="resnet50", cifar_stem=False)
    ),
    "vgg11-bn": Architecture("VGG-11 with batch norm, torchvision's convolutions, D = 512.", _late("vgg11_bn")),
    "mobilenetv2": Architecture(
        "MobileNetV2 with the CIFAR stem: stride 1 in the first and the second stage, D = 1280.",
        _late("mobilenetv2", cifar_stem=True),
    ),
    "mobilenetv2-imagenet": Architecture(
        "MobileNetV2 with the ImageNet stem, D = 1280.", _late("mobilenetv2", cifar_stem=False)
    ),
    "vit-tiny": _vit("A ViT for CPUs: 4 layers, 4 heads, D = 128.", 128, 4, 4),
    "vit-s": _MOCO_S,
    "moco-vit-s": _MOCO_S,
    "vit-b": _VIT_B,
    "vit-l": _VIT_L,
    "vit-h": _vit("ViT-H: 32 layers, 16 heads, D = 1280.", 1280, 32, 16),
    "vit-tiny-gap": _vit(
        "vit-tiny without class token, as I-JEPA's are: the mean of its patches, D = 128.", 128, 4, 4, class_token=False
    ),
    "vit-b-gap": _vit("ViT-B without class token: the mean of its patches, D = 768.", 768, 12, 12, class_token=False),
    "vit-l-gap": _vit("ViT-L without class token: the mean of its patches, D = 1024.", 1024, 24, 16, class_token=False),
    "vit-h-gap": _vit(
        "ViT-H without class token, I-JEPA's: the mean of its patches, D = 1280.", 1280, 32, 16, class_token=False
    ),
    "deit-tiny": _vit("DeiT-Ti, which timm calls ViT-Ti: 12 layers, 3 heads, D = 192.", 192, 12, 3),
    "deit-s": _DEIT_S,
    "dinov2-s": _DEIT_S,
    "dinov2-b": _VIT_B,
    "dinov2-l": _VIT_L,
    "dinov2-s-reg": _vit("DINOv2's ViT-S with 4 registers: 12 layers, 6 heads, D = 384.", 384, 12, 6, registers=4),
    "dinov2-b-reg": _vit("DINOv2's ViT-B with 4 registers: 12 layers, 12 heads, D = 768.", 768, 12, 12, registers=4),
    "dinov2-l-reg": _vit("DINOv2's ViT-L with 4 registers: 24 layers, 16 heads, D = 1024.", 1024, 24, 16, registers=4),
    "clip-vit-b": Architecture(
        "CLIP's ViT-B with patches of 32 or 16 pixels, D = 768; needs the clip extra.", clip_vit_b, patches=True
    ),
}


def build_backbone(name: str, channels: int, image_size: int) -> nn.Module:
    """A backbone with fresh weights; its ``width`` attribute is the embedding width D.

    Args:
        name: a key of `ENCODERS`; for a transformer with its patch size after a slash, as in ``vit-s/16``.
        channels: colour channels C of the input, 1 or 3.
        image_size: side of the input in pixels.

    Raises ConfigError: no such backbone, a patch size that is missing, superfluous or does not divide the image, an
    architecture whose package is not installed, or a network that does not state its width.

    Example:
        >>> build_backbone("vit-s/8", channels=3, image_size=32).width
        384
    """
    architecture, shape = parse_backbone(name, channels, image_size)
    backbone = architecture.build(shape)
    if not isinstance(getattr(backbone, "width", None), int):
        raise ConfigError(f"backbone = {name!r} makes a network without the attribute width, the D of its embedding")
    return backbone


def parse_backbone(name: str, channels: int, image_size: int) -> tuple[Architecture, ImageShape]:
    """The architecture of a backbone and the shape it is built for; nothing is built. Raises as `build_backbone`."""
    base, slash, patch = name.partition("/")
    check_choice("backbone", base, ENCODERS)
    architecture = ENCODERS[base]
    if architecture.patches and not slash:
        raise ConfigError(f"backbone = {name!r}: write {base}/16 for patches of 16 pixels")
    if slash and not architecture.patches:
        raise ConfigError(f"backbone = {name!r}: write {base}, it has no patches")
    if slash and (not patch.isdigit() or int(patch) < 1 or image_size % int(patch)):
        raise ConfigError(f"backbone = {name!r}: the patch size must divide the image size {image_size}")
    return architecture, ImageShape(channels, image_size, int(patch or 0))


ENCODERS |= plugged_in("encoders", ENCODERS, Architecture, key=None)  # last: they may import what stands above
