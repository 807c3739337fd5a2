"""Schedules by their formulas; LARS against a loop written from the paper and against lightly's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from mi_core.checks import ConfigError
from mi_core.training.optimizers import LARS, OptimizerParameters


@pytest.mark.parametrize(("schedule", "end"), [("constant", 2.0), ("cosine", 0.0), ("step", 0.02)])
def test_learning_rate(schedule: str, end: float) -> None:
    optimizer = OptimizerParameters(learning_rate=2.0, schedule=schedule, warmup=0.1)
    assert [optimizer.rate(step, 100) for step in (0, 4, 9)] == pytest.approx([0.2, 1.0, 2.0])
    middle = {"constant": 2.0, "cosine": 1 + math.cos(math.pi * 45 / 90), "step": 2.0}[schedule]
    assert optimizer.rate(55, 100) == pytest.approx(middle)
    assert optimizer.rate(99, 100) == pytest.approx(end, abs=2e-3)


def test_milestones() -> None:
    optimizer = OptimizerParameters(learning_rate=1.0, schedule="step", warmup=0, milestones=(0.5, 0.75))
    assert [optimizer.rate(step, 8) for step in range(8)] == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])
    with pytest.raises(ConfigError, match="rising shares"):
        OptimizerParameters(milestones=(0.8, 0.6))


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))


def test_lars_equals_the_paper() -> None:
    """Algorithm 1: v <- m v + g (grad + b w), w <- w - v, with local rate eta |w| / |grad + b w|."""
    module, plain = layers(), layers()
    optimizer = LARS(module.parameters(), lr=0.5, weight_decay=0.1, momentum=0.8, trust=0.02)
    momenta = [torch.zeros_like(weight) for weight in plain.parameters()]
    for step in range(3):
        inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        module(inputs).square().sum().backward()
        optimizer.step()
        plain.zero_grad()
        plain(inputs).square().sum().backward()
        with torch.no_grad():
            for weight, momentum in zip(plain.parameters(), momenta, strict=True):
                gradient = weight.grad
                assert gradient is not None
                if weight.ndim > 1:
                    gradient = gradient + 0.1 * weight
                    gradient = gradient * 0.02 * weight.square().sum().sqrt() / gradient.square().sum().sqrt()
                momentum.mul_(0.8).add_(gradient)
                weight.sub_(0.5 * momentum)
    for own, expected in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own, expected)


def test_lars_moves_a_layer_of_zeros() -> None:
    weight = nn.Parameter(torch.zeros(2, 2))
    optimizer = LARS([weight], lr=1.0)
    weight.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.equal(weight.detach(), -torch.ones(2, 2))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam), ("sgd", torch.optim.SGD), ("lars", LARS)],
)
def test_only_what_learns_is_optimised(name: str, kind: type) -> None:
    module = layers()
    module[0].requires_grad_(False)
    optimizer = OptimizerParameters(name=name, learning_rate=0.3, weight_decay=0.2).build(module)
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"], len(group["params"])) == (0.3, 0.2, 2)
    module.requires_grad_(False)
    with pytest.raises(ConfigError, match="no weight of the encoder learns"):
        OptimizerParameters().build(module)
