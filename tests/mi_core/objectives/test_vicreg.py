"""VICReg: its loss against a loop from the paper, and what learns."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders import build_backbone
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
def test_the_loss_equals_the_papers(seed: int) -> None:
    first, second = drawn(seed)
    small = 0.3 * first, 0.3 * second  # deviations below 1, which the hinge punishes
    for views in ((first, second), small):
        assert vicreg_loss(*views, 25, 20, 2).item() == pytest.approx(loop_vicreg(*views, (25, 20, 2)), rel=1e-5)


def test_training_draws_views_together_without_collapse() -> None:
    """Views of one image come closer than those of others, and the embeddings do not become one point."""
    torch.manual_seed(0)
    network = VICReg(build_backbone("conv4", 1, 8), VICRegParameters(projection_hidden=32, projection_width=16))
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


def test_bad_input_is_refused() -> None:
    first, second = drawn(4)
    refused(ShapeError, "second has shape", vicreg_loss, first, second[:3], 1, 1, 1)
    refused(ShapeError, "a variance needs 2 images", vicreg_loss, first[:1], second[:1], 1, 1, 1)
    refused(ConfigError, "variance = -1", VICRegParameters, variance=-1)
