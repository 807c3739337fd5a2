"""Two workers with half a batch each equal one with the whole: loss, gradients, queue, momentum encoder.

On backbones and heads without batch norm, whose statistics would differ between the whole and its halves.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

from mi_core.encoders import build_backbone
from mi_core.objectives import OBJECTIVES
from mi_core.objectives.base import Objective

HEAD = {"projection_hidden": 7, "projection_width": 4}
TEXT = {"projection_width": 4, "text_width": 8, "text_heads": 2, "text_layers": 1, "text_length": 6}
SETTINGS: dict[str, dict[str, Any]] = {
    "simclr": {**HEAD, "projection_batch_norm": False},
    "moco-v1": {"queue": 12, "projection_width": 4, "momentum": 0.5},
    "moco-v2": {"queue": 12, "projection_width": 4, "momentum": 0.5},
    "moco-v3": {**HEAD, "momentum": 0.5},
    "vicreg": HEAD,
    "siglip": TEXT,
    "clip": TEXT,
    "dino": {**HEAD, "prototypes": 5, "momentum": 0.5},
    "supervised": {"classes": 3},
    "talos": {**HEAD, "projection_batch_norm": False, "values": 3},
}
PARAMETERS: dict[str, Any] = {name: OBJECTIVES[name].Parameters(**settings) for name, settings in SETTINGS.items()}


def network(name: str) -> Objective:
    torch.manual_seed(3)
    made: Any = OBJECTIVES[name]
    module: Objective = made(build_backbone("vit-tiny/4", 3, 8), PARAMETERS[name])
    for head in (
        getattr(module, part) for part in ("projection", "prediction", "key_projection") if hasattr(module, part)
    ):
        for index, layer in enumerate(head if isinstance(head, nn.Sequential) else ()):
            if isinstance(layer, nn.BatchNorm1d):
                head[index] = nn.Identity()
    return module


def batch(name: str, step: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    views = torch.randn(6, OBJECTIVES[name].views, 3, 8, 8, generator=torch.Generator().manual_seed(step))
    captions = [f"n {row + step}" for row in range(6)]
    return views, OBJECTIVES[name].encode_targets(PARAMETERS[name], [0, 1, 2, 0, 1, 2], captions)


def train(name: str, module: Objective, rank: int = 0, workers: int = 1) -> dict[str, torch.Tensor]:
    """Two steps; the losses, the last gradients and everything the module holds."""
    waiting = module.alternates
    trained = nn.parallel.DistributedDataParallel(module, find_unused_parameters=waiting) if workers > 1 else module
    optimizer = torch.optim.SGD([weight for weight in module.parameters() if weight.requires_grad], lr=0.1)
    found: dict[str, torch.Tensor] = {}
    for step in range(2):
        module.start_epoch(step)
        views, targets = batch(name, step)
        loss = trained(views[rank::workers], None if targets is None else targets[rank::workers])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        module.after_step((step + 1) / 2)
        mean = loss.detach().clone()
        if workers > 1:
            torch.distributed.all_reduce(mean)
        found[f"loss {step}"] = mean / workers
    found |= {f"gradient {key}": value.grad for key, value in module.named_parameters() if value.grad is not None}
    return found | {key: value.clone() for key, value in module.state_dict().items()}


def worker(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.save({name: train(name, network(name), rank, 2) for name in PARAMETERS}, Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, torch.Tensor]]]:
    folder = tmp_path_factory.mktemp("workers")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(worker, args=(port, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", PARAMETERS)
def test_two_workers_equal_one(name: str, found: list[dict[str, dict[str, torch.Tensor]]]) -> None:
    whole = train(name, network(name))
    for rank in range(2):
        assert found[rank][name].keys() == whole.keys()
        for key, expected in whole.items():
            pair = [found[rank][name][key], expected]
            if key == "queue":  # the same keys; two workers put them in in another order
                pair = [keys[keys[:, 0].argsort()] for keys in pair]
            torch.testing.assert_close(*pair, rtol=2e-4, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")
