"""Checkpoints as the original projects write them, built here by hand, give the embeddings of what they hold."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import nn
from torchvision import models

from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import fingerprint, weights_bytes
from mi_core.encoders.foreign import Adopted, adopt, read_state, rebuild
from mi_core.encoders.layouts import head_module, unwrap

IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
MEAN, STD = (torch.tensor(values).reshape(1, 3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


SHAPE: Any = {"channels": 3, "image_size": 32}


def seeded(build: Callable[[], nn.Module], seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    module = build()
    for layer in module.modules():  # statistics as after some training, so that a swap would show
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            nn.init.normal_(layer.running_mean, std=0.1)
            nn.init.uniform_(layer.running_var, 0.5, 2)
    return module.eval()


def cifar_resnet() -> nn.Module:
    network = models.resnet18(num_classes=16)
    network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return network


def saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def prefixed(module: nn.Module, prefix: str) -> dict[str, torch.Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in module.state_dict().items()}


def official(query: nn.Module, key: nn.Module, names: tuple[str, str], **others: torch.Tensor) -> bytes:
    """``main_moco.py`` saves this, with the state of its optimizer and of DistributedDataParallel."""
    state = prefixed(query, f"module.{names[0]}.") | prefixed(key, f"module.{names[1]}.")
    optimizer = torch.optim.SGD(query.parameters(), lr=0.1).state_dict()
    return saved({"epoch": 200, "arch": "resnet", "state_dict": state | others, "optimizer": optimizer})


def taken(load: str, data: bytes, **settings: Any) -> Adopted:
    adopted = adopt(load, data, channels=3, image_size=32, **settings)
    again = rebuild(
        load, weights_bytes(adopted.encoder), adopted.preprocessing, channels=3, image_size=32, mark=adopted.fingerprint
    )
    assert fingerprint(again) == adopted.fingerprint
    assert again.outputs == adopted.encoder.outputs
    assert not adopted.encoder.training
    return adopted


@torch.no_grad()
def embeddings(adopted: Adopted) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = adopted.encoder(IMAGES)
    return found


NORMALISED = (IMAGES - MEAN) / STD


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_moco_v1_and_v2(version: str) -> None:
    def build() -> nn.Module:
        network = models.resnet50(num_classes=16)
        if version == "v2":
            network.fc = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), network.fc)
        return network

    query, key = seeded(build), seeded(build, 2)
    queue = {"module.queue": torch.randn(16, 64), "module.queue_ptr": torch.zeros(1, dtype=torch.int64)}
    adopted = taken("checkpoint:resnet50-imagenet", official(query, key, ("encoder_q", "encoder_k"), **queue))
    assert adopted.layout == f"MoCo {version} checkpoint"
    with torch.no_grad():
        torch.testing.assert_close(embeddings(adopted)["projection"], query(NORMALISED))
        query.fc = nn.Identity()
        torch.testing.assert_close(embeddings(adopted)["backbone"], query(NORMALISED))


def mlp(widths: list[int], *, last_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(pairwise(widths)):
        layers.append(nn.Linear(before, after, bias=False))
        if index < len(widths) - 2:
            layers += [nn.BatchNorm1d(after), nn.ReLU(inplace=True)]
        elif last_norm:
            layers.append(nn.BatchNorm1d(after, affine=False))
    return nn.Sequential(*layers)


def test_moco_v3_resnet() -> None:
    def build() -> nn.Module:
        network = models.resnet50()
        network.fc = mlp([2048, 64, 24], last_norm=True)
        return network

    base, momentum = seeded(build), seeded(build, 2)
    predictor = seeded(lambda: mlp([24, 64, 24], last_norm=False), 3)
    data = official(base, momentum, ("base_encoder", "momentum_encoder"), **prefixed(predictor, "module.predictor."))
    adopted = taken("checkpoint:resnet50-imagenet", data)
    assert adopted.layout == "MoCo v3 checkpoint"
    assert adopted.encoder.outputs == ("backbone", "projection", "prediction")
    with torch.no_grad():
        torch.testing.assert_close(embeddings(adopted)["projection"], base(NORMALISED))
        torch.testing.assert_close(embeddings(adopted)["prediction"], predictor(base(NORMALISED)))


def test_moco_v3_vit() -> None:
    timm = pytest.importorskip("timm")

    def build() -> nn.Module:
        network: nn.Module = timm.create_model(
            "vit_small_patch16_224", num_classes=0, num_heads=12, embed_dim=384, img_size=32
        )
        network.head = mlp([384, 48, 48, 16], last_norm=True)
        return network

    base, momentum = seeded(build), seeded(build, 2)
    predictor = seeded(lambda: mlp([16, 48, 16], last_norm=True), 3)
    data = official(base, momentum, ("base_encoder", "momentum_encoder"), **prefixed(predictor, "module.predictor."))
    adopted = taken("checkpoint:vit-s/16", data)
    assert adopted.layout == "MoCo v3 checkpoint with timm names"
    with torch.no_grad():
        expected = predictor(base(NORMALISED))
    torch.testing.assert_close(embeddings(adopted)["prediction"], expected, rtol=1e-3, atol=1e-4)


def test_moco_cifar_demo() -> None:
    """EncoderMI's target: numbered layers, no max-pooling, then flatten and a linear layer at number 9."""
    network = seeded(cifar_resnet)
    children = [child for name, child in network.named_children() if name not in ("maxpool", "fc")]
    numbered = nn.Sequential(*children, nn.Flatten(1), network.fc).eval()
    state = prefixed(numbered, "encoder_q.net.") | prefixed(numbered, "encoder_k.net.") | {"queue": torch.randn(16, 8)}
    adopted = taken("checkpoint:resnet18", saved({"epoch": 1, "state_dict": state}))
    assert adopted.layout == "MoCo CIFAR demo checkpoint with numbered (no max-pooling) names"
    with torch.no_grad():
        torch.testing.assert_close(embeddings(adopted)["projection"], network(NORMALISED))


def test_simclr_with_a_named_backbone() -> None:
    """sthalles/SimCLR, on which ContrastiveLeaks builds: ``backbone.*`` with the head at ``backbone.fc``."""
    network = seeded(cifar_resnet)
    network.fc = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), network.fc)
    adopted = taken("checkpoint:resnet18", saved({"state_dict": prefixed(network, "backbone.")}))
    assert adopted.layout == "backbone.* state dict"
    with torch.no_grad():
        torch.testing.assert_close(embeddings(adopted)["projection"], network(NORMALISED))


@pytest.mark.parametrize(("prefix", "head"), [("encoder.", "projector."), ("backbone.", "projection_head.layers.")])
def test_simclr_with_a_head_of_its_own(prefix: str, head: str) -> None:
    network = seeded(cifar_resnet)
    network.fc = nn.Identity()
    layers = seeded(
        lambda: nn.Sequential(nn.Linear(512, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))
    )
    data = save(prefixed(network, prefix) | prefixed(layers, head))
    adopted = taken("checkpoint:resnet18", data)
    assert adopted.layout == f"{prefix}* state dict"
    with torch.no_grad():
        torch.testing.assert_close(embeddings(adopted)["projection"], layers(network(NORMALISED)))


def test_simclr_with_numbered_layers() -> None:
    network = seeded(cifar_resnet)
    children = [child for name, child in network.named_children() if name not in ("maxpool", "fc")]
    adopted = taken("checkpoint:resnet18", saved(prefixed(nn.Sequential(*children), "f.")))
    assert adopted.encoder.outputs == ("backbone",)
    network.fc = nn.Identity()
    with torch.no_grad():
        torch.testing.assert_close(embeddings(adopted)["backbone"], network(NORMALISED))


def test_torchvision_names_and_own_checkpoints() -> None:
    network = seeded(models.mobilenet_v2)
    adopted = taken("checkpoint:mobilenetv2-imagenet", saved(network.state_dict()))
    assert adopted.layout == "plain state dict"
    with torch.no_grad():
        torch.testing.assert_close(embeddings(adopted)["logits"], network(NORMALISED))
    ours = adopt(
        "checkpoint:resnet18", None, channels=3, image_size=32, fresh=0, preprocessing={"mean": (0.1,), "std": (0.3,)}
    )
    again = taken("checkpoint:resnet18", weights_bytes(ours.encoder))
    assert again.fingerprint == ours.fingerprint  # the normalisation of an own checkpoint comes with it
    assert again.preprocessing.mean == pytest.approx((0.1, 0.1, 0.1))
    torch.testing.assert_close(embeddings(again)["backbone"], embeddings(ours)["backbone"])


def test_what_does_not_fit_is_said() -> None:
    network = seeded(cifar_resnet)
    state = prefixed(network, "module.encoder_q.")
    state["module.encoder_q.bottleneck.weight"] = state.pop("module.encoder_q.conv1.weight")
    message = (
        r"recognised: MoCo v1 checkpoint; missing \['conv1.weight'\] \(1\), "
        r"unexpected \['encoder_q.bottleneck.weight'\] \(1\)"
    )
    with pytest.raises(ConfigError, match=message):
        adopt("checkpoint:resnet18", saved({"state_dict": state}), channels=3, image_size=32)
    with pytest.raises(ConfigError, match=r"wrong shape \['conv1.weight \(64, 3, 3, 3\) instead of \(64, 3, 7, 7\)'\]"):
        adopt("checkpoint:resnet18-imagenet", saved(network.state_dict()), channels=3, image_size=32)
    with pytest.raises(ConfigError, match="neither safetensors nor a PyTorch file of plain tensors"):
        adopt("checkpoint:resnet18", saved(network), channels=3, image_size=32)  # a pickled module is code
    with pytest.raises(ConfigError, match="neither safetensors"):
        read_state(b"nothing")
    with pytest.raises(ConfigError, match="the file holds a list"):
        read_state(saved([1, 2]))
    with pytest.raises(ConfigError, match=r"holds no tensor; its keys are \['epoch'\]"):
        unwrap({"epoch": 3})
    with pytest.raises(ConfigError, match="neither linear nor batch norm"):
        head_module({"0.weight": torch.ones(1, 1, 1, 1)})
    with pytest.raises(ConfigError, match="load = 'keras', allowed: checkpoint, open_clip"):
        adopt("keras:x", None, channels=3, image_size=32)
    with pytest.raises(ConfigError, match="write checkpoint:<name of the architecture>"):
        adopt("checkpoint", None, channels=3, image_size=32, fresh=0)


def test_embeddings_differ_from_fresh_weights() -> None:
    """Fresh weights are a function of the seed; another seed is another encoder."""
    prints = [
        adopt("checkpoint:resnet18", None, channels=3, image_size=32, fresh=seed).fingerprint for seed in (0, 0, 1)
    ]
    assert prints[0] == prints[1] != prints[2]
