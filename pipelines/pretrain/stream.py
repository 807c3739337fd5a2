"""Training images that do not fit the device: read from their shards anew every epoch, decoded ahead of the training.

The shards of an epoch are ordered by a hash of (seed, epoch) and laid end to end. Every worker takes an equal stretch
of their samples, so two workers read the same shard only where a stretch ends inside it. An epoch holds every sample
once, without those of an incomplete last batch. Keys and labels are known of the shard being read alone.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch

from mi_core.hashing import digest64
from mi_core.image_files import ImageError
from mi_core.images import Decoder, decode
from mi_core.objectives.base import Objective, world
from mi_core.streams import stream_keys
from mi_core.training.data import Batch, check_batch
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.columns import ATTRIBUTE
from pipelines.data.draw.images import Blend, blend_of
from pipelines.data.draw.splits import Splits
from pipelines.data.read.attributes import caption_of
from pipelines.data.read.samples import Portion, Sample
from pipelines.data.read.sources import Source
from pipelines.errors import UserError

MIXED_BYTES = 256 * 2**20  # decoded pixels that are shuffled among each other
AHEAD = 4  # batches decoded before they are asked for
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class _Shard:
    source: str
    model: SourceConfig
    item: Portion
    size: int  # samples with the members' roles


@dataclass(frozen=True)
class _Entry:
    pixels: np.ndarray
    stream: int
    label: int | None
    caption: str


class StreamedImages:
    """A data set of shards as one worker sees it; see `mi_core.training.data.TrainingImages`.

    Args:
        data: sources and decoder.
        splits: roles of the samples.
        roles: the members' roles.
        objective: class and settings; it reads labels or captions.
        batch_size: images per step over all workers.
        seed: of the order and of the views.
        threads: that decode.
        device: where batches go.
        attribute: whose values the objective reads instead of labels; None: labels.

    Raises:
        ConfigError: the batch is larger than the data or not divisible by the number of workers.
        UserError: the splits were drawn before the attribute was declared.
    """

    def __init__(
        self,
        data: DataConfig,
        splits: Splits,
        roles: Sequence[str],
        objective: tuple[type[Objective], Any],
        *,
        batch_size: int,
        seed: int,
        threads: int = 1,
        device: torch.device | str = "cpu",
        attribute: str | None = None,
    ) -> None:
        self.rank, self.workers = world()
        self.data, self.objective, self.seed, self.threads = data, objective, seed, threads
        self.device = torch.device(device)
        self.channels, self.size = data.channels, data.image_size
        self.shards = [
            _Shard(source, model, item, size)
            for source, model in data.sources.items()
            for item in Source(model).items()
            if (size := splits.size(source, item.name, roles))
        ]
        if attribute is not None and self.shards:
            splits.at([(self.shards[0].source, self.shards[0].item.name)]).attribute(attribute)  # refused if not there
        self.splits, self.roles = splits, tuple(roles)
        self.column = "label" if attribute is None else f"{ATTRIBUTE}{attribute}"
        self.count = sum(shard.size for shard in self.shards)
        check_batch(batch_size, self.count, self.workers)
        self.batch_size = batch_size // self.workers
        self.steps = self.count // batch_size
        self.mixed = max(1, MIXED_BYTES // (self.channels * self.size**2))

    def stretch(self, number: int) -> list[tuple[_Shard, int, int]]:
        """Shards that this worker reads in an epoch, in order, each with the range of its samples: from, to."""
        order = sorted(
            self.shards, key=lambda shard: digest64(self.seed, "shard", number, shard.source, shard.item.name)
        )
        mine = self.steps * self.batch_size
        start, stop = self.rank * mine, (self.rank + 1) * mine
        taken, position = [], 0
        for shard in order:
            low, high = max(start - position, 0), min(stop - position, shard.size)
            if low < high:
                taken.append((shard, low, high))
            position += shard.size
        return taken

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of an epoch; a thread reads and decodes ahead."""
        ready: queue.Queue[Batch | BaseException | None] = queue.Queue(maxsize=AHEAD)
        stopped = threading.Event()

        def put(item: Batch | BaseException | None) -> None:
            while not stopped.is_set():
                try:
                    ready.put(item, timeout=0.1)
                    return
                except queue.Full:
                    continue

        def work() -> None:
            try:
                for batch in self._batches(number):
                    put(batch)
                    if stopped.is_set():
                        return
                put(None)
            except BaseException as error:  # noqa: BLE001 - handed to the one who waits
                put(error)

        threading.Thread(target=work, daemon=True).start()
        try:
            while (batch := ready.get()) is not None:
                if isinstance(batch, BaseException):
                    raise batch
                targets = None if batch.targets is None else batch.targets.to(self.device)
                yield Batch(batch.images.to(self.device), batch.streams.to(self.device), targets)
        finally:
            stopped.set()

    def _batches(self, number: int) -> Iterator[Batch]:
        generator = np.random.default_rng(digest64(self.seed, "mix", number, self.rank))
        held: list[_Entry] = []

        def shuffled() -> Iterator[_Entry]:
            for entry in self._entries(number):
                if len(held) < self.mixed:
                    held.append(entry)
                    continue
                place = int(generator.integers(self.mixed))
                held[place], drawn = entry, held[place]
                yield drawn
            yield from (held[place] for place in generator.permutation(len(held)))

        for batch in _blocks(shuffled(), self.batch_size):
            if len(batch) == self.batch_size:
                yield self._stacked(batch)

    def _entries(self, number: int) -> Iterator[_Entry]:
        decoder = self.data.decoder()
        with ThreadPoolExecutor(self.threads) as pool:
            for shard, low, high in self.stretch(number):
                read, place = 0, (shard.source, shard.item.name)
                labels = dict(islice(self.splits.classes(*place, self.roles, self.column).items(), low, high))
                for some in _blocks(_read(shard, labels.keys(), blend_of(self.splits, *place, decoder)), 64):
                    for sample, pixels in zip(some, pool.map(partial(_pixels, shard, decoder), some), strict=True):
                        label = labels[sample.key]
                        (stream,) = stream_keys(self.seed, "train", shard.source, [sample.key]).tolist()
                        caption, _ = caption_of(self.data, shard.source, sample.key, sample.others, label)
                        yield _Entry(pixels, stream, label, caption)
                        read += 1
                if read != len(labels):
                    raise UserError(
                        f"{shard.source}, shard {shard.item.name}: {len(labels) - read} of {len(labels)} samples are "
                        "gone; the data changed since the roles were drawn"
                    )

    def _stacked(self, batch: Sequence[_Entry]) -> Batch:
        made, settings = self.objective
        targets = made.encode_targets(settings, [entry.label for entry in batch], [entry.caption for entry in batch])
        images = torch.from_numpy(np.stack([entry.pixels for entry in batch]))
        return Batch(images, torch.tensor([entry.stream for entry in batch]), targets)


def _read(shard: _Shard, keys: Set[str], blend: Blend) -> Iterator[Sample]:
    try:
        yield from map(blend, Source(shard.model).read(shard.item, set(keys)))
    except OSError as error:
        raise UserError(
            f"{shard.source}, shard {shard.item.name}: {error}; it changed since the roles were drawn"
        ) from error


def _pixels(shard: _Shard, decoder: Decoder, sample: Sample) -> np.ndarray:
    try:
        return decode(sample.image, decoder)
    except ImageError as error:
        raise UserError(f"{shard.source}/{sample.key}: {error}; it changed since the roles were drawn") from error


def _blocks(entries: Iterator[Entry], size: int) -> Iterator[list[Entry]]:
    """Blocks of a size, the last one with the rest."""
    while block := list(islice(entries, size)):
        yield block
