"""VICReg: its loss against a loop from the paper."""

from __future__ import annotations

import math

import pytest
import torch

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


def test_the_module_compares_both_views() -> None:
    network = VICReg(build_backbone("conv4", 1, 8), VICRegParameters(projection_hidden=32, projection_width=16)).eval()
    views = torch.rand(6, 2, 1, 8, 8)
    first, second = (network.projection(network.backbone(views[:, view])) for view in range(2))
    assert network(views).item() == pytest.approx(vicreg_loss(first, second, 25, 25, 1).item())


def test_bad_input_is_refused() -> None:
    first, second = drawn(4)
    refused(ShapeError, "second has shape", vicreg_loss, first, second[:3], 1, 1, 1)
    refused(ShapeError, "a variance needs 2 images", vicreg_loss, first[:1], second[:1], 1, 1, 1)
    refused(ConfigError, "variance = -1", VICRegParameters, variance=-1)
