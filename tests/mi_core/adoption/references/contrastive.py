"""Checkpoints of MoCo v1, v2, v3 and SimCLR as their projects write them."""

from __future__ import annotations

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
    moco_positions,
    numbered,
    prefixed,
    random,
    seeded,
    sgd,
    transformer,
    without_fc,
)


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
    layout = "MoCo v1 checkpoint"
    return Case("resnet18-imagenet", content, layout, {"projection": query}, ignored)


def moco_v2() -> Case:
    def build() -> nn.Module:
        network = models.resnet18(num_classes=16)
        network.fc = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 16))
        return network

    query, key = seeded(build), seeded(build, 2)
    state = prefixed(query, "module.encoder_q.") | prefixed(key, "module.encoder_k.") | random(queue=(16, 64))
    state["module.queue"] = state.pop("queue")
    assumed = activations("MoCo v2 checkpoint", "projection")
    backbone = without_fc(seeded(build))
    return Case(
        "resnet18-imagenet",
        {"state_dict": state},
        "MoCo v2 checkpoint",
        {"projection": query, "backbone": backbone},
        (f"encoder_k.*, 124 keys ({MOMENTUM})", "queue (the queue of negatives)"),
        assumed,
    )


def moco_demo() -> Case:
    """The CIFAR demo, EncoderMI's target: numbered layers, no max-pooling, then flatten and a linear layer at 9."""
    query, key = seeded(cifar_resnet), seeded(cifar_resnet, 2)
    first, second = (
        nn.Sequential(*numbered(network, "maxpool", "fc"), nn.Flatten(1), network.fc) for network in (query, key)
    )
    state = prefixed(first, "encoder_q.net.") | prefixed(second, "encoder_k.net.") | random(queue=(16, 8))
    return Case(
        "resnet18",
        {"epoch": 1, "state_dict": state},
        "MoCo CIFAR demo checkpoint with numbered (no max-pooling) names",
        {"projection": query},
        (f"encoder_k.*, 122 keys ({MOMENTUM})", "queue (the queue of negatives)", "epoch (no weights)"),
        (STRIDES,),
    )


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
    expected = {"projection": base, "prediction": nn.Sequential(base, predictor)}
    return Case(
        "resnet18-imagenet",
        {"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}},
        "MoCo v3 checkpoint",
        expected,
        (f"momentum_encoder.*, 130 keys ({MOMENTUM})",),
        activations("MoCo v3 checkpoint", "projection", "prediction"),
    )


def moco_v3_vit() -> Case:
    def build() -> nn.Module:
        network = transformer(num_heads=12)
        network.head = mlp([384, 48, 48, 16], bias=False, norm=True, last_norm=True)
        return network  # type: ignore[no-any-return]

    base, momentum = seeded(build), seeded(build, 2)
    base.pos_embed.data = momentum.pos_embed.data = moco_positions(2, 384)
    predictor = seeded(lambda: mlp([16, 48, 16], bias=False, norm=True, last_norm=True), 3)
    state = (
        prefixed(base, "base_encoder.") | prefixed(momentum, "momentum_encoder.") | prefixed(predictor, "predictor.")
    )
    said = "12 attention heads, as a file with the fixed positions of MoCo v3 has"
    return Case(
        "vit-s/16",
        {"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}},
        "MoCo v3 checkpoint with timm names",
        {"projection": base, "prediction": nn.Sequential(base, predictor)},
        (f"momentum_encoder.*, 166 keys ({MOMENTUM})",),
        (said, *activations("MoCo v3 checkpoint", "projection", "prediction")),
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
        {"backbone": backbone} | chained(backbone, head),
        ("total_ops, total_params, 12 keys (counters of thop)",),
        (*activations(layout, "projection"), STRIDES),
    )


def simclr_sthalles() -> Case:
    network = seeded(cifar_resnet)
    network.fc = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), network.fc)
    layout = "SimCLR checkpoint of sthalles/SimCLR"
    content = {"epoch": 100, "arch": "resnet18", "state_dict": prefixed(network, "backbone."), "optimizer": sgd()}
    ignored = ("epoch, arch (no weights)", "optimizer (the state of its training)")
    return Case(
        "resnet18", content, layout, {"projection": network}, ignored, (*activations(layout, "projection"), STRIDES)
    )


def compiled() -> Case:
    """torch.compile around DistributedDataParallel around the model."""
    network = seeded(cifar_resnet)
    state = prefixed(network, "_orig_mod.module.")
    return Case("resnet18", {"model": state}, "plain state dict", {"logits": network}, (), (STRIDES,))


CASES = (moco_v1, moco_v2, moco_demo, moco_v3_resnet, moco_v3_vit, simclr_leftthomas, simclr_sthalles, compiled)
