"""The one small network and its one fit loop: binary classifiers on membership features.

N samples, F features. Fitting is seeded and touches no global random state; CPU and float32.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import ConfigError, NumericError, check_range


def layers(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them: ``layers(45, 256, 256, 1)`` has two hidden layers of 256."""
    modules: list[nn.Module] = []
    for before, after in pairwise(widths):
        modules += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def fit(
    build: Callable[[], nn.Module],
    inputs: np.ndarray,
    targets: np.ndarray,
    *,
    learning_rate: float,
    epochs: int,
    batch_size: int,
    seed: int,
) -> nn.Module:
    """Train a new network by Adam on the cross-entropy of its one logit.

    Args:
        build: makes the network, (B, ...) to (B, 1); called with torch's generator seeded.
        inputs: (N, ...) float32.
        targets: (N,) bool.
        learning_rate, epochs, batch_size: of Adam; every epoch visits all samples in a new order.
        seed: of weights and order.

    Raises:
        ConfigError: epochs, batch size or learning rate is not positive.
        NumericError: the loss became NaN or infinite.
    """
    check_range("learning_rate", learning_rate, 0, open_low=True)
    if epochs < 1 or batch_size < 1:
        raise ConfigError(f"epochs = {epochs} and batch_size = {batch_size}, allowed: at least 1")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    data = torch.from_numpy(np.ascontiguousarray(inputs, dtype=np.float32))
    labels = torch.from_numpy(np.asarray(targets)).float()
    network.train()
    for epoch in range(epochs):
        total = torch.zeros(())
        for rows in torch.randperm(len(data), generator=generator).split(batch_size):
            loss = F.binary_cross_entropy_with_logits(network(data[rows])[:, 0], labels[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        if not bool(torch.isfinite(total)):
            raise NumericError(f"the attack's loss is not finite in epoch {epoch + 1}; lower its learning_rate")
    return network.eval()


@torch.inference_mode()
def predict(network: nn.Module, inputs: np.ndarray, batch_size: int = 8192) -> np.ndarray:
    """The logits (N,) float64 of N samples."""
    data = torch.from_numpy(np.ascontiguousarray(inputs, dtype=np.float32))
    logits = torch.cat([network(block)[:, 0] for block in data.split(batch_size)])
    return logits.double().numpy()
