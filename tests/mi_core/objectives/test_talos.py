"""Talos: whose turn it is, and equation 8 term by term."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from mi_core.checks import ConfigError
from mi_core.encoders import build_backbone
from mi_core.objectives.simclr import SimCLR
from mi_core.objectives.talos import Talos, TalosParameters

SMALL: dict[str, Any] = {"temperature": 0.3, "projection_hidden": 16, "projection_width": 8}
VALUES = torch.tensor([0, 1, 2, 1, 0, 2])


def module(**settings: Any) -> Talos:
    torch.manual_seed(0)
    return Talos(build_backbone("conv4", 1, 8), TalosParameters(**SMALL, values=3, **settings)).train()


def views() -> torch.Tensor:
    return torch.rand(6, 2, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def gradients(part: torch.nn.Module) -> list[torch.Tensor]:
    return [weight.grad.clone() for weight in part.parameters() if weight.grad is not None]


@pytest.mark.parametrize("factor", [0.0, 0.7, 3.0])
def test_in_its_turn_the_encoder_follows_equation_8_and_the_projection_the_contrastive_loss(factor: float) -> None:
    ours = module(factor=factor)
    ours.start_epoch(1)
    ours(views(), VALUES).backward()
    plain = copy.deepcopy(ours)
    plain.requires_grad_(True)
    images, weights = views().transpose(0, 1).flatten(0, 1), list(plain.backbone.parameters())
    contrast = SimCLR.contrast(plain, plain.backbone(images))
    first = torch.autograd.grad(contrast, [*weights, *plain.projection.parameters()], retain_graph=True)
    hidden = F.cross_entropy(plain.adversary(plain.backbone(images)), torch.cat([VALUES, VALUES]))
    second = torch.autograd.grad(hidden, weights)
    expected = [one - factor * two for one, two in zip(first[: len(weights)], second, strict=True)]
    for ours_, theirs in zip(gradients(ours.backbone), expected, strict=True):
        torch.testing.assert_close(ours_, theirs, atol=1e-5, rtol=1e-4)
    for ours_, theirs in zip(gradients(ours.projection), first[len(weights) :], strict=True):
        torch.testing.assert_close(ours_, theirs, atol=1e-5, rtol=1e-4)
    assert not gradients(ours.adversary)


def test_in_its_turn_the_adversary_learns_alone() -> None:
    ours = module()
    before = copy.deepcopy(ours.state_dict())
    ours.start_epoch(0)
    loss = ours.train()(views(), VALUES)
    loss.backward()
    assert not gradients(ours.backbone)
    assert not gradients(ours.projection)
    assert gradients(ours.adversary)
    for name, value in ours.state_dict().items():
        assert torch.equal(value, before[name]), name  # batch statistics among them
    with torch.no_grad():
        told = ours.adversary(ours.backbone(views()[:, 0])), ours.adversary(ours.backbone(views()[:, 1]))
    torch.testing.assert_close(loss.detach(), sum(F.cross_entropy(one, VALUES) for one in told) / 2)


def test_who_begins_is_the_variant() -> None:
    turns = {}
    for variant in ("paper", "released"):
        ours = module(variant=variant)
        turns[variant] = []
        for epoch in range(4):
            ours.start_epoch(epoch)
            turns[variant].append(ours.censoring)
    assert turns == {"paper": [False, True, False, True], "released": [True, False, True, False]}


def test_bad_values_are_refused() -> None:
    parameters = TalosParameters(values=2)
    for wrong in (None, 2, -1):
        with pytest.raises(ConfigError, match=f"attribute {wrong} of training image 1"):
            Talos.encode_targets(parameters, [0, wrong], ["", ""])
    with pytest.raises(ConfigError, match="factor"):
        TalosParameters(factor=-1.0)
