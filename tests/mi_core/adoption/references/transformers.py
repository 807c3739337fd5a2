"""Checkpoints of DINO, MAE, DINOv2 and DeiT, and of networks without a training of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torchvision import models

from tests.mi_core.adoption.references.parts import (
    STRIDES,
    Case,
    activations,
    chained,
    cifar_resnet,
    mlp,
    prefixed,
    random,
    seeded,
    sgd,
    transformer,
    without_fc,
)


def dino_head(width: int) -> nn.Module:
    """Its names: an MLP with GELU called ``mlp``, then ``last_layer``, a linear layer with normed weights."""
    head = nn.Module()
    head.mlp = mlp([width, 64, 64, 16], activation=nn.GELU)
    head.last_layer = nn.Module()
    head.last_layer.weight_g = nn.Parameter(torch.ones(24, 1))
    head.last_layer.weight_v = nn.Parameter(torch.randn(24, 16))
    return head


def dino(load: str, build: Callable[[], nn.Module], naming: str, assumed: tuple[str, ...]) -> Case:
    """main_dino.py, without ``args``: student and teacher beside each other."""
    student, teacher = seeded(build, 2), seeded(build)
    head = seeded(lambda: dino_head(384 if "deit" in load else 512), 3)
    directions = head.last_layer.weight_v

    def scored(images: torch.Tensor) -> torch.Tensor:
        """Cosines with the prototypes, times their lengths."""
        cosines = F.cosine_similarity(head.mlp(teacher(images))[:, None], directions[None], dim=2)
        return cosines * head.last_layer.weight_g[:, 0]

    content = {
        "student": prefixed(student, "module.backbone.") | prefixed(head, "module.head."),
        "teacher": prefixed(teacher, "backbone.") | prefixed(head, "head."),
        "optimizer": sgd(),
        "epoch": 100,
        "dino_loss": {"center": torch.zeros(1, 24)},
    }
    return Case(
        load,
        content,
        f"DINO checkpoint{naming}",
        {"backbone": teacher} | chained(teacher, head.mlp) | {"prototypes": scored},
        (
            "student (the other network; DINO releases the teacher)",
            "optimizer (the state of its training)",
            "epoch (no weights)",
            "dino_loss (values of the loss)",
        ),
        (*assumed, *activations("DINO checkpoint", "projection", activation="gelu")),
    )


def dino_resnet() -> Case:
    return dino("resnet18-imagenet", lambda: without_fc(models.resnet18()), "", ())


def dino_vit() -> Case:
    return dino("deit-s/16", transformer, " with timm names", ("6 attention heads, as a DINO checkpoint has",))


def mae_decoder() -> dict[str, torch.Tensor]:
    """The decoder of models_mae.py: blocks of timm of width 512, and fixed positions."""
    shapes = {"norm1": 512, "attn.qkv": (1536, 512), "attn.proj": (512, 512), "norm2": 512}
    shapes |= {"mlp.fc1": (2048, 512), "mlp.fc2": (512, 2048)}
    weights: dict[str, Any] = {"decoder_embed.weight": (512, 768), "decoder_embed.bias": (512,)}
    weights |= {"decoder_norm.weight": (512,), "decoder_norm.bias": (512,)}
    weights |= {"decoder_pred.weight": (768, 512), "decoder_pred.bias": (768,)}
    for layer, shape in shapes.items():
        whole = shape if isinstance(shape, tuple) else (shape,)
        weights |= {f"decoder_blocks.0.{layer}.weight": whole, f"decoder_blocks.0.{layer}.bias": whole[:1]}
    return random(mask_token=(1, 1, 512), decoder_pos_embed=(1, 5, 512)) | random(**weights)


def mae() -> Case:
    network = seeded(lambda: transformer("vit_base_patch16_224"))
    return Case(
        "vit-b/16",
        {"model": network.state_dict() | mae_decoder()},
        "MAE checkpoint with timm names",
        {"backbone": network},
        (
            "mask_token, decoder_pos_embed, decoder_embed.*, ..., 20 keys "
            "(the decoder, which is no part of the encoder)",
        ),
        ("12 attention heads, as a MAE checkpoint has",),
    )


def dinov2() -> Case:
    """The official file: layer scale in each block, and the token that hides patches."""
    network = seeded(lambda: transformer("vit_small_patch14_dinov2", img_size=28))
    return Case(
        "dinov2-s/14",
        network.state_dict() | random(mask_token=(1, 384)),
        "DINOv2 state dict with timm names",
        {"backbone": network},
        ("mask_token (stands for hidden patches in training)",),
        ("6 attention heads, as a DINOv2 state dict has",),
        side=28,
    )


def dinov2_registers() -> Case:
    """The official file keeps a position for the class token, which timm adds to the token, and calls registers so."""
    network = seeded(lambda: transformer("vit_small_patch14_reg4_dinov2", img_size=28))
    state, first = network.state_dict(), torch.randn(1, 1, 384)
    state["register_tokens"] = state.pop("reg_token")
    state["pos_embed"] = torch.cat([first, state["pos_embed"]], dim=1)
    state["cls_token"] = state["cls_token"] - first
    return Case(
        "dinov2-s-reg/14",
        state | random(mask_token=(1, 384)),
        "DINOv2 state dict with timm names",
        {"backbone": network},
        ("mask_token (stands for hidden patches in training)",),
        ("6 attention heads, as a DINOv2 state dict has",),
        side=28,
    )


def deit() -> Case:
    network = seeded(lambda: transformer(num_classes=10))
    said = "6 attention heads, as deit-s/16 has"
    return Case(
        "deit-s/16",
        {"model": network.state_dict()},
        "plain state dict with timm names",
        {"logits": network},
        (),
        (said,),
    )


def torchvision_names() -> Case:
    network = seeded(models.mobilenet_v2)
    said = "strides and pooling of the first layers as mobilenetv2-imagenet has them"
    return Case("mobilenetv2-imagenet", network.state_dict(), "plain state dict", {"logits": network}, (), (said,))


def separate_dictionaries() -> Case:
    """Backbone and head saved under names of their own; the code is not known, so its activation is asked."""
    backbone, head = without_fc(seeded(cifar_resnet)), seeded(lambda: mlp([512, 32, 8], activation=nn.GELU))
    content = {"backbone": backbone.state_dict(), "projector": head.state_dict(), "optimizer": sgd()}
    return Case(
        "resnet18",
        content,
        "backbone.* state dict",
        chained(backbone, head),
        ("optimizer (the state of its training)",),
        ("activation gelu in the projection, as the config says", STRIDES),
        activations={"projection": "gelu"},
    )


CASES = (dino_resnet, dino_vit, mae, dinov2, dinov2_registers, deit, torchvision_names, separate_dictionaries)
