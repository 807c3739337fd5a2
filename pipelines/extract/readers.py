"""Stream a shard chunk by chunk, in Ray tasks without PyTorch.

This module imports no PyTorch, so a reader starts in a fraction of an encoder actor's time.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from pipelines.config.sources import SourceConfig
from pipelines.data.captions import own_caption
from pipelines.data.samples import Item, Sample
from pipelines.data.sources import Source


@dataclass(frozen=True)
class Share:
    """The part of a shard that one job needs: its keys, cut into chunks in stream order, less the chunks to skip.

    ``captions``: by key, for samples that have none of their own; None if the job needs no captions.
    ``labels``: the class by key; None if the job needs no classes.
    """

    job: bytes
    wanted: frozenset[str]
    chunk: int
    skip: frozenset[int] = frozenset()
    captions: Mapping[str, str] | None = None
    labels: Mapping[str, int] | None = None


@dataclass(frozen=True)
class ReadOrder:
    """One shard to stream once for all jobs that need samples of it."""

    source: str
    reader: SourceConfig
    item: Item
    shares: tuple[Share, ...]


class _Filling:
    """The chunk of one share that is being filled."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self.keys: list[str] = []
        self.images: list[bytes] = []
        self.captions: list[str] = []
        self.labels: list[int] = []
        self.chunk = 0
        self.seen = 0

    def add(self, sample: Sample) -> pa.Table | None:
        """Add a sample; returns the row of a chunk when it is full, unless it is to be skipped."""
        self.keys.append(sample.key)
        self.images.append(sample.image)
        if self.share.captions is not None:
            self.captions.append(own_caption(sample.others) or self.share.captions.get(sample.key, ""))
        if self.share.labels is not None:
            self.labels.append(self.share.labels[sample.key])
        self.seen += 1
        if len(self.keys) < self.share.chunk and self.seen < len(self.share.wanted):
            return None
        done = self.chunk in self.share.skip
        filled = self.keys, self.images, self.captions, self.labels
        row = None if done else _row(self.share.job, self.chunk, *filled, "")
        self.keys, self.images, self.captions, self.labels, self.chunk = [], [], [], [], self.chunk + 1
        return row


def read_chunks(batch: pa.Table) -> Iterator[pa.Table]:
    """Stream one shard, one row per chunk of encoded images.

    Args:
        batch: one row with ``order``, a pickled `ReadOrder`.

    Yields:
        Rows of job, chunk, keys, images, captions and labels (where wanted), error; an error ends the shard.
    """
    order: ReadOrder = pickle.loads(batch["order"][0].as_py())
    yield from chunks_of(order, Source(order.reader).read)


def chunks_of(order: ReadOrder, read: Callable[[Item, set[str]], Iterable[Sample]]) -> Iterator[pa.Table]:
    """The rows of `read_chunks`; ``read`` yields the samples of an item that have the given keys."""
    place = f"{order.source}, shard {order.item.name}"
    fillings = [_Filling(share) for share in order.shares]
    takers: dict[str, list[_Filling]] = {}
    for filling in fillings:
        for key in filling.share.wanted:
            takers.setdefault(key, []).append(filling)
    try:
        for sample in read(order.item, set(takers)):
            for filling in takers[sample.key]:
                row = filling.add(sample)
                if row is not None:
                    yield row
    except (OSError, ValueError) as error:
        yield _row(b"", 0, [], [], [], [], f"{place}: {error}")
        return
    for filling in fillings:
        asked = len(filling.share.wanted)
        if filling.seen != asked:
            problem = f"{filling.seen} of {asked} samples found; it changed since the roles were drawn"
            yield _row(b"", 0, [], [], [], [], f"{place}: {problem}")
            return


def _row(
    job: bytes, chunk: int, keys: list[str], images: list[bytes], captions: list[str], labels: list[int], error: str
) -> pa.Table:
    return pa.table(
        {
            "job": pa.array([job], pa.large_binary()),
            "chunk": pa.array([chunk], pa.int64()),
            "keys": pa.array([keys], pa.list_(pa.string())),
            "images": pa.array([images], pa.list_(pa.large_binary())),
            "captions": pa.array([captions], pa.list_(pa.string())),
            "labels": pa.array([labels], pa.list_(pa.int64())),
            "error": pa.array([error], pa.string()),
        }
    )


class Kept:
    """Cache of the samples read in this process, up to a number of bytes.

    Reading a shard costs the same however few of its samples are needed.
    """

    def __init__(self, limit_bytes: int = 512 * 2**20) -> None:
        self.limit = limit_bytes
        self.samples: dict[tuple[str, str], dict[str, Sample]] = {}

    def reader(self, model: SourceConfig) -> Callable[[Item, set[str]], Iterator[Sample]]:
        """A function like `Source.read` that reads nothing twice."""

        def read(item: Item, keys: set[str]) -> Iterator[Sample]:
            place = (model.model_dump_json(), item.name)
            known = self.samples.get(place, {})
            if not keys <= known.keys():
                known = {sample.key: sample for sample in Source(model).read(item, keys | known.keys())}
                self.samples[place] = known
                if sum(len(sample.image) for here in self.samples.values() for sample in here.values()) > self.limit:
                    del self.samples[place]
            yield from (sample for key, sample in known.items() if key in keys)

        return read
