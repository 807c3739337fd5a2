"""BYOL, Barlow Twins and VICReg: losses against loops from the papers, and what learns."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders import build_backbone
from mi_core.objectives.barlow_twins import BarlowTwins, BarlowTwinsParameters, barlow_twins_loss
from mi_core.objectives.byol import BYOL, BYOLParameters, byol_loss
from mi_core.objectives.vicreg import VICReg, VICRegParameters, vicreg_loss
from tests.raising import refused

Rows = list[list[float]]


def drawn(seed: int, batch: int = 7, width: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first = 2 * torch.randn(batch, width, generator=generator) + 1
    return first, first + 0.5 * torch.randn(batch, width, generator=generator)


def columns(views: torch.Tensor) -> Rows:
    return views.T.double().tolist()


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def loop_barlow_twins(first: torch.Tensor, second: torch.Tensor, redundancy: float) -> float:
    """Equations 1 and 2, one correlation at a time."""

    def standardised(column: list[float]) -> list[float]:
        centre = mean(column)
        deviation = math.sqrt(mean([(value - centre) ** 2 for value in column]) + 1e-5)
        return [(value - centre) / deviation for value in column]

    one, other = ([standardised(column) for column in columns(views)] for views in (first, second))
    total = 0.0
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            correlation = mean([x * y for x, y in zip(a, b, strict=True)])
            total += (1 - correlation) ** 2 if i == j else redundancy * correlation**2
    return total


def loop_vicreg(first: torch.Tensor, second: torch.Tensor, weights: tuple[float, float, float]) -> float:
    """Equations 1 to 6, with the two departures of the released code."""

    def covariance(a: list[float], b: list[float]) -> float:
        return sum((x - mean(a)) * (y - mean(b)) for x, y in zip(a, b, strict=True)) / (len(a) - 1)

    squares = [(x - y) ** 2 for x, y in zip(first.flatten().tolist(), second.flatten().tolist(), strict=True)]
    total = weights[0] * mean(squares)
    for views in (columns(first), columns(second)):
        hinges = [max(0.0, 1 - math.sqrt(covariance(column, column) + 1e-4)) for column in views]
        total += weights[1] * mean(hinges) / 2
        between = [
            covariance(a, b) ** 2 for i, a in enumerate(views) for j, b in enumerate(views) if i != j
        ]  # fmt: skip
        total += weights[2] * sum(between) / len(views)
    return total


@pytest.mark.parametrize("seed", [0, 1])
def test_losses_equal_the_papers(seed: int) -> None:
    first, second = drawn(seed)
    assert barlow_twins_loss(first, second, 0.05).item() == pytest.approx(loop_barlow_twins(first, second, 0.05))
    small = 0.3 * first, 0.3 * second  # deviations below 1, which the hinge punishes
    for views in ((first, second), small):
        assert vicreg_loss(*views, 25, 20, 2).item() == pytest.approx(loop_vicreg(*views, (25, 20, 2)), rel=1e-5)
    cosines = [
        sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)
        for a, b in zip(first.tolist(), second.tolist(), strict=True)
    ]
    assert byol_loss(first, second).item() == pytest.approx(2 - 2 * mean(cosines), rel=1e-5)


def test_no_gradient_flows_into_the_target_of_byol() -> None:
    first, second = (views.requires_grad_() for views in drawn(3))
    byol_loss(first, second).backward()
    assert first.grad is not None
    assert second.grad is None


SMALL = {"projection_hidden": 32, "projection_width": 16}


@pytest.mark.parametrize(
    "module",
    [
        lambda backbone: BYOL(backbone, BYOLParameters(momentum=0.9, **SMALL)),
        lambda backbone: BarlowTwins(backbone, BarlowTwinsParameters(**SMALL)),
        lambda backbone: VICReg(backbone, VICRegParameters(**SMALL)),
    ],
    ids=["byol", "barlow-twins", "vicreg"],
)
def test_training_draws_views_together_without_collapse(module: object) -> None:
    """Views of one image come closer than those of others, and the embeddings do not become one point."""
    torch.manual_seed(0)
    network = module(build_backbone("conv4", 1, 8))  # type: ignore[operator]
    images = torch.rand(32, 1, 8, 8)

    def views() -> torch.Tensor:
        return (images[:, None] + 0.05 * torch.randn(32, 2, 1, 8, 8) - 0.5) / 0.3

    optimizer = torch.optim.Adam([weight for weight in network.parameters() if weight.requires_grad], lr=3e-3)
    losses = []
    for step in range(60):
        loss = network(views())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        network.after_step((step + 1) / 60)
        losses.append(loss.item())
    assert mean(losses[-5:]) < 0.7 * mean(losses[:5])
    network.eval()
    with torch.no_grad():
        first, second = (
            nn.functional.normalize(network.projection(network.backbone(views()[:, 0])), dim=1) for _ in "ab"
        )
    cosines = first @ second.T
    assert (cosines.argmax(dim=1) == torch.arange(32)).float().mean() > 0.8
    assert cosines.std() > 0.05


def test_the_target_network_of_byol_follows_and_slows_down() -> None:
    torch.manual_seed(1)
    network = BYOL(build_backbone("conv4", 1, 8), BYOLParameters(momentum=0.5, **SMALL))
    before = network.key_projection[0].weight.clone()
    with torch.no_grad():
        network.projection[0].weight.add_(1.0)
    network.after_step(0.5)  # momentum 1 - 0.5 / 2 = 0.75
    torch.testing.assert_close(network.key_projection[0].weight, before + 0.25)
    network.after_step(1.0)
    torch.testing.assert_close(network.key_projection[0].weight, before + 0.25)
    network.restart()
    torch.testing.assert_close(network.key_projection[0].weight, network.projection[0].weight)
    assert not any(weight.requires_grad for weight in network.key_backbone.parameters())


def test_bad_input_is_refused() -> None:
    first, second = drawn(4)
    for loss in (byol_loss, lambda a, b: barlow_twins_loss(a, b, 1), lambda a, b: vicreg_loss(a, b, 1, 1, 1)):
        refused(ShapeError, "second has shape|targets has shape", loss, first, second[:3])
    refused(ShapeError, "a variance needs 2 images", vicreg_loss, first[:1], second[:1], 1, 1, 1)
    refused(ConfigError, "redundancy = -1", BarlowTwinsParameters, redundancy=-1)
    refused(ConfigError, "variance = -1", VICRegParameters, variance=-1)
    refused(ConfigError, "momentum = 2", BYOLParameters, momentum=2)
