"""NT-Xent against a loop written from the paper, alone and over several workers."""

from __future__ import annotations

import math
import socket
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

from mi_core.checks import ConfigError, ShapeError
from mi_core.objectives.simclr import SimCLR, SimCLRParameters, nt_xent


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


class _Linear(nn.Module):
    """A backbone without batch norm, so that a batch may be split without changing anything."""

    width = 5

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        embeddings: torch.Tensor = self.layer(images.flatten(1))
        return embeddings


def _network() -> SimCLR:
    torch.manual_seed(3)
    network = SimCLR(_Linear(), SimCLRParameters(projection_hidden=7, projection_width=4))
    network.projection[1] = nn.Identity()  # batch statistics would differ between whole and split batches
    return network


def _views() -> torch.Tensor:
    return torch.randn(6, 2, 3, 2, 2, generator=torch.Generator().manual_seed(1))


def _worker(rank: int, port: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    network = nn.parallel.DistributedDataParallel(_network())
    loss = network(_views()[rank::2])
    loss.backward()
    mean = loss.detach().clone()
    torch.distributed.all_reduce(mean)
    gradients = [parameter.grad for parameter in network.parameters()]
    torch.save((mean / 2, gradients), Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_workers_equal_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_worker, args=(port, str(tmp_path)), nprocs=2)
    network = _network()
    loss = network(_views())
    loss.backward()
    for rank in range(2):
        mean, gradients = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert float(mean) == pytest.approx(loss.item(), rel=1e-5)
        for own, whole in zip(gradients, network.parameters(), strict=True):
            torch.testing.assert_close(own, whole.grad, rtol=1e-4, atol=1e-6)
