"""Targeted gradient descent on a linear classifier, whose best step is known, and within its ball."""

from __future__ import annotations

import pytest
import torch

from mi_core.checks import ConfigError, ShapeError
from mi_core.features.adversarial import targeted_pgd


def test_it_reaches_the_corner_that_a_linear_classifier_wants() -> None:
    weights = torch.randn(2, 27, generator=torch.Generator().manual_seed(0))
    images = 0.5 + 0.2 * torch.rand(5, 3, 3, 3, generator=torch.Generator().manual_seed(1))
    wanted = torch.tensor([0, 1, 0, 1, 1])
    found = targeted_pgd(lambda x: x.flatten(1) @ weights.T, images, wanted, epsilon=0.05, steps=10)
    signs = (weights[wanted] - weights[1 - wanted]).sign().reshape(images.shape)
    torch.testing.assert_close(found, images + 0.05 * signs)
    assert not found.requires_grad


def test_it_stays_in_the_ball_and_in_the_range() -> None:
    images = torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(2)).round()
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    wanted = torch.arange(8) % 3
    found = targeted_pgd(network, images, wanted, epsilon=0.1, steps=7)
    assert (found - images).abs().max() <= 0.1 + 1e-6
    assert found.min() >= 0
    assert found.max() <= 1
    loss = torch.nn.functional.cross_entropy
    assert loss(network(found), wanted) < loss(network(images), wanted)
    torch.testing.assert_close(targeted_pgd(network, images[3:4], wanted[3:4], epsilon=0.1, steps=7), found[3:4])


def test_mistakes() -> None:
    images = torch.rand(2, 1, 2, 2)
    with pytest.raises(ConfigError, match="epsilon = 0"):
        targeted_pgd(torch.nn.Flatten(), images, torch.zeros(2, dtype=torch.int64), epsilon=0, steps=1)
    with pytest.raises(ShapeError, match="classes"):
        targeted_pgd(torch.nn.Flatten(), images, torch.zeros(3, dtype=torch.int64), epsilon=0.1, steps=1)
