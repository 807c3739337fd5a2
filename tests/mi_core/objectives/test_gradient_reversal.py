"""The layer that turns gradients round, and the adversary behind it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mi_core.checks import ConfigError, ShapeError
from mi_core.objectives.gradient_reversal import Adversary, attribute_shares, reverse
from tests.raising import refused


@pytest.mark.parametrize("factor", [0.0, 0.5, 3.0])
def test_values_stay_and_gradients_turn_round(factor: float) -> None:
    before, after = nn.Linear(4, 3), nn.Linear(3, 2)
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(reverse(inputs, factor), inputs, rtol=0, atol=0)
    after(before(inputs)).square().sum().backward()
    plain = [parameter.grad for layer in (before, after) for parameter in layer.parameters()]
    for layer in (before, after):
        layer.zero_grad(set_to_none=True)
    after(reverse(before(inputs), factor)).square().sum().backward()
    for gradient, layer in zip(plain[:2], before.parameters(), strict=True):
        torch.testing.assert_close(layer.grad, -factor * gradient)
    for gradient, layer in zip(plain[2:], after.parameters(), strict=True):
        torch.testing.assert_close(layer.grad, gradient)


def test_a_factor_that_would_not_reverse() -> None:
    for factor in (-1.0, float("nan")):
        refused(ConfigError, "factor", reverse, torch.ones(1), factor)


def test_the_adversary_has_two_hidden_passes_of_64() -> None:
    adversary = Adversary(10, 5)
    shapes = [tuple(parameter.shape) for parameter in adversary.parameters() if parameter.ndim == 2]
    assert shapes == [(64, 10), (64, 64), (5, 64)]
    inputs = torch.randn(200, 10)
    assert (adversary(inputs) < 0).any()
    assert (Adversary(10, 5, "released")(inputs) >= 0).all()
    refused(ConfigError, "variant", Adversary, 10, 5, "draft")
    refused(ConfigError, "values of the attribute", Adversary, 10, 1)


def test_shares_of_values() -> None:
    assert attribute_shares(torch.tensor([0, 1, 1, 2]), 4).tolist() == [0.25, 0.5, 0.25]
    for values in ([0, 2], [0, 0], [-1, 0, 1], []):
        with pytest.raises(ConfigError, match="number at least two from 0 on"):
            attribute_shares(torch.tensor(values, dtype=torch.int64), len(values))
    refused(ShapeError, "attribute of the training images", attribute_shares, torch.tensor([0, 1]), 3)
