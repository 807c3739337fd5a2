"""One worker's part of a pre-training run: seeded order, batched views, optimiser steps, resumable state.

The images stay on the device as uint8 and are augmented there in batch. Everything random is a function of
(seed, purpose "train", source, key, epoch, view) or of (seed, epoch), so a run that stops and resumes, and a
run on another number of workers, see the same views in the same order.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mi_core.augmentations.views import Augmentation
from mi_core.checks import ConfigError, NumericError, check_choice, check_range
from mi_core.encoders import build_backbone
from mi_core.encoders.checkpoint import Encoder, seeded
from mi_core.hashing import digest64
from mi_core.objectives import OBJECTIVES
from mi_core.objectives.gather import world
from mi_core.streams import stream_keys


@dataclass(frozen=True)
class OptimizerParameters:
    """AdamW or SGD with linear warm-up and a constant or cosine learning rate.

    ``warmup`` is the share of all steps over which the rate rises from 0.
    """

    name: str = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    momentum: float = 0.9
    schedule: str = "constant"
    warmup: float = 0.03

    def __post_init__(self) -> None:
        check_choice("optimizer.name", self.name, ("adamw", "sgd"))
        check_choice("optimizer.schedule", self.schedule, ("constant", "cosine"))
        check_range("optimizer.learning_rate", self.learning_rate, 0, open_low=True)
        check_range("optimizer.weight_decay", self.weight_decay, 0)
        check_range("optimizer.momentum", self.momentum, 0, 1)
        check_range("optimizer.warmup", self.warmup, 0, 1)

    def build(self, module: nn.Module) -> torch.optim.Optimizer:
        """The optimiser over all weights of ``module``, in its fused form."""
        if self.name == "sgd":
            return torch.optim.SGD(
                module.parameters(),
                lr=self.learning_rate,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                fused=True,
            )
        return torch.optim.AdamW(module.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay, fused=True)

    def rate(self, step: int, steps: int) -> float:
        """Learning rate of step ``step`` (from 0) of ``steps``."""
        warm = round(self.warmup * steps)
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


@dataclass(frozen=True)
class PretrainingParameters:
    """How an encoder is trained. Units: epochs over the members, images per global batch, pixels in [0, 1]."""

    backbone: str
    objective: str = "simclr"
    objective_parameters: Any = None
    optimizer: OptimizerParameters = field(default_factory=OptimizerParameters)
    epochs: int = 200
    batch_size: int = 256
    precision: str = "float32"
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    def __post_init__(self) -> None:
        check_choice("objective", self.objective, OBJECTIVES)
        check_choice("precision", self.precision, ("float32", "bfloat16"))
        check_range("epochs", self.epochs, 1)
        check_range("batch_size", self.batch_size, 2)
        if len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise ConfigError(f"mean {self.mean} and std {self.std} need one value per channel, std above 0")


class Pretrainer:
    """Trains one encoder on images that fit the device.

    Args:
        images: (N, C, H, W) uint8, the members, in the same order on every worker.
        names: (source, key) of each of the N images.
        augmentation: the recipe of training views.
        parameters: architecture, objective, optimiser, epochs, global batch size, precision.
        seed: of the weights, the order and the views.
        device: where images and weights live.

    Raises:
        ConfigError: the batch is larger than the data or not divisible by the number of workers.
    """

    def __init__(
        self,
        images: torch.Tensor,
        names: Sequence[tuple[str, str]],
        augmentation: Augmentation,
        parameters: PretrainingParameters,
        *,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.rank, self.workers = world()
        if parameters.batch_size > len(images):
            raise ConfigError(
                f"batch_size = {parameters.batch_size} exceeds the {len(images)} images trained on; lower it"
            )
        if parameters.batch_size % self.workers:
            raise ConfigError(f"batch_size = {parameters.batch_size} is not divisible by {self.workers} workers")
        self.device = torch.device(device)
        self.parameters = parameters
        self.seed = seed
        self.images = images.to(self.device)
        self.streams = _streams(seed, names).to(self.device)
        self.augmentation = augmentation
        channels = images.shape[1]
        self.module = seeded(digest64(seed, "weights"), lambda: _module(parameters, channels))
        self.module.to(self.device, memory_format=torch.channels_last)
        self.mean, self.std = (
            _channelwise(values, channels, self.device) for values in (parameters.mean, parameters.std)
        )
        if self.workers > 1 and self.device.type == "cuda":
            self.module = nn.SyncBatchNorm.convert_sync_batchnorm(self.module)
        self.trained = DistributedDataParallel(self.module) if self.workers > 1 else self.module
        self.optimizer = parameters.optimizer.build(self.module)
        self.epoch = 0
        self.losses: list[float] = []

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps per epoch; an incomplete last batch is left out."""
        return len(self.images) // self.parameters.batch_size

    def train_epoch(self, progress: Callable[[int], None] | None = None) -> float:
        """One pass over the data; returns the mean loss over steps and workers and appends it to ``losses``.

        Raises:
            NumericError: the loss became NaN or infinite.
        """
        self.trained.train()
        total = torch.zeros((), device=self.device)
        for index, rows in enumerate(self._batches()):
            self._set_rate(self.epoch * self.steps_per_epoch + index)
            total += self._step(rows)
            if progress is not None:
                progress(index)
        if self.workers > 1:
            dist.all_reduce(total)
        loss = float(total) / (self.steps_per_epoch * self.workers)
        if not math.isfinite(loss):
            raise NumericError(f"the loss of epoch {self.epoch + 1} is {loss}; lower optimizer.learning_rate")
        self.epoch += 1
        self.losses.append(loss)
        return loss

    def _step(self, rows: torch.Tensor) -> torch.Tensor:
        views = self.views(rows, self.epoch)
        enabled = self.parameters.precision == "bfloat16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled):
            loss: torch.Tensor = self.trained(views)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.module.after_step()
        return loss.detach()

    def views(self, rows: torch.Tensor, epoch: int) -> torch.Tensor:
        """Normalised training views (B, V, C, H, W) of some rows in an epoch."""
        images, streams = self.images[rows], self.streams[rows]
        drawn = [
            ((self.augmentation(images, streams, epoch=epoch, view=view) - self.mean) / self.std)
            for view in range(self.module.views)
        ]
        return torch.stack(drawn, dim=1)

    def _batches(self) -> Sequence[torch.Tensor]:
        generator = torch.Generator().manual_seed(digest64(self.seed, "order", self.epoch) % 2**63)
        order = torch.randperm(len(self.images), generator=generator)
        kept = order[: self.steps_per_epoch * self.parameters.batch_size]
        own = kept.reshape(self.steps_per_epoch, -1)[:, self.rank :: self.workers]
        return list(own.to(self.device))

    def _set_rate(self, step: int) -> None:
        rate = self.parameters.optimizer.rate(step, self.parameters.epochs * self.steps_per_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def encoder(self) -> Encoder:
        """The encoder that an audit queries: backbone and projection with the normalisation built in."""
        return Encoder(self.module.backbone, self.module.projection, self.mean, self.std)

    def state_bytes(self) -> bytes:
        """Everything that continuing needs: weights, optimiser, epoch, loss curve (tensors and plain values)."""
        buffer = io.BytesIO()
        state = {
            "module": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": self.epoch,
            "losses": self.losses,
        }
        torch.save(state, buffer)
        return buffer.getvalue()

    def load_state_bytes(self, data: bytes) -> None:
        """Continue from `state_bytes`: the next epoch is the one after the saved state."""
        state = torch.load(io.BytesIO(data), map_location=self.device, weights_only=True)
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch = state["epoch"]
        self.losses = state["losses"]


def audited_encoder(parameters: PretrainingParameters, channels: int) -> Encoder:
    """The encoder of a training run with fresh weights, ready for `checkpoint.load_weights`."""
    module = seeded(0, lambda: _module(parameters, channels))
    mean, std = (_channelwise(values, channels, torch.device("cpu")) for values in (parameters.mean, parameters.std))
    return Encoder(module.backbone, module.projection, mean, std)


def _module(parameters: PretrainingParameters, channels: int) -> nn.Module:
    objective = OBJECTIVES[parameters.objective]
    settings = parameters.objective_parameters or objective.Parameters()
    return objective(build_backbone(parameters.backbone, channels), settings)


def _streams(seed: int, names: Sequence[tuple[str, str]]) -> torch.Tensor:
    by_source: dict[str, list[int]] = {}
    for row, (source, _) in enumerate(names):
        by_source.setdefault(source, []).append(row)
    streams = torch.empty(len(names), dtype=torch.int64)
    for source, rows in by_source.items():
        streams[rows] = stream_keys(seed, "train", source, [names[row][1] for row in rows])
    return streams


def _channelwise(values: tuple[float, ...], channels: int, device: torch.device) -> torch.Tensor:
    if len(values) not in (1, channels):
        raise ConfigError(f"{len(values)} values of mean or std for {channels} channels; give 1 or {channels}")
    return torch.tensor(values, device=device).expand(channels).reshape(1, -1, 1, 1).clone()
