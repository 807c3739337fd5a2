"""The one small network and its one fit loop, for attacks: on membership features, or on embeddings.

N samples, F features. Fitting is seeded and touches no global random state; CPU and float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import NumericError, check_choice, check_fields
from mi_core.runtime import denormals_flushed
from mi_core.streams import seeded_generators

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Augment = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
OPTIMIZERS = ("adam", "sgd")
_told: ContextVar[Callable[[int, int], None]] = ContextVar("told", default=lambda done, epochs: None)
_FALLS = 1e-3  # a loss that falls by a smaller share of itself does not fall


@dataclass(frozen=True)
class Training:
    """The settings of fitting a network. Every epoch visits all samples in a new order.

    Args:
        learning_rate: of the optimizer, above 0.
        epochs: passes over the samples.
        batch_size: samples per step; 0: all of them.
        optimizer: ``adam`` or ``sgd`` (without momentum).
        weight_decay: as the optimizer's L2 penalty.
        epsilon: of Adam.
        clip: longest gradient (2-norm over all weights); None: any.
        halve_every: epochs after which the learning rate is halved, again and again; None: never.
        patience: fitting ends once the mean loss of an epoch has not fallen by a thousandth of its lowest value for so
            many epochs; None: it takes all epochs.

    Raises:
        ConfigError: a value is out of range.
    """

    learning_rate: float
    epochs: int
    batch_size: int
    optimizer: str = "adam"
    weight_decay: float = 0.0
    epsilon: float = 1e-8
    clip: float | None = None
    halve_every: int | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, "learning_rate", low=0, open_low=True)
        check_fields(self, "epochs", "patience", low=1)
        check_fields(self, "batch_size", "weight_decay", low=0)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)


def layers(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between them: ``layers(45, 256, 256, 1)`` has two hidden layers of 256."""
    modules: list[nn.Module] = []
    for before, after in pairwise(widths):
        modules += [nn.Linear(before, after), activation()]
    return nn.Sequential(*modules[:-1])


@contextmanager
def epochs_told_to(function: Callable[[int, int], None]) -> Iterator[None]:
    """Call a function after every epoch of the fits inside, with the epochs done and those in all."""
    before = _told.set(function)
    try:
        yield
    finally:
        _told.reset(before)


def fit(
    build: Callable[[], nn.Module],
    inputs: np.ndarray,
    targets: np.ndarray,
    training: Training,
    *,
    seed: int,
    loss: Loss = F.binary_cross_entropy_with_logits,
    augment: Augment | None = None,
) -> nn.Module:
    """Train a new network.

    Args:
        build: makes the network, (B, ...) to (B, K); called with torch's generator seeded.
        inputs: (N, ...) float32.
        targets: (N,) bool, or float or int64 for losses that take such.
        training: optimizer and schedule.
        seed: of weights, order, dropout and augmentation.
        loss: outputs (B, K), or (B,) if K is 1, and targets (B,) to a scalar; default: cross-entropy of one logit.
        augment: changes a batch of inputs before the network sees it.

    Raises:
        NumericError: the loss became NaN or infinite.
    """
    generator = torch.Generator().manual_seed(seed)
    data = torch.from_numpy(np.ascontiguousarray(inputs, dtype=np.float32))
    labels = torch.from_numpy(np.asarray(targets))
    labels = labels if labels.dtype == torch.int64 else labels.float()
    with seeded_generators(seed), denormals_flushed():
        network = build().train()
        optimizer = _optimizer(network, training)
        lowest, last = math.inf, 0
        for epoch in range(training.epochs):
            total = torch.zeros(())
            if training.halve_every and epoch and epoch % training.halve_every == 0:
                for group in optimizer.param_groups:
                    group["lr"] /= 2
            for rows in torch.randperm(len(data), generator=generator).split(training.batch_size or len(data)):
                batch = data[rows] if augment is None else augment(data[rows], generator)
                value = loss(network(batch).squeeze(1), labels[rows])
                optimizer.zero_grad(set_to_none=True)
                value.backward()
                if training.clip is not None:
                    nn.utils.clip_grad_norm_(network.parameters(), training.clip)
                optimizer.step()
                total += value.detach()
            if not bool(torch.isfinite(total)):
                raise NumericError(f"the attack's loss is not finite in epoch {epoch + 1}; lower its learning_rate")
            _told.get()(epoch + 1, training.epochs)
            if float(total) < (1 - _FALLS) * lowest:
                lowest, last = float(total), epoch
            elif training.patience is not None and epoch - last >= training.patience:
                break
    return network.eval()


def _optimizer(network: nn.Module, training: Training) -> torch.optim.Optimizer:
    common: dict[str, Any] = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
    if training.optimizer == "sgd":
        return torch.optim.SGD(network.parameters(), **common)
    return torch.optim.Adam(network.parameters(), eps=training.epsilon, fused=True, **common)


@torch.inference_mode()
def predict(network: nn.Module, inputs: np.ndarray, batch_size: int = 8192) -> np.ndarray:
    """The outputs (N, K) float64 of N samples, or (N,) if K is 1."""
    data = torch.from_numpy(np.ascontiguousarray(inputs, dtype=np.float32))
    logits = torch.cat([network(block).squeeze(1) for block in data.split(batch_size)])
    return logits.double().numpy()


def standardisation(values: npt.NDArray[Any], axis: int | None = 0) -> dict[str, npt.NDArray[Any]]:
    """Mean and standard deviation of a reference; where nothing varies the deviation is 1.

    What varies by less than float32 tells apart beside the largest value counts as constant: a posterior that is 1e-200
    on the whole reference may be 1 on the target.
    """
    deviation = np.asarray(values.std(axis=axis, dtype=np.float64))
    mean = np.asarray(values.mean(axis=axis, dtype=np.float64))
    least = np.finfo(np.float32).eps * np.abs(values).max(initial=0.0)
    return {"mean": mean, "deviation": np.where(deviation > least, deviation, 1.0)}


def standardised(values: npt.NDArray[Any], scale: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    """Values minus ``scale["mean"]``, divided by ``scale["deviation"]``."""
    return np.asarray((values - scale["mean"]) / scale["deviation"], dtype=np.float32)


def weights(network: nn.Module) -> dict[str, npt.NDArray[Any]]:
    """The weights of a network as arrays ``network.<name>``, for the state of an attack."""
    return {f"network.{name}": tensor.numpy() for name, tensor in network.state_dict().items()}


def restored(network: nn.Module, state: Mapping[str, npt.NDArray[Any]]) -> nn.Module:
    """A network of the same layout with what `weights` returned, for scoring."""
    prefix = "network."
    own = {key.removeprefix(prefix): torch.from_numpy(state[key]) for key in state if key.startswith(prefix)}
    network.load_state_dict(own)
    return network.eval()
