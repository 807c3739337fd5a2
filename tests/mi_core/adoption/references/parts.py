"""Parts of which the references are built, and what a case says."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torchvision import models

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


def chained(backbone: nn.Module, projection: nn.Module, prediction: nn.Module | None = None) -> dict[str, nn.Module]:
    """Outputs of a backbone with one or two heads behind it."""
    outputs = {"projection": nn.Sequential(backbone, projection)}
    if prediction is not None:
        outputs["prediction"] = nn.Sequential(backbone, projection, prediction)
    return outputs


def activations(layout: str, *heads: str, activation: str = "relu") -> tuple[str, ...]:
    """Sentences that say which activation was assumed in each head."""
    return tuple(f"activation {activation} in the {head}, as the code behind a {layout} has it" for head in heads)


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
    expected: Mapping[str, Callable[[torch.Tensor], torch.Tensor]]
    ignored: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    activations: dict[str, str] = field(default_factory=dict)
    side: int = 32


MOMENTUM = "a momentum copy, which is not what is released"
STRIDES = "strides and pooling of the first layers as resnet18 has them"
