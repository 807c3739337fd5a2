"""A leak meter for a training: how well membership of single images can be told, epoch after epoch.

The meter reads the mean similarity of an image's views (EncoderMI-T, CCS 2021, section 4.3), which needs no fit. A
stronger attack could see more.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import nn

from mi_core.auditing.images import TWICE, Picture, check_steady, items_of
from mi_core.auditing.models import device_of, evaluating
from mi_core.auditing.questions import check_arguments, recipe_of
from mi_core.augmentations.views import make_views
from mi_core.checks import ConfigError, ShapeError, check_range
from mi_core.features.pairwise_similarity import pairwise_similarity
from mi_core.images import Decoder, decode
from mi_core.metrics.delong import auc
from mi_core.records import Estimate
from mi_core.streams import pixel_streams

LEAST = 50  # images of a side for a reading
_TRIED = 8  # images whose time is taken before the first reading
_BATCH = 32


@dataclass(frozen=True)
class MeterReading:
    """One reading.

    Args:
        epoch: its number, from 1.
        auc: of members against held-out images; .5 is guessing.
        images: of each side.
        seconds: it took.
    """

    epoch: int
    auc: Estimate
    images: int
    seconds: float

    def __str__(self) -> str:
        return f"epoch {self.epoch}: leak AUC {self.auc.value:.3f} [{self.auc.low:.3f}, {self.auc.high:.3f}]"


@dataclass(frozen=True)
class NotYet:
    """No reading at this epoch; it is false where a reading is true.

    Args:
        epoch: of the next reading, at the speed so far.
    """

    epoch: int

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"next at epoch {self.epoch}"


class LeakMeter:
    """Reads the leak of a network while it trains, for a small share of the training's time.

    The training is the same with the meter and without it: the network is read in evaluation mode and put back, nothing
    draws from the global random numbers. After each epoch call `step`, or hand `callback` to a Lightning trainer. The
    first epoch is read with 50 images a side. Where an epoch is too short for that, several pay for the next reading.
    The training's time counts from the making of the meter, with Lightning from the start of the fit.

    Args:
        model: the network that trains; it maps images (B, 3, S, S) to embeddings (B, D).
        members: images that it trains on, in any form that `mi_core.audit` takes.
        held_out: images of the same kind that it does not train on.
        size: S.
        mean, std: normalisation per channel of what the network gets; None: pixels in [0, 1] without any.
        embed: how embeddings are made from images, where calling ``model`` does something else.
        objective, augmentation: the views, as `mi_core.audit` has them.
        views: of each image, at least 2.
        most: images of a side, at most.
        share: of the training's time that the meter may take, in (0, 1].
        budget: AUC at which training should stop: once the lower end of the interval is above it, ``exceeded`` is true.
        seed: of the views and of the choice of images.

    Raises:
        ConfigError: an argument is impossible, a side has fewer than 50 different images, both share one, or images
            are others when they are asked for again.
    """

    def __init__(
        self,
        model: nn.Module,
        members: Any,
        held_out: Any,
        *,
        size: int,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        embed: Callable[[torch.Tensor], torch.Tensor] | None = None,
        objective: str = "simclr",
        augmentation: Mapping[str, Any] | None = None,
        views: int = 4,
        most: int = 500,
        share: float = 0.02,
        budget: float | None = None,
        seed: int = 0,
    ) -> None:
        plain = check_arguments(**locals())  # nothing but the arguments so far
        size, mean, std, views, seed = (plain[name] for name in ("size", "mean", "std", "views", "seed"))
        check_range("most", most, LEAST)
        check_range("share", share, 0, 1, open_low=True)
        if budget is not None:
            check_range("budget", budget, 0.5, 1)
        self.model, self.embed, self.views, self.share, self.budget = model, embed or model, views, share, budget
        self.recipe = recipe_of(objective, augmentation or {})
        self.mean = torch.tensor(mean or (0.0,)).reshape(1, -1, 1, 1)
        self.std = torch.tensor(std or (1.0,)).reshape(1, -1, 1, 1)
        sides = {"members": items_of(members, "members"), "held_out": items_of(held_out, "held_out")}
        found = [_pixels(items, most, seed, name, Decoder(size)) for name, items in sides.items()]
        if shared := len(found[0].keys() & found[1].keys()):
            raise ConfigError(f"{shared} images of members are among held_out, by their pixels; leave them out of one")
        self.images = [torch.from_numpy(np.stack([*pixels.values()])) for pixels in found]
        self.streams = [pixel_streams("", seed, "query", images) for images in self.images]
        self.each: float | None = None  # seconds for an image
        self._begin()

    def _begin(self) -> None:
        """A training begins: nothing is read and nothing spent of its time."""
        self.readings: list[MeterReading] = []
        self.epoch = 0
        self.spent = 0.0
        self.started = time.perf_counter()

    @property
    def exceeded(self) -> bool:
        """Whether the last reading is above the budget, by its whole interval."""
        return self.budget is not None and bool(self.readings) and self.readings[-1].auc.low > self.budget

    def step(self) -> MeterReading | NotYet:
        """Count an epoch, and read the leak if it is the first one or the time for it has been earned.

        Raises:
            ShapeError: the network returns other than (B, D).
        """
        self.epoch += 1
        began = time.perf_counter()
        if self.each is None:
            self._scores(slice(0, _TRIED))  # the first call is slower than those after it
            again = time.perf_counter()
            self._scores(slice(0, _TRIED))
            self.each = (time.perf_counter() - again) / (2 * _TRIED)
            self.spent += time.perf_counter() - began
        trained = time.perf_counter() - self.started - self.spent
        allowed = self.share * trained - self.spent
        images = min(*map(len, self.images), int(allowed / (2 * self.each)))
        if images < LEAST and self.readings:
            wanted = (2 * LEAST * self.each + self.spent) / self.share
            return NotYet(max(self.epoch + 1, math.ceil(wanted * self.epoch / max(trained, 1e-9))))
        images = max(images, LEAST)
        began = time.perf_counter()
        inside, outside = self._scores(slice(0, images))
        took = time.perf_counter() - began
        self.spent += took
        self.each = took / (2 * images)
        scores, member = np.concatenate([inside, outside]), np.arange(2 * images) < images
        reading = MeterReading(self.epoch, auc(scores, member), images, took)
        self.readings.append(reading)
        return reading

    def callback(self) -> Any:
        """A callback for a Lightning trainer: reads between epochs, logs ``leak_auc``, stops above the budget.

        Every fit begins anew. Where several processes train, each reads by its own clock, and all stop once one of them
        is above the budget.

        Raises:
            ConfigError: Lightning is not installed.
        """
        meter = self

        class LeakCallback(_lightning().Callback):  # type: ignore[misc]
            """Reads the leak at the end of every epoch."""

            def on_train_start(self, trainer: Any, module: Any) -> None:
                """The training's time counts from here."""
                meter._begin()

            def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
                """Read, log, and stop the training above the budget."""
                reading = meter.step()
                if isinstance(reading, MeterReading):
                    module.log("leak_auc", reading.auc.value)
                over, reduce = meter.exceeded, getattr(trainer.strategy, "reduce_boolean_decision", None)
                if reduce is not None:  # or one process would leave and the others wait for it
                    over = reduce(over, all=False)
                trainer.should_stop = trainer.should_stop or over

        return LeakCallback()

    @torch.no_grad()
    def _scores(self, rows: slice) -> list[np.ndarray]:
        """Mean similarity of the views of some images of each side."""
        with evaluating(self.model):
            self.model.eval()
            return [
                np.concatenate([*map(self._of, images[rows].split(_BATCH), streams[rows].split(_BATCH))])
                for images, streams in zip(self.images, self.streams, strict=True)
            ]

    def _of(self, images: torch.Tensor, streams: torch.Tensor) -> np.ndarray:
        place = device_of(self.model)
        drawn = make_views(images.to(place), streams.to(place), self.recipe, views=self.views)
        flat = (drawn.flatten(0, 1) - self.mean.to(place)) / self.std.to(place)
        embedded = self.embed(flat)
        shape = tuple(embedded.shape) if isinstance(embedded, torch.Tensor) else type(embedded).__name__
        if isinstance(shape, str) or len(shape) != 2 or shape[0] != len(flat):
            raise ShapeError(f"the network returned {shape} for {len(flat)} images, expected (B, D); give embed=...")
        similar = pairwise_similarity(embedded.float().unflatten(0, (-1, self.views)))
        return np.asarray(similar.mean(dim=1, dtype=torch.float64).cpu().numpy())


def _pixels(items: list[Picture], most: int, seed: int, name: str, decoder: Decoder) -> dict[bytes, np.ndarray]:
    """Pixels of at most so many different images of a side, by their bytes."""
    items = [item for item in items if not item.fault]
    found: dict[bytes, np.ndarray] = {}
    for turn, row in enumerate(np.random.default_rng(seed).permutation(len(items))[:most].tolist()):
        data = items[row].data()
        if turn < TWICE:
            check_steady(items[row], data, name)
        pixels = decode(data, decoder)
        found[pixels.tobytes()] = pixels
    if len(found) < LEAST:
        raise ConfigError(f"{name} has {len(found)} different images; give at least {LEAST}")
    return found


def _lightning() -> Any:
    """The package of Lightning that the program uses, or that is installed."""
    for name in sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise ConfigError("Lightning is not installed; install lightning, or call LeakMeter.step() after every epoch")
