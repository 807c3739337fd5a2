"""One worker's part of a pre-training run: batched views, optimiser steps, resumable state.

Everything random is a function of (seed, purpose "train", source, key, epoch, view) or of (seed, epoch), so a run that
stops and resumes, and a run on another number of workers, see the same views in the same order.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mi_core.augmentations.views import Augmentation
from mi_core.checks import ConfigError, NumericError, check_choice, check_range
from mi_core.encoders import build_backbone
from mi_core.encoders.checkpoint import Encoder, channelwise, seeded
from mi_core.hashing import digest64
from mi_core.objectives import OBJECTIVES
from mi_core.objectives.base import Objective, world
from mi_core.runtime import make_ahead
from mi_core.streams import uniforms
from mi_core.training.data import Batch, TrainingImages
from mi_core.training.optimizers import OptimizerParameters

KEPT = "epoch", "step", "total", "losses"  # what a state holds besides weights and optimiser
VIEW_BYTES = 2**27  # bytes of views that a GPU draws at once, if that is several batches


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
    size: int | None = None  # side of the views, and of what the encoder takes; None: that of the images

    def __post_init__(self) -> None:
        check_choice("objective", self.objective, OBJECTIVES)
        check_choice("precision", self.precision, ("float32", "bfloat16"))
        check_range("epochs", self.epochs, 1)
        check_range("batch_size", self.batch_size, 2)
        if len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise ConfigError(f"mean {self.mean} and std {self.std} need one value per channel, std above 0")


class Pretrainer:
    """Trains one encoder.

    Args:
        data: this worker's batches.
        augmentation: the recipe of training views.
        parameters: architecture, objective, optimiser, epochs, global batch size, precision.
        seed: of the weights.
        device: where the weights live.

    Raises:
        ConfigError: the objective does not fit the data, the batch or the backbone.
    """

    def __init__(
        self,
        data: TrainingImages,
        augmentation: Augmentation,
        parameters: PretrainingParameters,
        *,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.workers = world()[1]
        self.device = torch.device(device)
        self.parameters = parameters
        self.data = data
        self.augmentation = augmentation
        OBJECTIVES[parameters.objective].check(
            objective_parameters(parameters),
            batch_size=parameters.batch_size,
            images=data.count,
            workers=self.workers,
        )
        side = parameters.size or data.size
        self.module = seeded(digest64(seed, "weights"), lambda: _module(parameters, data.channels, side))
        self.module.to(self.device, memory_format=torch.channels_last)
        self.mean, self.std = (
            channelwise(values, data.channels).to(self.device) for values in (parameters.mean, parameters.std)
        )
        if self.workers > 1 and self.device.type == "cuda" and self.module.sync_batch_norm:
            self.module = nn.SyncBatchNorm.convert_sync_batchnorm(self.module)
        self.trained: nn.Module = self.module
        if self.workers > 1:
            self.trained = DistributedDataParallel(self.trained, find_unused_parameters=self.module.alternates)
        self.optimizer = parameters.optimizer.build(self.module)
        self.epoch = 0
        self.step = 0  # of the epoch under way
        self.total = torch.zeros((), device=self.device)  # of the losses of these steps
        self.losses: list[float] = []
        self.rate = 0.0

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.parameters.epochs * self.data.steps

    def train_epoch(self, progress: Callable[[int], None] | None = None) -> float:
        """One pass over the data; returns the mean loss over steps and workers and appends it to ``losses``.

        Args:
            progress: called after every step with its index. What it raises ends the epoch there; the state then
                continues with the next step.

        Raises:
            NumericError: the loss became NaN or infinite.
        """
        self.module.start_epoch(self.epoch)
        self.trained.train()
        for index, drawn in enumerate(self.view_batches(self.step), self.step):
            step = self.epoch * self.data.steps + index
            self.rate = self.parameters.optimizer.rate(step, self.steps)
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate
            self.total += self.train_views(*drawn, step)
            self.step = index + 1
            if progress is not None:
                progress(index)
        if self.step != self.data.steps:
            raise RuntimeError(f"epoch {self.epoch + 1} had {self.step} batches instead of {self.data.steps}")
        if self.workers > 1:
            dist.all_reduce(self.total)
        loss = float(self.total) / (self.data.steps * self.workers)
        if not math.isfinite(loss):
            raise NumericError(f"the loss of epoch {self.epoch + 1} is {loss}; lower optimizer.learning_rate")
        self.epoch += 1
        self.step, self.total = 0, torch.zeros_like(self.total)
        self.losses.append(loss)
        return loss

    def view_batches(self, first: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """Views and targets, as `train_views` takes them, of this epoch's batches from ``first`` on.

        On a GPU they are drawn ahead, while earlier batches are trained on, and those of several small batches at once:
        starting the many small operations of a view takes the host longer than the device.
        """
        return make_ahead(self._draw_batches(islice(self.data.epoch(self.epoch), first, None)), self.device)

    def _draw_batches(self, batches: Iterator[Batch]) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        while block := list(islice(batches, self._batches_at_once)):
            images, streams = (torch.cat([getattr(batch, part) for batch in block]) for part in ("images", "streams"))
            views = self.views(Batch(images, streams), self.epoch).split([len(batch.images) for batch in block])
            yield from zip(views, map(self._targets, block), strict=True)

    @property
    def _batches_at_once(self) -> int:
        """Batches whose views are drawn together."""
        if self.device.type != "cuda":
            return 1
        batch = self.parameters.batch_size // self.workers * self.module.views
        side = self.parameters.size or self.data.size
        return int(max(1, VIEW_BYTES // (4 * batch * self.data.channels * side**2)))

    def train_views(self, views: torch.Tensor, targets: torch.Tensor | None, step: int) -> torch.Tensor:
        """One optimiser step on views (B, V, C, H, W); ``step`` counts from 0 over the run. Returns the loss ()."""
        half = self.parameters.precision == "bfloat16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half):
            loss: torch.Tensor = self.trained(views, targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.module.after_step((step + 1) / self.steps)
        return loss.detach()

    def views(self, batch: Batch, epoch: int) -> torch.Tensor:
        """Normalised training views (B, V, C, H, W) of a batch in an epoch."""
        count, images = self.module.views, batch.images
        index = torch.arange(count, device=images.device).repeat_interleave(len(images))
        repeated, streams, side = images.repeat(count, 1, 1, 1), batch.streams.repeat(count), self.parameters.size
        drawn = self.augmentation(repeated, streams, epoch=epoch, view=index, size=side)
        normalised: torch.Tensor = (drawn - self.mean).div_(self.std)
        return normalised.unflatten(0, (count, -1)).transpose(0, 1)

    def _targets(self, batch: Batch) -> torch.Tensor | None:
        """The loss's input beside a batch's views: its targets, or random numbers after those of the views."""
        if not self.module.draws:
            return batch.targets
        return uniforms(batch.streams, epoch=self.epoch, view=self.module.views, count=self.module.draws)

    def start_from(self, encoder: Encoder) -> None:
        """Take the backbone of another encoder, and those of its heads that fit in name and shape, before training.

        Raises:
            ConfigError: the backbones differ.
        """
        try:
            self.module.backbone.load_state_dict(encoder.backbone.state_dict())
        except RuntimeError as error:
            raise ConfigError(
                f"the encoder started from has another backbone than {self.parameters.backbone}: "
                f"{' '.join(str(error).split())[:200]}"
            ) from error
        for name in set(self.module.heads) & set(encoder.heads):
            own, theirs = getattr(self.module, name).state_dict(), encoder.heads[name].state_dict()
            if {key: value.shape for key, value in own.items()} == {key: value.shape for key, value in theirs.items()}:
                getattr(self.module, name).load_state_dict(theirs)
        self.module.restart()

    def encoder(self) -> Encoder:
        """The encoder that an audit queries: backbone and heads with the normalisation built in."""
        return _audited(self.module, self.mean, self.std, self.parameters.size)

    def state_bytes(self) -> bytes:
        """Everything that continuing needs: weights, optimiser, epoch and step, losses (tensors and plain values).

        Within an epoch the losses so far are this worker's, so that only a run of one worker continues there.
        """
        buffer = io.BytesIO()
        state = {"module": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state | {name: getattr(self, name) for name in KEPT}, buffer)
        return buffer.getvalue()

    def load_state_bytes(self, data: bytes) -> None:
        """Continue from `state_bytes`: the next step is the one after the saved state."""
        state = torch.load(io.BytesIO(data), map_location=self.device, weights_only=True)
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name in KEPT:
            setattr(self, name, state[name])


def audited_encoder(parameters: PretrainingParameters, channels: int, image_size: int) -> Encoder:
    """The encoder of a training run with fresh weights, ready for `checkpoint.load_weights`."""
    module = seeded(0, lambda: _module(parameters, channels, parameters.size or image_size))
    mean, std = (channelwise(values, channels) for values in (parameters.mean, parameters.std))
    return _audited(module, mean, std, parameters.size)


def objective_parameters(parameters: PretrainingParameters) -> Any:
    """The settings of the objective, its defaults where none are given."""
    return parameters.objective_parameters or OBJECTIVES[parameters.objective].Parameters()


def _audited(module: Objective, mean: torch.Tensor, std: torch.Tensor, size: int | None) -> Encoder:
    heads: Mapping[str, nn.Module] = {name: getattr(module, name) for name in module.heads}
    return Encoder(module.backbone, heads, mean, std, size=size, text=module.text_tower())


def _module(parameters: PretrainingParameters, channels: int, image_size: int) -> Objective:
    backbone = build_backbone(parameters.backbone, channels, image_size)
    made: Any = OBJECTIVES[parameters.objective]
    return made(backbone, objective_parameters(parameters))
