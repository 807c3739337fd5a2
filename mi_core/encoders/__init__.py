"""Image encoders: images (B, C, H, W) in [0, 1] to embeddings (B, D). `ENCODERS` is the table of backbones."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from mi_core.checks import ConfigError, check_choice
from mi_core.encoders.clip import clip_vit_b
from mi_core.encoders.convnet import conv4
from mi_core.encoders.input import ImageShape
from mi_core.encoders.mobilenet import mobilenetv2, mobilenetv2_imagenet
from mi_core.encoders.resnet import resnet8, resnet18, resnet18_imagenet, resnet50, resnet50_imagenet
from mi_core.encoders.vgg import vgg11_bn
from mi_core.encoders.vit import (
    deit_s,
    deit_tiny,
    dinov2_b_registers,
    dinov2_l_registers,
    dinov2_s_registers,
    vit_b,
    vit_h,
    vit_l,
    vit_s,
    vit_tiny,
)

ENCODERS: dict[str, Callable[[ImageShape], nn.Module]] = {
    "conv4": conv4,
    "resnet8": resnet8,
    "resnet18": resnet18,
    "resnet18-imagenet": resnet18_imagenet,
    "resnet50": resnet50,
    "resnet50-imagenet": resnet50_imagenet,
    "vgg11-bn": vgg11_bn,
    "mobilenetv2": mobilenetv2,
    "mobilenetv2-imagenet": mobilenetv2_imagenet,
    "vit-tiny": vit_tiny,
    "vit-s": vit_s,
    "moco-vit-s": vit_s,
    "vit-b": vit_b,
    "vit-l": vit_l,
    "vit-h": vit_h,
    "deit-tiny": deit_tiny,
    "deit-s": deit_s,
    "dinov2-s": deit_s,
    "dinov2-b": vit_b,
    "dinov2-l": vit_l,
    "dinov2-s-reg": dinov2_s_registers,
    "dinov2-b-reg": dinov2_b_registers,
    "dinov2-l-reg": dinov2_l_registers,
    "clip-vit-b": clip_vit_b,
}
_TRANSFORMERS = ("vit", "deit", "dino")


def build_backbone(name: str, channels: int, image_size: int) -> nn.Module:
    """A backbone with fresh weights; its ``width`` attribute is the embedding width D.

    Args:
        name: a key of `ENCODERS`; for a transformer with its patch size after a slash, as in ``vit-s/16``.
        channels: colour channels C of the input, 1 or 3.
        image_size: side of the input in pixels.

    Raises:
        ConfigError: no such backbone, a patch size that is missing, superfluous or does not divide the image, or an
            architecture whose package is not installed.

    Example:
        >>> build_backbone("vit-s/8", channels=3, image_size=32).width
        384
    """
    builder, shape = parse_backbone(name, channels, image_size)
    backbone = builder(shape)
    assert hasattr(backbone, "width"), f"{name} has no attribute width"
    return backbone


def parse_backbone(name: str, channels: int, image_size: int) -> tuple[Callable[[ImageShape], nn.Module], ImageShape]:
    """The builder of a backbone and what it is given. Raises ConfigError as `build_backbone`; builds nothing."""
    base, slash, patch = name.partition("/")
    check_choice("backbone", base, ENCODERS)
    transformer = any(family in base for family in _TRANSFORMERS)
    if transformer != bool(slash):
        hint = f"write {base}/16 for patches of 16 pixels" if transformer else f"write {base}, it has no patches"
        raise ConfigError(f"backbone = {name!r}: {hint}")
    if slash and (not patch.isdigit() or int(patch) < 1 or image_size % int(patch)):
        raise ConfigError(f"backbone = {name!r}: the patch size must divide the image size {image_size}")
    return ENCODERS[base], ImageShape(channels, image_size, int(patch or 0))
