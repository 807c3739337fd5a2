"""NT-Xent against a loop written from the paper, alone and over several workers."""

from __future__ import annotations

import math

import pytest
import torch

from mi_core.checks import ConfigError, ShapeError
from mi_core.objectives.simclr import SimCLRParameters, nt_xent


def loop_nt_xent(first: torch.Tensor, second: torch.Tensor, temperature: float) -> float:
    """Equation 1 of SimCLR, one exponential at a time; views 2k and 2k + 1 are a pair, as in its algorithm 1."""
    views = [row.tolist() for pair in zip(first, second, strict=True) for row in pair]

    def similarity(one: list[float], other: list[float]) -> float:
        dot = sum(x * y for x, y in zip(one, other, strict=True))
        return dot / math.sqrt(sum(x * x for x in one)) / math.sqrt(sum(y * y for y in other))

    total = 0.0
    for i, anchor in enumerate(views):
        partner = i + 1 if i % 2 == 0 else i - 1
        denominator = sum(math.exp(similarity(anchor, views[k]) / temperature) for k in range(len(views)) if k != i)
        total -= math.log(math.exp(similarity(anchor, views[partner]) / temperature) / denominator)
    return total / len(views)


@pytest.mark.parametrize(("batch", "temperature"), [(1, 0.5), (5, 0.5), (8, 0.07)])
def test_nt_xent_equals_the_paper(batch: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(batch)
    first, second = (3 * torch.randn(batch, 6, generator=generator) for _ in range(2))
    assert float(nt_xent(first, second, temperature)) == pytest.approx(
        loop_nt_xent(first, second, temperature), rel=1e-5
    )


def test_nt_xent_rewards_agreement() -> None:
    views = torch.eye(4)
    assert nt_xent(views, views, 0.2) < nt_xent(views, views.roll(1, 0), 0.2)


def test_nt_xent_refuses_bad_input() -> None:
    with pytest.raises(ShapeError, match="second has shape"):
        nt_xent(torch.ones(2, 3), torch.ones(3, 3), 0.5)
    with pytest.raises(ConfigError, match="temperature = 0"):
        nt_xent(torch.ones(2, 3), torch.ones(2, 3), 0)
    with pytest.raises(ConfigError, match="projection_width"):
        SimCLRParameters(projection_width=0)
