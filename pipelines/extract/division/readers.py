"""Stream a shard chunk by chunk, in Ray tasks without PyTorch.

This module imports no PyTorch, so a reader starts in a fraction of an encoder actor's time.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from mi_core.images import Decoder
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.columns import known_label
from pipelines.data.draw.images import Blend, blend_of
from pipelines.data.draw.splits import Splits
from pipelines.data.read.attributes import made_caption, own_caption
from pipelines.data.read.samples import Portion, Sample
from pipelines.data.read.sources import Source
from pipelines.errors import UserError
from pipelines.files.digest import digest


@dataclass(frozen=True)
class Selection:
    """Some samples of one shard: those of some roles, or given ones.

    Args:
        folder: of the seed that the roles are drawn in; empty where none are.
        drawn: when they were drawn, as `storage.stamp` tells it.
        roles: roles or parts whose samples are asked for.
        count: number of samples.
        digest: which samples these are; equal selections of a shard have equal digests.
        given: class by key, None where there is no class; None: the roles tell the samples.
    """

    folder: str
    drawn: str
    roles: tuple[str, ...]
    count: int
    digest: str
    given: Mapping[str, int | None] | None = None

    def classes(self, source: str, item: str) -> Mapping[str, int | None]:
        """The samples: key to class, None where there is none.

        Raises:
            UserError: the shard was read again since the roles were drawn, and changed.
        """
        if self.given is not None:
            return self.given
        return _splits(self.folder, self.drawn).classes(source, item, self.roles)

    def blend(self, source: str, item: str, decoder: Decoder) -> Blend:
        """The change of the samples' images before they are decoded: none where no roles were drawn."""
        return (
            blend_of(_splits(self.folder, self.drawn), source, item, decoder) if self.folder else lambda sample: sample
        )

    @classmethod
    def given_as(cls, classes: Mapping[str, int | None], folder: str = "", drawn: str = "") -> Selection:
        """The selection of given samples; ``folder`` and ``drawn`` where they have roles."""
        return cls(folder, drawn, (), len(classes), digest(sorted(classes)), classes)

    def bare(self) -> Selection:
        """The selection without the samples that were given: all that a chunk of it needs to know."""
        return replace(self, given=None)


@lru_cache(maxsize=4)
def _splits(folder: str, _drawn: str) -> Splits:
    """The splits of a folder, looked up once per process and not once per shard."""
    return Splits.load(folder)


@dataclass(frozen=True)
class Share:
    """The part of a shard that some jobs need together, cut into chunks in stream order.

    Args:
        jobs: what encodes the chunks; the reader does not look inside.
        skips: the chunks that each job has done.
        selection: the samples.
        chunk: images per chunk.
        decoder: that decodes them.
        captioned: makes captions of samples that have none of their own; None if the jobs need no captions.
        labelled: whether the jobs need the classes.
    """

    jobs: tuple[bytes, ...]
    skips: tuple[frozenset[int], ...]
    selection: Selection
    chunk: int
    decoder: Decoder
    captioned: DataConfig | None = None
    labelled: bool = False


@dataclass(frozen=True)
class ReadOrder:
    """One shard to stream once for all jobs that need samples of it."""

    source: str
    reader: SourceConfig
    item: Portion
    shares: tuple[Share, ...]


class _Filling:
    """The chunk of one share that is being filled."""

    def __init__(self, share: Share, source: str, item: str) -> None:
        self.share, self.source = share, source
        self.classes = share.selection.classes(source, item)
        self.blend = share.selection.blend(source, item, share.decoder)
        self.chunk = 0
        self.seen = 0
        self._empty()

    def _empty(self) -> None:
        self.cells: dict[str, list[Any]] = {name: [] for name in ("keys", "images", "captions", "labels")}

    def add(self, sample: Sample) -> pa.Table | None:
        """Add a sample; returns the row of a chunk when it is full, unless all jobs have done it.

        Raises:
            UserError: a sample has no class, which a job needs.
        """
        share, label = self.share, self.classes[sample.key]
        self.cells["keys"].append(sample.key)
        self.cells["images"].append(self.blend(sample).image)
        if share.captioned is not None:
            made = made_caption(share.captioned, self.source, sample.key, label)
            self.cells["captions"].append(own_caption(sample.others) or made)
        if share.labelled:
            self.cells["labels"].append(known_label(f"{self.source}/{sample.key}", label))
        self.seen += 1
        if len(self.cells["keys"]) < share.chunk and self.seen < len(self.classes):
            return None
        jobs = [job for job, done in zip(share.jobs, share.skips, strict=True) if self.chunk not in done]
        row = _row(jobs=jobs, chunk=self.chunk, **self.cells) if jobs else None
        self.chunk += 1
        self._empty()
        return row


def read_chunks(batch: pa.Table) -> Iterator[pa.Table]:
    """Stream one shard, one row per chunk of encoded images.

    Args:
        batch: one row with ``order``, a pickled `ReadOrder`.

    Yields:
        Rows of jobs, chunk, keys, images, captions and labels (where wanted), error; an error ends the shard.
    """
    order: ReadOrder = pickle.loads(batch["order"][0].as_py())
    yield from chunks_of(order, Source(order.reader).read)


def chunks_of(order: ReadOrder, read: Callable[[Portion, set[str]], Iterable[Sample]]) -> Iterator[pa.Table]:
    """The rows of `read_chunks`; ``read`` yields the samples of an item that have the given keys."""
    place = f"{order.source}, shard {order.item.name}"
    try:
        fillings = [_Filling(share, order.source, order.item.name) for share in order.shares]
    except UserError as error:
        yield _row(error=str(error))
        return
    takers: dict[str, list[_Filling]] = {}
    for filling in fillings:
        for key in filling.classes:
            takers.setdefault(key, []).append(filling)
    try:
        for sample in read(order.item, set(takers)):
            for filling in takers[sample.key]:
                row = filling.add(sample)
                if row is not None:
                    yield row
    except (OSError, ValueError) as error:
        yield _row(error=f"{place}: {error}")
        return
    for filling in fillings:
        asked = filling.share.selection.count
        if filling.seen != asked:
            problem = f"{filling.seen} of {asked} samples found; it changed since the roles were drawn"
            yield _row(error=f"{place}: {problem}")
            return


_ROW = pa.schema(
    {
        "jobs": pa.list_(pa.large_binary()),
        "chunk": pa.int64(),
        "keys": pa.list_(pa.string()),
        "images": pa.list_(pa.large_binary()),
        "captions": pa.list_(pa.string()),
        "labels": pa.list_(pa.int64()),
        "error": pa.string(),
    }
)


def _row(**cells: Any) -> pa.Table:
    """A row of `read_chunks`, empty but for some cells."""
    empty = {"jobs": [], "chunk": 0, "keys": [], "images": [], "captions": [], "labels": [], "error": ""}
    return pa.Table.from_pylist([empty | cells], _ROW)


class Kept:
    """Cache of the samples read in this process, up to a number of bytes.

    Reading a shard costs the same however few of its samples are needed.
    """

    def __init__(self, limit_bytes: int = 512 * 2**20) -> None:
        self.limit = limit_bytes
        self.samples: dict[tuple[str, str], dict[str, Sample]] = {}

    def reader(self, model: SourceConfig) -> Callable[[Portion, set[str]], Iterator[Sample]]:
        """A function like `Source.read` that reads nothing twice."""

        def read(item: Portion, keys: set[str]) -> Iterator[Sample]:
            place = (model.model_dump_json(), item.name)
            known = self.samples.get(place, {})
            if not keys <= known.keys():
                known = {sample.key: sample for sample in Source(model).read(item, keys | known.keys())}
                self.samples[place] = known
                if sum(len(sample.image) for here in self.samples.values() for sample in here.values()) > self.limit:
                    del self.samples[place]
            yield from (sample for key, sample in known.items() if key in keys)

        return read
