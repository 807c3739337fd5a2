"""The training images of a worker: batches with their random streams and targets, in an order that a seed fixes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from mi_core.checks import ConfigError
from mi_core.hashing import digest64
from mi_core.objectives.base import world
from mi_core.streams import sample_streams


@dataclass(frozen=True)
class Batch:
    """This worker's part of a batch: images (B, C, H, W) uint8, streams (B,) int64, targets (B, ...) or None."""

    images: torch.Tensor
    streams: torch.Tensor
    targets: torch.Tensor | None = None


class TrainingImages(Protocol):
    """A data set as a worker sees it: ``count`` images over all workers, in epochs of ``steps`` batches."""

    channels: int
    size: int
    count: int
    steps: int

    def epoch(self, number: int) -> Iterator[Batch]:
        """The ``steps`` batches of an epoch, always the same for the same number."""


class ResidentImages:
    """Images that stay on the device as uint8, reshuffled every epoch; an incomplete last batch is left out.

    Args:
        images: (N, C, S, S) uint8, the same in the same order on every worker.
        names: (source, key) of each of the N images.
        targets: (N, ...) what the objective reads of each image besides its pixels, or None.
        batch_size: images per step over all workers.
        seed: of the order and of the views.
        device: where the images stay.

    Raises:
        ConfigError: the batch is larger than the data or not divisible by the number of workers.
    """

    def __init__(
        self,
        images: torch.Tensor,
        names: Sequence[tuple[str, str]],
        targets: torch.Tensor | None = None,
        *,
        batch_size: int,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.rank, self.workers = world()
        self.count, self.channels, self.size = len(images), images.shape[1], images.shape[2]
        check_batch(batch_size, self.count, self.workers)
        self.images = images.to(device)
        self.streams = sample_streams(seed, "train", names).to(device)
        self.targets = None if targets is None else targets.to(device)
        self.batch_size, self.seed = batch_size, seed
        self.steps = self.count // batch_size

    def rows(self, number: int) -> torch.Tensor:
        """Rows (steps, B) of this worker's images in an epoch."""
        generator = torch.Generator().manual_seed(digest64(self.seed, "order", number) % 2**63)
        order = torch.randperm(self.count, generator=generator)
        kept = order[: self.steps * self.batch_size].reshape(self.steps, -1)
        return kept[:, self.rank :: self.workers].to(self.images.device)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of an epoch."""
        for rows in self.rows(number):
            targets = None if self.targets is None else self.targets[rows]
            yield Batch(self.images[rows], self.streams[rows], targets)


def by_content(images: torch.Tensor) -> tuple[torch.Tensor, list[tuple[str, str]]]:
    """An order (N,) of N images and a name of each in this order, both functions of the pixels alone.

    Args:
        images: (N, C, S, S) uint8.
    """
    hashes = [hashlib.sha256(one.numpy().tobytes()).hexdigest() for one in images.cpu()]
    order = sorted(range(len(hashes)), key=hashes.__getitem__)
    return torch.tensor(order, dtype=torch.int64), [("pixels", hashes[row]) for row in order]


def check_batch(batch_size: int, images: int, workers: int) -> None:
    """Raise ConfigError if a global batch is larger than the data or not divisible by the number of workers."""
    if batch_size > images:
        raise ConfigError(f"batch_size = {batch_size} exceeds the {images} images trained on; lower it")
    if batch_size % workers:
        raise ConfigError(f"batch_size = {batch_size} is not divisible by {workers} workers")
