"""NT-Xent against a loop written from the paper, alone and over several workers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from mi_core.checks import ConfigError, ShapeError
from mi_core.objectives.clip import image_text_info_nce
from mi_core.objectives.moco import in_batch_info_nce, queue_info_nce
from mi_core.objectives.simclr import SimCLRParameters, nt_xent
from tests.raising import refused


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


def queue(first: torch.Tensor, second: torch.Tensor, temperature: float) -> torch.Tensor:
    return queue_info_nce(first[:32], second[:32], second[32:], temperature)


def image_text(first: torch.Tensor, second: torch.Tensor, temperature: float) -> torch.Tensor:
    return image_text_info_nce(first, second, torch.tensor(1 / temperature))


def test_nt_xent_rewards_agreement() -> None:
    views = torch.eye(4)
    assert nt_xent(views, views, 0.2) < nt_xent(views, views.roll(1, 0), 0.2)


def test_nt_xent_refuses_bad_input() -> None:
    refused(ShapeError, "second has shape", nt_xent, torch.ones(2, 3), torch.ones(3, 3), 0.5)
    refused(ConfigError, "temperature = 0", nt_xent, torch.ones(2, 3), torch.ones(2, 3), 0)
    refused(ConfigError, "projection_width", SimCLRParameters, projection_width=0)


@pytest.mark.parametrize("loss", [nt_xent, in_batch_info_nce, image_text, queue])
def test_losses_are_float32_under_autocast(loss: Callable[..., torch.Tensor]) -> None:
    """Products in bfloat16, divided by a small temperature, would move the loss in the second digit."""
    generator = torch.Generator().manual_seed(0)
    first = torch.nn.functional.normalize(torch.randn(64, 32, generator=generator), dim=1)
    second = torch.nn.functional.normalize(first + 0.1 * torch.randn(64, 32, generator=generator), dim=1)
    exact = loss(first, second, 0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert loss(first, second, 0.05).item() == pytest.approx(exact.item(), rel=1e-6)
    rough = loss(first.bfloat16(), second.bfloat16(), 0.05)
    assert rough.dtype == torch.float32
    assert rough.item() != pytest.approx(exact.item(), rel=1e-4)  # the comparison can fail
