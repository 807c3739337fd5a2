"""Folding must not change what an encoder answers, and must not touch what it may not join."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from mi_core.encoders import build_backbone
from mi_core.encoders.batch_norm import fold_batch_norm, for_queries, split_batch_norm
from mi_core.encoders.checkpoint import Encoder, channelwise, seeded

NETWORKS = {
    "conv4": 4,
    "resnet8": 9,
    "resnet18": 20,
    "resnet50-imagenet": 53,
    "vgg11-bn": 8,
    "mobilenetv2": 52,
    "vit-tiny/8": 0,
}


def lively(module: nn.Module) -> nn.Module:
    """With statistics, scales and shifts that are none of the defaults."""
    generator = torch.Generator().manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            for tensor, low, high in (
                (part.running_mean, -0.5, 0.5),
                (part.running_var, 0.5, 2.0),
                (part.weight, 0.5, 1.5),
                (part.bias, -0.5, 0.5),
            ):
                tensor.data.uniform_(low, high, generator=generator)
    return module.eval()


@pytest.mark.parametrize(("name", "folded"), NETWORKS.items())
@torch.no_grad()
def test_a_folded_network_answers_the_same(name: str, folded: int) -> None:
    network = lively(seeded(0, lambda: build_backbone(name, 3, 32)))
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    before = network(images)
    assert fold_batch_norm(network) == folded
    after = network(images)
    assert torch.allclose(before, after, rtol=1e-4, atol=1e-4 * float(before.abs().max()))
    assert fold_batch_norm(network) == 0
    if folded:
        assert not any(isinstance(part, nn.BatchNorm2d) for part in network.modules())


class Branching(nn.Module):
    """The convolution's result is also read beside its batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.conv(images)
        return self.norm(found) + found


class Shared(Branching):
    """One convolution, called twice, with a batch norm after the first call only."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.conv(self.norm(self.conv(images)))
        return found


class Branch(Branching):
    """Cannot be traced."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(self.conv(images)) if images.sum() > 0 else images
        return found


class Unpaired(Branching):
    """The batch norm stands before the convolution."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.conv(self.norm(images))
        return found


@pytest.mark.parametrize("kind", [Branching, Shared, Branch, Unpaired])
def test_what_cannot_be_joined_stays(kind: type[nn.Module]) -> None:
    network = lively(seeded(0, kind))
    whole = copy.deepcopy(network.state_dict())
    assert fold_batch_norm(network) == 0
    assert all(torch.equal(tensor, whole[name]) for name, tensor in network.state_dict().items())


def test_batch_norm_that_uses_the_batch_stays() -> None:
    untracked = nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3, track_running_stats=False)).eval()
    assert fold_batch_norm(untracked) == 0
    training = nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)).train()
    assert fold_batch_norm(training) == 0


@torch.no_grad()
def test_an_encoder_for_queries_keeps_its_outputs() -> None:
    backbone = lively(seeded(0, lambda: build_backbone("resnet18", 3, 32)))
    encoder = Encoder(backbone, {"projection": nn.Linear(512, 8)}, channelwise((0.5,), 3), channelwise((0.5,), 3))
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    before = encoder.eval()(images)
    ready = for_queries(encoder, "cpu")
    after = ready(images)
    assert set(after) == {"backbone", "projection"}
    for name, embedding in before.items():
        assert torch.allclose(embedding, after[name], rtol=1e-4, atol=1e-4)
    assert not any(weights.requires_grad for weights in ready.parameters())


@torch.no_grad()
def test_batch_norm_over_parts_is_folded_like_any_other_so_layers_are_the_same() -> None:
    """The layers of a MoCo encoder are those of a SimCLR shadow of the same architecture."""

    def encoder(splits: int) -> Encoder:
        backbone = split_batch_norm(seeded(0, lambda: build_backbone("resnet18", 3, 32)), splits)
        return Encoder(lively(backbone), {}, channelwise((0.5,), 3), channelwise((0.5,), 3)).eval()

    split, whole = encoder(8), encoder(1)
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))  # 3 are no 8 parts
    before = split(images)["backbone"]
    ready, plain = for_queries(split, "cpu"), for_queries(whole, "cpu")
    assert torch.allclose(ready(images)["backbone"], before, rtol=1e-4, atol=1e-4 * float(before.abs().max()))
    assert torch.equal(ready(images)["backbone"], plain(images)["backbone"])
    assert not any(isinstance(part, nn.BatchNorm2d) for part in ready.modules())
