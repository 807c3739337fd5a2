"""Checkpoints of BYOL, SimSiam, SwAV, Barlow Twins, VICReg, and of the libraries lightly and solo-learn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchvision import models

from tests.mi_core.adoption.references.parts import (
    MOMENTUM,
    STRIDES,
    Case,
    activations,
    chained,
    cifar_resnet,
    mlp,
    numbered,
    prefixed,
    seeded,
    sgd,
    without_fc,
)


def lightly_byol() -> Case:
    """BYOL with lightly's modules, as its examples name them."""
    heads = pytest.importorskip("lightly.models.modules.heads")
    network = seeded(models.resnet18)
    projection = seeded(lambda: heads.BYOLProjectionHead(512, 64, 16))
    prediction = seeded(lambda: heads.BYOLPredictionHead(16, 64, 16))
    state = prefixed(numbered(network, "fc"), "backbone.") | prefixed(projection, "projection_head.")
    state |= prefixed(prediction, "prediction_head.")
    copied = without_fc(seeded(models.resnet18, 2))
    copied_projection = seeded(lambda: heads.BYOLProjectionHead(512, 64, 16), 2)
    state |= prefixed(numbered(copied, "fc"), "backbone_momentum.")
    state |= prefixed(copied_projection, "projection_head_momentum.")
    backbone = without_fc(seeded(models.resnet18))
    return Case(
        "resnet18-imagenet",
        state,
        "lightly state dict with numbered names",
        chained(backbone, projection, prediction),
        (f"backbone_momentum.*, projection_head_momentum.*, 128 keys ({MOMENTUM})",),
        activations("lightly state dict", "projection", "prediction"),
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
        chained(backbone, projection),
        ("prototypes.*, 2 keys (prototypes, with which the loss compares)",),
        activations("lightly state dict", "projection"),
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
        chained(teacher, teacher_head.layers) | {"prototypes": nn.Sequential(teacher, teacher_head)},
        ("student_backbone.*, student_head.*, 136 keys (the other network; DINO releases the teacher)",),
        activations("lightly DINO state dict", "projection", activation="gelu"),
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
    copied, copied_projector = without_fc(seeded(cifar_resnet, 2)), seeded(lambda: mlp([512, 64, 16], norm=True), 2)
    state |= prefixed(copied, "momentum_backbone.") | prefixed(copied_projector, "momentum_projector.")
    state |= prefixed(nn.Linear(512, 10), "momentum_classifier.")
    content = {"epoch": 3, "state_dict": state, "loops": {"fit_loop": {}}, "hyper_parameters": {"lr": 0.1}}
    layout = "solo-learn state dict"
    return Case(
        "resnet18",
        content,
        layout,
        chained(backbone, projector, predictor),
        (
            "classifier.*, 2 keys (a classifier trained beside the encoder)",
            f"momentum_backbone.*, momentum_projector.*, momentum_classifier.*, 131 keys ({MOMENTUM})",
            "epoch, hyper_parameters (no weights)",
            "loops (the state of its training)",
        ),
        (*activations(layout, "projection", "prediction"), STRIDES),
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
        {"projection": encoder, "prediction": nn.Sequential(encoder, predictor)},
        ("epoch, arch (no weights)", "optimizer (the state of its training)"),
        activations("SimSiam checkpoint", "projection", "prediction"),
    )


def byol_pytorch() -> Case:
    """lucidrains/byol-pytorch: the network stands in the file twice, its classifier is never trained."""
    network, target = seeded(models.resnet18), seeded(models.resnet18, 2)
    backbone = without_fc(seeded(models.resnet18))
    projector, copied_projector = (seeded(lambda: mlp([512, 64, 16], norm=True), seed) for seed in (1, 2))
    predictor = seeded(lambda: mlp([16, 64, 16], norm=True), 3)
    state = prefixed(network, "net.") | prefixed(network, "online_encoder.net.")
    state |= prefixed(projector, "online_encoder.projector.") | prefixed(predictor, "online_predictor.")
    state |= prefixed(target, "target_encoder.net.") | prefixed(copied_projector, "target_encoder.projector.")
    layout = "BYOL checkpoint of byol-pytorch"
    return Case(
        "resnet18-imagenet",
        state,
        layout,
        chained(backbone, projector, predictor),
        (
            "net.*, 122 keys (the same network once more)",
            "online_encoder.*, 2 keys (the network's own classifier, which BYOL does not train)",
            f"target_encoder.*, 131 keys ({MOMENTUM})",
        ),
        activations(layout, "projection", "prediction"),
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
        chained(reference, projection),
        ("prototypes.* (prototypes, with which the loss compares)",),
        activations("SwAV checkpoint", "projection"),
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
        chained(network, projector),
        ("bn.*, 3 keys (the norm before the loss)", "epoch (no weights)", "optimizer (the state of its training)"),
        activations("Barlow Twins checkpoint", "projection"),
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
        chained(network, projector),
        ("epoch (no weights)", "optimizer (the state of its training)"),
        activations("VICReg checkpoint", "projection"),
    )


CASES = (lightly_byol, lightly_swav, lightly_dino, solo_learn, simsiam, byol_pytorch, swav, barlow_twins, vicreg)
