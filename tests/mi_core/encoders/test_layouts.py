"""Checkpoints as the original projects write them, built here by hand, give the embeddings of what they hold."""

from __future__ import annotations

import argparse
import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import nn
from torchvision import models

from mi_core.checks import ConfigError
from mi_core.encoders import build_backbone
from mi_core.encoders.checkpoint import weights_bytes
from mi_core.encoders.foreign import Adopted, adopt, rebuild
from mi_core.encoders.layouts import head_module, listed, look_at, recognise
from mi_core.encoders.layouts.files import read_weights, unwrap
from mi_core.encoders.layouts.table import LAYOUTS

State = dict[str, torch.Tensor]
MEAN, STD = (torch.tensor(values).reshape(1, 3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def images(side: int = 32) -> torch.Tensor:
    return torch.rand(3, 3, side, side, generator=torch.Generator().manual_seed(0))


def seeded(build: Callable[[], nn.Module], seed: int = 1) -> Any:
    """A module as after some training: norms, positions and biases that differ, so that a swap would show.

    It is built without weights, which takes a tenth of the time of drawing them twice.
    """
    with torch.device("meta"):
        module = build()
    module = module.to_empty(device="cpu").eval()
    torch.manual_seed(seed)
    for name, tensor in module.state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 2)
        elif name.endswith("num_batches_tracked"):
            tensor.fill_(7)
        elif tensor.ndim > 1 and not name.endswith(("pos_embed", "token")):
            tensor.uniform_(-1, 1).mul_((3 / tensor[0].numel()) ** 0.5)
        else:
            tensor.uniform_(0.2, 0.6) if name.endswith("weight") else tensor.uniform_(-0.3, 0.3)
    return module


def cifar_resnet(outputs: int = 16) -> nn.Module:
    network = models.resnet18(num_classes=outputs)
    network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return network


def without_fc(network: nn.Module) -> nn.Module:
    network.fc = nn.Identity()
    return network


def numbered(network: nn.Module, *without: str) -> nn.Sequential:
    """Layers of a network in a sequence, as ``nn.Sequential(*network.children())`` gives them."""
    return nn.Sequential(*(child for name, child in network.named_children() if name not in without))


def transformer(name: str = "vit_small_patch16_224", **settings: Any) -> Any:
    """timm's definition, whose names MoCo v3, DINO, MAE, DINOv2 and DeiT share; 32 px make it small."""
    timm = pytest.importorskip("timm")
    return timm.create_model(name, **{"num_classes": 0, "img_size": 32} | settings)


def mlp(
    widths: list[int],
    *,
    bias: bool = True,
    norm: bool = False,
    last_norm: bool = False,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(pairwise(widths)):
        layers.append(nn.Linear(before, after, bias=bias))
        if index < len(widths) - 2:
            layers += [nn.BatchNorm1d(after), activation()] if norm else [activation()]
        elif last_norm:
            layers.append(nn.BatchNorm1d(after, affine=False))
    return nn.Sequential(*layers)


def moco_positions(side: int, width: int) -> torch.Tensor:
    """MoCo v3 (vits.py): sine and cosine of the row, then of the column, one token of zeros first."""
    result = torch.zeros(1, side * side + 1, width)
    quarter = width // 4
    for row in range(side):
        for column in range(side):
            for index in range(quarter):
                place = result[0, 1 + row * side + column]
                for part, value in enumerate((row, column)):
                    angle = torch.tensor(value / 10000 ** (index / quarter))
                    place[2 * part * quarter + index] = angle.sin()
                    place[(2 * part + 1) * quarter + index] = angle.cos()
    return result


def saved(content: Any, **how: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, **how)
    return buffer.getvalue()


def prefixed(module: nn.Module, prefix: str) -> State:
    return {f"{prefix}{name}": tensor for name, tensor in module.state_dict().items()}


def random(**shapes: tuple[int, ...]) -> State:
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def sgd() -> dict[str, Any]:
    return torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9).state_dict()


@dataclass
class Case:
    """A file, and what has to come out of it."""

    load: str
    content: dict[str, Any]
    layout: str
    expected: dict[str, Callable[[torch.Tensor], torch.Tensor]]
    ignored: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    activations: dict[str, str] = field(default_factory=dict)
    side: int = 32


MOMENTUM = "a momentum copy, which is not what is released"
STRIDES = "strides and pooling of the first layers as resnet18 has them"


def moco_v1() -> Case:
    query, key = seeded(lambda: models.resnet18(num_classes=16)), seeded(lambda: models.resnet18(num_classes=16), 2)
    state = prefixed(query, "module.encoder_q.") | prefixed(key, "module.encoder_k.")
    state |= {"module.queue": torch.randn(16, 64), "module.queue_ptr": torch.zeros(1, dtype=torch.int64)}
    content = {"epoch": 200, "arch": "resnet18", "state_dict": state, "optimizer": sgd()}
    ignored = (
        f"encoder_k.*, 122 keys ({MOMENTUM})",
        "queue, queue_ptr (the queue of negatives)",
        "epoch, arch (no weights)",
        "optimizer (the state of its training)",
    )
    return Case("resnet18-imagenet", content, "MoCo v1 checkpoint", {"projection": query}, ignored)


def moco_v2() -> Case:
    def build() -> nn.Module:
        network = models.resnet18(num_classes=16)
        network.fc = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 16))
        return network

    query, key = seeded(build), seeded(build, 2)
    state = prefixed(query, "module.encoder_q.") | prefixed(key, "module.encoder_k.") | random(queue=(16, 64))
    state["module.queue"] = state.pop("queue")
    assumed = ("activation relu in the projection, as the code behind a MoCo v2 checkpoint has it",)
    ignored = (f"encoder_k.*, 124 keys ({MOMENTUM})", "queue (the queue of negatives)")
    backbone = without_fc(seeded(build))
    return Case(
        "resnet18-imagenet",
        {"state_dict": state},
        "MoCo v2 checkpoint",
        {"projection": query, "backbone": backbone},
        ignored,
        assumed,
    )


def moco_demo() -> Case:
    """The CIFAR demo, EncoderMI's target: numbered layers, no max-pooling, then flatten and a linear layer at 9."""
    network = seeded(cifar_resnet)
    sequence = nn.Sequential(*numbered(network, "maxpool", "fc"), nn.Flatten(1), network.fc)
    state = prefixed(sequence, "encoder_q.net.") | prefixed(sequence, "encoder_k.net.") | random(queue=(16, 8))
    ignored = (f"encoder_k.*, 122 keys ({MOMENTUM})", "queue (the queue of negatives)", "epoch (no weights)")
    layout = "MoCo CIFAR demo checkpoint with numbered (no max-pooling) names"
    return Case("resnet18", {"epoch": 1, "state_dict": state}, layout, {"projection": network}, ignored, (STRIDES,))


def moco_v3_resnet() -> Case:
    def build() -> nn.Module:
        network = models.resnet18()
        network.fc = mlp([512, 64, 24], bias=False, norm=True, last_norm=True)
        return network

    base, momentum = seeded(build), seeded(build, 2)
    predictor = seeded(lambda: mlp([24, 64, 24], bias=False, norm=True), 3)
    state = (
        prefixed(base, "base_encoder.") | prefixed(momentum, "momentum_encoder.") | prefixed(predictor, "predictor.")
    )
    expected = {"projection": base, "prediction": lambda pixels: predictor(base(pixels))}
    return Case(
        "resnet18-imagenet",
        {"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}},
        "MoCo v3 checkpoint",
        expected,
        (f"momentum_encoder.*, 130 keys ({MOMENTUM})",),
        tuple(
            f"activation relu in the {head}, as the code behind a MoCo v3 checkpoint has it"
            for head in ("projection", "prediction")
        ),
    )


def moco_v3_vit() -> Case:
    def build() -> nn.Module:
        network = transformer(num_heads=12)
        network.head = mlp([384, 48, 48, 16], bias=False, norm=True, last_norm=True)
        return network  # type: ignore[no-any-return]

    base, momentum = seeded(build), seeded(build, 2)
    base.pos_embed.data = moco_positions(2, 384)
    predictor = seeded(lambda: mlp([16, 48, 16], bias=False, norm=True, last_norm=True), 3)
    state = (
        prefixed(base, "base_encoder.") | prefixed(momentum, "momentum_encoder.") | prefixed(predictor, "predictor.")
    )
    said = "12 attention heads, as a file with the fixed positions of MoCo v3 has"
    heads = ("projection", "prediction")
    return Case(
        "vit-s/16",
        {"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}},
        "MoCo v3 checkpoint with timm names",
        {"projection": base, "prediction": lambda pixels: predictor(base(pixels))},
        (f"momentum_encoder.*, 166 keys ({MOMENTUM})",),
        (said, *(f"activation relu in the {head}, as the code behind a MoCo v3 checkpoint has it" for head in heads)),
    )


def simclr_leftthomas() -> Case:
    """main.py of leftthomas/SimCLR: thop, which counts operations, leaves its counters in the state dict."""
    network = seeded(cifar_resnet)
    head = seeded(
        lambda: nn.Sequential(nn.Linear(512, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))
    )
    state = prefixed(numbered(network, "maxpool", "fc"), "f.") | prefixed(head, "g.")
    state = {f"module.{name}": tensor for name, tensor in state.items()}
    for place in ("", "module.f.", "module.f.0.", "module.f.3.0.conv1.", "module.g.", "module.g.0."):
        for counter in ("total_ops", "total_params"):
            state[f"{place}{counter}"] = torch.zeros(1, dtype=torch.float64)
    backbone = without_fc(seeded(cifar_resnet))
    layout = "SimCLR state dict of leftthomas/SimCLR"
    return Case(
        "resnet18",
        state,
        f"{layout} with numbered (no max-pooling) names",
        {"backbone": backbone, "projection": lambda pixels: head(backbone(pixels))},
        ("total_ops, total_params, 12 keys (counters of thop)",),
        (f"activation relu in the projection, as the code behind a {layout} has it", STRIDES),
    )


def simclr_sthalles() -> Case:
    network = seeded(cifar_resnet)
    network.fc = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), network.fc)
    layout = "SimCLR checkpoint of sthalles/SimCLR"
    said = f"activation relu in the projection, as the code behind a {layout} has it"
    content = {"epoch": 100, "arch": "resnet18", "state_dict": prefixed(network, "backbone."), "optimizer": sgd()}
    ignored = ("epoch, arch (no weights)", "optimizer (the state of its training)")
    return Case("resnet18", content, layout, {"projection": network}, ignored, (said, STRIDES))


def compiled() -> Case:
    """torch.compile around DistributedDataParallel around the model."""
    network = seeded(cifar_resnet)
    state = prefixed(network, "_orig_mod.module.")
    return Case("resnet18", {"model": state}, "plain state dict", {"logits": network}, (), (STRIDES,))


def lightly_byol() -> Case:
    """BYOL with lightly's modules, as its examples name them."""
    heads = pytest.importorskip("lightly.models.modules.heads")
    network = seeded(models.resnet18)
    projection = seeded(lambda: heads.BYOLProjectionHead(512, 64, 16))
    prediction = seeded(lambda: heads.BYOLPredictionHead(16, 64, 16))
    state = prefixed(numbered(network, "fc"), "backbone.") | prefixed(projection, "projection_head.")
    state |= prefixed(prediction, "prediction_head.")
    state |= prefixed(numbered(seeded(models.resnet18, 2), "fc"), "backbone_momentum.")
    state |= prefixed(seeded(lambda: heads.BYOLProjectionHead(512, 64, 16), 2), "projection_head_momentum.")
    backbone = without_fc(seeded(models.resnet18))
    both = ("projection", "prediction")
    return Case(
        "resnet18-imagenet",
        state,
        "lightly state dict with numbered names",
        {
            "projection": lambda pixels: projection(backbone(pixels)),
            "prediction": lambda pixels: prediction(projection(backbone(pixels))),
        },
        (f"backbone_momentum.*, projection_head_momentum.*, 128 keys ({MOMENTUM})",),
        tuple(f"activation relu in the {head}, as the code behind a lightly state dict has it" for head in both),
    )


def lightly_swav() -> Case:
    heads = pytest.importorskip("lightly.models.modules.heads")
    backbone = without_fc(seeded(models.resnet18))
    projection = seeded(lambda: heads.SwaVProjectionHead(512, 64, 16))
    prototypes = heads.SwaVPrototypes(16, 24)
    state = prefixed(numbered(backbone, "fc"), "backbone.") | prefixed(projection, "projection_head.")
    return Case(
        "resnet18-imagenet",
        state | prefixed(prototypes, "prototypes."),
        "lightly state dict with numbered names",
        {"projection": lambda pixels: projection(backbone(pixels))},
        ("prototypes.*, 2 keys (prototypes, with which the loss compares)",),
        ("activation relu in the projection, as the code behind a lightly state dict has it",),
    )


def lightly_dino() -> Case:
    heads = pytest.importorskip("lightly.models.modules.heads")

    def head() -> nn.Module:
        return heads.DINOProjectionHead(512, 64, 16, 24, batch_norm=True)  # type: ignore[no-any-return]

    student, teacher = without_fc(seeded(models.resnet18, 2)), without_fc(seeded(models.resnet18))
    teacher_head = seeded(head)
    state = prefixed(numbered(student, "fc"), "student_backbone.") | prefixed(seeded(head, 2), "student_head.")
    state |= prefixed(numbered(teacher, "fc"), "teacher_backbone.") | prefixed(teacher_head, "teacher_head.")
    return Case(
        "resnet18-imagenet",
        state,
        "lightly DINO state dict with numbered names",
        {"projection": lambda pixels: teacher_head.layers(teacher(pixels))},
        (
            "student_backbone.*, student_head.*, 136 keys (the other network; DINO releases the teacher)",
            "teacher_head.*, 2 keys (prototypes, with which the loss compares)",
        ),
        ("activation gelu in the projection, as the code behind a lightly DINO state dict has it",),
    )


def solo_learn() -> Case:
    """A checkpoint of solo-learn's BYOL: online and momentum networks, and a classifier that learns beside them."""
    backbone = without_fc(seeded(cifar_resnet))
    projector, predictor = (
        seeded(lambda: mlp([512, 64, 16], norm=True)),
        seeded(lambda: mlp([16, 64, 16], norm=True), 3),
    )
    state = prefixed(backbone, "backbone.") | prefixed(nn.Linear(512, 10), "classifier.")
    state |= prefixed(projector, "projector.") | prefixed(predictor, "predictor.")
    state |= prefixed(without_fc(seeded(cifar_resnet, 2)), "momentum_backbone.")
    state |= prefixed(seeded(lambda: mlp([512, 64, 16], norm=True), 2), "momentum_projector.")
    state |= prefixed(nn.Linear(512, 10), "momentum_classifier.")
    content = {"epoch": 3, "state_dict": state, "loops": {"fit_loop": {}}, "hyper_parameters": {"lr": 0.1}}
    layout = "solo-learn state dict"
    return Case(
        "resnet18",
        content,
        layout,
        {
            "projection": lambda pixels: projector(backbone(pixels)),
            "prediction": lambda pixels: predictor(projector(backbone(pixels))),
        },
        (
            "classifier.*, 2 keys (a classifier trained beside the encoder)",
            f"momentum_backbone.*, momentum_projector.*, momentum_classifier.*, 131 keys ({MOMENTUM})",
            "epoch, hyper_parameters (no weights)",
            "loops (the state of its training)",
        ),
        (
            *(
                f"activation relu in the {head}, as the code behind a {layout} has it"
                for head in ("projection", "prediction")
            ),
            STRIDES,
        ),
    )


def simsiam() -> Case:
    """facebookresearch/simsiam: the projector in place of ``encoder.fc``, the predictor beside it."""

    def build() -> nn.Module:
        network = models.resnet18()
        network.fc = nn.Sequential(
            nn.Linear(512, 512, bias=False),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, 512, bias=False),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, 32),
            nn.BatchNorm1d(32, affine=False),
        )
        return network

    encoder = seeded(build)
    predictor = seeded(
        lambda: nn.Sequential(nn.Linear(32, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 32)), 3
    )
    state = prefixed(encoder, "module.encoder.") | prefixed(predictor, "module.predictor.")
    return Case(
        "resnet18-imagenet",
        {"epoch": 100, "arch": "resnet18", "state_dict": state, "optimizer": sgd()},
        "SimSiam checkpoint",
        {"projection": encoder, "prediction": lambda pixels: predictor(encoder(pixels))},
        ("epoch, arch (no weights)", "optimizer (the state of its training)"),
        tuple(
            f"activation relu in the {head}, as the code behind a SimSiam checkpoint has it"
            for head in ("projection", "prediction")
        ),
    )


def byol_pytorch() -> Case:
    """lucidrains/byol-pytorch: the network stands in the file twice, its classifier is never trained."""
    network, target = seeded(models.resnet18), seeded(models.resnet18, 2)
    backbone = without_fc(seeded(models.resnet18))
    projector, predictor = (
        seeded(lambda: mlp([512, 64, 16], norm=True)),
        seeded(lambda: mlp([16, 64, 16], norm=True), 3),
    )
    state = prefixed(network, "net.") | prefixed(network, "online_encoder.net.")
    state |= prefixed(projector, "online_encoder.projector.") | prefixed(predictor, "online_predictor.")
    state |= prefixed(target, "target_encoder.net.") | prefixed(projector, "target_encoder.projector.")
    layout = "BYOL checkpoint of byol-pytorch"
    return Case(
        "resnet18-imagenet",
        state,
        layout,
        {
            "projection": lambda pixels: projector(backbone(pixels)),
            "prediction": lambda pixels: predictor(projector(backbone(pixels))),
        },
        (
            "net.*, 122 keys (the same network once more)",
            "online_encoder.*, 2 keys (the network's own classifier, which BYOL does not train)",
            f"target_encoder.*, 131 keys ({MOMENTUM})",
        ),
        tuple(
            f"activation relu in the {head}, as the code behind a {layout} has it"
            for head in ("projection", "prediction")
        ),
    )


class SwAVResNet(nn.Module):
    """facebookresearch/swav: a padding of one pixel of its own before a first convolution that pads by two."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.network.conv1.padding = (2, 2)  # type: ignore[union-attr]
        self.padding = nn.ConstantPad2d(1, 0.0)

    def forward(self, pixels: torch.Tensor) -> Any:
        return self.network(self.padding(pixels))


def swav() -> Case:
    projection = seeded(lambda: mlp([512, 64, 16], norm=True))
    network = without_fc(seeded(models.resnet18))
    state = prefixed(network, "module.") | prefixed(projection, "module.projection_head.")
    state |= prefixed(nn.Linear(16, 24, bias=False), "module.prototypes.")
    reference = SwAVResNet(network)
    return Case(
        "resnet18-imagenet",
        state,
        "SwAV checkpoint",
        {"projection": lambda pixels: projection(reference(pixels))},
        ("prototypes.* (prototypes, with which the loss compares)",),
        ("activation relu in the projection, as the code behind a SwAV checkpoint has it",),
    )


def barlow_twins() -> Case:
    network = without_fc(seeded(models.resnet18))
    projector = seeded(lambda: mlp([512, 64, 64, 32], bias=False, norm=True))
    state = prefixed(network, "module.backbone.") | prefixed(projector, "module.projector.")
    state |= prefixed(nn.BatchNorm1d(32, affine=False), "module.bn.")
    return Case(
        "resnet18-imagenet",
        {"epoch": 3, "model": state, "optimizer": sgd()},
        "Barlow Twins checkpoint",
        {"projection": lambda pixels: projector(network(pixels))},
        (
            "bn.*, 3 keys (the norm before the loss)",
            "epoch (no weights)",
            "optimizer (the state of its training)",
        ),
        ("activation relu in the projection, as the code behind a Barlow Twins checkpoint has it",),
    )


def vicreg() -> Case:
    network = without_fc(seeded(models.resnet18))
    projector = seeded(lambda: mlp([512, 64, 64, 32], norm=True))
    projector[6] = nn.Linear(64, 32, bias=False)
    state = prefixed(network, "module.backbone.") | prefixed(projector, "module.projector.")
    return Case(
        "resnet18-imagenet",
        {"epoch": 3, "model": state, "optimizer": sgd()},
        "VICReg checkpoint",
        {"projection": lambda pixels: projector(network(pixels))},
        ("epoch (no weights)", "optimizer (the state of its training)"),
        ("activation relu in the projection, as the code behind a VICReg checkpoint has it",),
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
        {"backbone": teacher, "projection": lambda pixels: head.mlp(teacher(pixels))},
        (
            "head.*, 2 keys (prototypes, with which the loss compares)",
            "student (the other network; DINO releases the teacher)",
            "optimizer (the state of its training)",
            "epoch (no weights)",
            "dino_loss (values of the loss)",
        ),
        (*assumed, "activation gelu in the projection, as the code behind a DINO checkpoint has it"),
    )


def dino_resnet() -> Case:
    return dino("resnet18-imagenet", lambda: without_fc(models.resnet18()), "", ())


def dino_vit() -> Case:
    return dino("deit-s/16", transformer, " with timm names", ("6 attention heads, as a DINO checkpoint has",))


def mae() -> Case:
    network = seeded(lambda: transformer("vit_base_patch16_224"))
    decoder = random(
        mask_token=(1, 1, 512), decoder_pos_embed=(1, 5, 512), **{"decoder_embed.weight": (512, 768)}
    ) | random(**{"decoder_blocks.0.norm1.weight": (512,), "decoder_pred.weight": (768, 512)})
    return Case(
        "vit-b/16",
        {"model": network.state_dict() | decoder},
        "MAE checkpoint with timm names",
        {"backbone": network},
        (
            "mask_token, decoder_pos_embed, decoder_embed.*, ..., 5 keys "
            "(the decoder, which rebuilds images and is no part of the encoder)",
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
        {"projection": lambda pixels: head(backbone(pixels))},
        ("optimizer (the state of its training)",),
        ("activation gelu in the projection, as the config says", STRIDES),
        activations={"projection": "gelu"},
    )


CASES = (
    moco_v1,
    moco_v2,
    moco_demo,
    moco_v3_resnet,
    moco_v3_vit,
    simclr_leftthomas,
    simclr_sthalles,
    compiled,
    lightly_byol,
    lightly_swav,
    lightly_dino,
    solo_learn,
    simsiam,
    byol_pytorch,
    swav,
    barlow_twins,
    vicreg,
    dino_resnet,
    dino_vit,
    mae,
    dinov2,
    dinov2_registers,
    deit,
    torchvision_names,
    separate_dictionaries,
)


def taken(case: Case) -> Adopted:
    """What is adopted, which is the same when it is built again from what the run folder keeps."""
    load, shape = f"checkpoint:{case.load}", {"channels": 3, "image_size": case.side}
    adopted = adopt(load, saved(case.content), activations=case.activations, **shape)  # type: ignore[arg-type]
    again = rebuild(
        load,
        weights_bytes(adopted.encoder),
        adopted.preprocessing,
        mark=adopted.fingerprint,
        activations=adopted.activations,
        **shape,  # type: ignore[arg-type]
    )
    with torch.no_grad():
        first, second = (encoder(images(case.side)) for encoder in (adopted.encoder, again))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[output], second[output]) for output in first)
    return adopted


def counted(words: str) -> int:
    """Keys that a sentence of `listed` stands for."""
    many = re.search(r", (\d+) keys \(", words)
    return int(many[1]) if many else len(words.partition(" (")[0].split(", "))


@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
@torch.no_grad()
def test_published_checkpoints(build: Callable[[], Case]) -> None:
    case = build()
    adopted = taken(case)
    assert adopted.layout == case.layout
    assert adopted.ignored == case.ignored
    assert adopted.assumed == case.assumed
    assert adopted.encoder.outputs == ("backbone", *(output for output in case.expected if output != "backbone"))
    normalised = (images(case.side) - MEAN) / STD
    found = adopted.encoder(images(case.side))
    for output, reference in case.expected.items():
        torch.testing.assert_close(found[output], reference(normalised), rtol=1e-5, atol=1e-5)
    _every_key_is_used_or_ignored_or_ends_the_run(case)


def _every_key_is_used_or_ignored_or_ends_the_run(case: Case) -> None:
    state = unwrap(case.content).state
    with torch.device("meta"):
        backbone = build_backbone(case.load, 3, case.side)

    def sorted_out(state: State) -> Any:
        return recognise(state, backbone, name=case.load, activations=case.activations)

    found = sorted_out(state)
    used = sum(int(part.split()[1]) for part in found.used.split(", "))
    assert used + sum(map(counted, found.ignored)) == len(state)
    with pytest.raises(
        ConfigError, match=r"1 keys are neither the backbone nor a known head, first \['probe.weight'\]"
    ):
        sorted_out(state | {"probe.weight": torch.ones(2, 2)})
    place, _, name = next(iter(found.backbone)).rpartition(".")
    layer = backbone.get_submodule(place)
    setattr(layer, name, nn.Parameter(getattr(layer, name)[..., :-1]))
    with pytest.raises(ConfigError, match=rf"weights do not fit checkpoint:{case.load}; the file looks like a"):
        sorted_out(state)


@pytest.mark.slow
def test_every_layout_is_shown() -> None:
    shown = {build().layout.partition(" with ")[0] for build in CASES}
    rest = {"state dict of this package", "encoder.* state dict", "f.* state dict"}
    assert {known.name for known in LAYOUTS} == shown | rest


def shapes_of(build: Callable[[], nn.Module], prefix: str = "") -> State:
    """A state dict of the right shapes that takes no memory."""
    with torch.device("meta"):
        module = build()
    return {f"{prefix}{name}": torch.zeros(()).expand(value.shape) for name, value in module.state_dict().items()}


def bare(name: str, side: int = 32) -> nn.Module:
    with torch.device("meta"):
        return build_backbone(name, 3, side)


def refused(state: State, name: str, message: str, side: int = 32, **settings: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        recognise(state, bare(name, side), name=name, **settings)


def test_a_small_transformer_is_taken_only_where_its_attention_heads_are_known() -> None:
    """Nothing in a state dict tells 6 heads from 12: the two compute something else from equal shapes."""
    plain = shapes_of(transformer)
    refused(plain, "vit-s/16", "write checkpoint:deit-s/16 or checkpoint:moco-vit-s/16")
    assert recognise(plain, bare("deit-s/16"), name="deit-s/16").assumed == ("6 attention heads, as deit-s/16 has",)
    named = recognise(plain, bare("moco-vit-s/16"), name="moco-vit-s/16")
    assert named.assumed == ("12 attention heads, as moco-vit-s/16 has",)
    extracted = plain | {"pos_embed": moco_positions(2, 384)}
    said = "a file with the fixed positions of MoCo v3"
    assert recognise(extracted, bare("vit-s/16"), name="vit-s/16").assumed == (f"12 attention heads, as {said} has",)
    refused(
        extracted, "deit-s/16", f"{said} of width 384 has 12 attention heads, deit-s/16 has 6; write checkpoint:moco"
    )
    moco = shapes_of(transformer, "base_encoder.")
    refused(moco, "deit-s/16", "a MoCo v3 checkpoint of width 384 has 12 attention heads, deit-s/16 has 6")
    dino = shapes_of(transformer, "backbone.") | shapes_of(lambda: dino_head(384), "head.")
    refused(dino, "vit-s/16", "a DINO checkpoint of width 384 has 6 .*, vit-s/16 has 12; write checkpoint:deit-s/16")
    with torch.device("meta"):
        ours = build_backbone("vit-s/16", 3, 32)
    own = {f"backbone.{name}": torch.zeros(()).expand(value.shape) for name, value in ours.state_dict().items()}
    own |= {"mean": torch.zeros(1, 3, 1, 1), "std": torch.ones(1, 3, 1, 1)}
    assert recognise(own, ours, name="vit-s/16").assumed == ("12 attention heads, as vit-s/16 has",)


def test_an_activation_that_no_file_tells_is_asked_for() -> None:
    network = shapes_of(lambda: without_fc(cifar_resnet()), "encoder.")
    head = shapes_of(lambda: mlp([512, 32, 8]), "projector.")
    refused(
        network | head,
        "resnet18",
        r"heads.projection.activation is missing: layers 1 of the projection have no weights, and the file "
        r"\(encoder.\* state dict\) does not tell what they do; give one of relu, gelu",
    )
    given = recognise(network | head, bare("resnet18"), name="resnet18", activations={"projection": "silu"})
    assert given.activations == {"projection": "silu"}
    assert given.assumed[0] == "activation silu in the projection, as the config says"
    linear = shapes_of(lambda: nn.Linear(512, 8), "projector.")
    assert recognise(network | linear, bare("resnet18"), name="resnet18").activations == {}
    refused(network | linear, "resnet18", "no place for one", activations={"projection": "relu"})
    refused(network, "resnet18", "the file has the heads: none", activations={"projection": "relu"})
    first = {"projector.1.weight": torch.ones(8, 512)}  # what stands before it is not known even of known code
    refused(network | first, "resnet18", "layers 0 of the projection have no weights")
    narrow = shapes_of(lambda: nn.Linear(256, 8), "projector.")
    refused(network | narrow, "resnet18", "the projection reads 256 numbers, but the backbone gives 512")
    beside = network | linear | shapes_of(lambda: nn.Linear(512, 10), "fc.")
    ignored = recognise(beside, bare("resnet18"), name="resnet18").ignored
    assert ignored == ("fc.*, 2 keys (a classifier beside the projection)",)
    alone = recognise(network | head, bare("resnet18"), name="resnet18", backbone_only=True)
    assert (alone.heads, alone.ignored) == ({}, ("projector.*, 4 keys (only the backbone is asked for)",))


def test_heads() -> None:
    weights = {"0.weight": torch.ones(3, 2), "3.weight": torch.ones(1, 3), "4.running_mean": torch.zeros(1)}
    kinds = [type(layer).__name__ for layer in head_module(weights, "gelu")]
    assert kinds == ["Linear", "GELU", "Identity", "Linear", "BatchNorm1d"]
    with pytest.raises(ConfigError, match="neither linear nor batch norm"):
        head_module({"0.weight": torch.ones(1, 1, 1, 1)})
    with pytest.raises(ConfigError, match="activation = 'sine', allowed: elu"):
        head_module(weights, "sine")


def test_what_stands_beside_the_weights_is_said() -> None:
    tensor = torch.ones(2, 2)
    found = unwrap(
        {"state_dict": {"a.weight": tensor}, "best_acc1": torch.tensor(76.0), "state_dict_ema": {"a": tensor}}
    )
    assert list(found.state) == ["a.weight"]
    assert found.ignored == (
        "best_acc1 (no weights)",
        "state_dict_ema (averaged weights; save them alone to audit them)",
    )
    assert sorted(unwrap({"model": {"module.a": tensor}, "head": {"0.weight": tensor}}).state) == [
        "a",
        "head.0.weight",
    ]
    assert listed({f"part{number}.a.total_ops": "counters" for number in range(9)}) == ["total_ops, 9 keys (counters)"]
    for content, message in (
        ([1, 2], "the file holds a list"),
        ({"epoch": 3}, r"holds no tensor; its keys are \['epoch'\]"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_weights(saved(content))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_needs_code_tells_what_is_in_it_and_the_line_that_converts_it(zipped: bool, tmp_path: Path) -> None:
    tensor = {"a.weight": torch.ones(2, 2)}
    arguments = argparse.Namespace(arch="vit_small", lr=0.1)
    for content, held, expected in (
        (
            {"student": tensor, "teacher": tensor, "epoch": 3, "args": arguments},
            r"args \(argparse.Namespace\) beside student, teacher, epoch, not plain tensors alone",
            {"teacher": tensor, "student": tensor},
        ),
        (
            {"model": tensor, "args": arguments},
            r"args \(argparse.Namespace\) beside model, not plain tensors alone",
            {"model": tensor},
        ),
        ({"encoder": nn.Linear(2, 2, bias=False)}, r"encoder \(torch.nn.modules.linear.Linear\)", ["weight"]),
        (nn.Linear(2, 2, bias=False), "a whole torch.nn.modules.linear.Linear object", ["weight"]),
    ):
        data = saved(content, _use_new_zipfile_serialization=zipped)
        with pytest.raises(ConfigError, match=f"the file holds {held}") as caught:
            read_weights(data)
        assert "\x1b" not in str(caught.value)
        code = re.search(r'python -c "(.*)"', str(caught.value))
        assert code is not None
        (tmp_path / "theirs.pth").write_bytes(data)
        line = code[1].replace("'FILE'", repr(str(tmp_path / "theirs.pth")))
        exec(line.replace("'weights.pth'", repr(str(tmp_path / "weights.pth"))), {})
        kept = torch.load(tmp_path / "weights.pth", weights_only=True)
        assert list(kept) == list(expected)
        assert read_weights((tmp_path / "weights.pth").read_bytes()).state


def test_no_class_of_an_unreadable_file_is_built() -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return exec, ("raise SystemExit('it ran')",)

    with pytest.raises(ConfigError, match=r"the file holds args \(builtins.exec\) beside model"):
        read_weights(saved({"model": {"a": torch.ones(1)}, "args": Trap()}))
    with pytest.raises(ConfigError, match="neither safetensors nor a PyTorch file of plain tensors"):
        read_weights(b"nothing")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_torchscript_file_is_told() -> None:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), buffer)
    with pytest.raises(ConfigError, match="the weights are a TorchScript file, which is code"):
        read_weights(buffer.getvalue())


def test_what_a_file_looks_like_and_the_line_that_loads_it() -> None:
    shown = {
        "checkpoint:resnet50-imagenet": shapes_of(lambda: without_fc(models.resnet50())),
        "checkpoint:resnet18": shapes_of(cifar_resnet, "encoder_q."),
        "checkpoint:vit-s/16": shapes_of(transformer, "base_encoder."),
        "checkpoint:vit-b/16": shapes_of(lambda: transformer("vit_base_patch16_224")),
        "checkpoint:vit-l/16": shapes_of(lambda: transformer("vit_large_patch16_224")),
        "checkpoint:dinov2-b/14": shapes_of(lambda: transformer("vit_base_patch14_dinov2", img_size=28)),
        "checkpoint:deit-s/16 (DeiT, timm, DINO: 6 attention heads) or checkpoint:moco-vit-s/16 (12)": shapes_of(
            transformer
        ),
    }
    for load, state in shown.items():
        assert look_at(state).load == load
        assert look_at(state).sentence().endswith(f"; write load: {load}")
    assert look_at(shapes_of(models.resnet34)).words == "a plain state dict of a ResNet-34 with the ImageNet stem"
    wide = look_at(shapes_of(models.wide_resnet50_2))
    assert (wide.load, wide.words.endswith("of another width")) == (None, True)
    assert look_at(shown["checkpoint:vit-s/16"]).side == 32
    with pytest.raises(
        ConfigError, match=r"asked for torchvision:resnet18; the file looks like .*load: checkpoint:resnet18"
    ):
        state = without_fc(models.resnet18()).state_dict()
        adopt("torchvision:resnet18", saved(state), channels=3, image_size=32)
    refused(
        shapes_of(models.resnet18),
        "resnet18",
        r"looks like a plain state dict of a ResNet-18 with the ImageNet stem; write load: checkpoint:resnet18-imagenet"
        r"; missing \[\] \(0\), unexpected \[\] \(0\), wrong shape "
        r"\['conv1.weight \(64, 3, 7, 7\) instead of \(64, 3, 3, 3\)'\]",
    )


def test_images_reach_a_transformer_at_the_side_of_its_positions() -> None:
    data = saved(seeded(lambda: transformer("vit_tiny_patch16_224")).state_dict())
    adopted = adopt("checkpoint:deit-tiny/16", data, channels=3, image_size=64)
    assert adopted.preprocessing.size == 32
    again = rebuild(
        "checkpoint:deit-tiny/16",
        weights_bytes(adopted.encoder),
        adopted.preprocessing,
        channels=3,
        image_size=64,
        mark=adopted.fingerprint,
    )
    assert again(images(64))["backbone"].shape == (3, 192)
    with pytest.raises(ConfigError, match="size = 48, but the positions in the file are for images of 32 px"):
        adopt("checkpoint:deit-tiny/16", data, channels=3, image_size=64, preprocessing={"size": 48})


def test_own_checkpoints_bring_their_normalisation() -> None:
    shape: Any = {"channels": 3, "image_size": 32}
    ours = adopt("checkpoint:resnet8", None, fresh=0, preprocessing={"mean": (0.1,), "std": (0.3,)}, **shape)
    again = adopt("checkpoint:resnet8", weights_bytes(ours.encoder), **shape)
    assert (again.layout, again.fingerprint) == ("state dict of this package", ours.fingerprint)
    assert again.preprocessing.mean == pytest.approx((0.1, 0.1, 0.1))
    assert torch.equal(again.encoder(images())["backbone"], ours.encoder(images())["backbone"])


def test_fingerprints_tell_networks_apart_that_have_equal_weights() -> None:
    shape: Any = {"channels": 3, "image_size": 32}
    state = {f"encoder.{name}": value for name, value in build_backbone("resnet8", 3, 32).state_dict().items()}
    data = save(state | {f"projector.{name}": value for name, value in mlp([128, 8, 4]).state_dict().items()})
    prints = [
        adopt("checkpoint:resnet8", data, activations={"projection": activation}, **shape).fingerprint
        for activation in ("relu", "relu", "gelu")
    ]
    assert prints[0] == prints[1] != prints[2]
    fresh = [adopt("checkpoint:conv4", None, fresh=seed, **shape).fingerprint for seed in (0, 0, 1)]
    assert fresh[0] == fresh[1] != fresh[2]


def test_mistakes_are_told() -> None:
    for load, message in (
        ("keras:x", "load = 'keras', allowed: checkpoint, open_clip"),
        ("checkpoint", "write checkpoint:<name of the architecture>"),
    ):
        with pytest.raises(ConfigError, match=message):
            adopt(load, None, channels=3, image_size=32, fresh=0)
    with pytest.raises(ConfigError, match="defines its heads itself; leave heads out"):
        adopt("torchvision:resnet18", b"", channels=3, image_size=32, activations={"projection": "relu"})
