"""Split a pass into jobs, one per shard, and find the jobs that remain.

A feature file is named by its content: the tag of its pass, which hashes queries and chunk size, then checkpoint,
shard and chunk. So a file that exists is done, a missing file is to do, and writing a file twice changes nothing.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from mi_core.images import Decoder
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.draw.parts import Firsts
from pipelines.data.draw.splits import ROLES, Splits
from pipelines.data.read.samples import Portion
from pipelines.data.read.sources import Source
from pipelines.extract.division.passes import FeatureFile, Pass
from pipelines.extract.division.readers import ReadOrder, Selection, Share
from pipelines.files import storage
from pipelines.run.folder import SeedFolder

ATTEMPTS = 5  # at a chunk in one session; samples left after that are committed as crashed
TOGETHER = 32  # jobs that share a chunk of images, at most
SHARES = 8  # chunks of images that one reader fills at a time, at most: each is held in memory
Begun = tuple[int, int]
"""Markers of a chunk, and deaths of workers that they prove."""
Place = tuple[str, SourceConfig, Portion]
"""A shard: the name of its source, the source, and which of its items."""


@dataclass(frozen=True)
class ShardJob:
    """One shard of one pass: the unit of planning. Plain data that depends on the config alone.

    Args:
        folder: of the seed, which has the encoders.
        query: the pass.
        source, reader, item: the shard.
        selection: its samples that the pass asks for.
        chunk: images per chunk.
        decoder: from files to pixels.
        data: tells captions and classes; None if the pass needs neither.
        skip: chunks that are done.
        attempts: at a chunk in this session, at most.
        begun: earlier attempts by chunk.
        session: name of the start of the run.
        bank: file of the images that samples are compared with; empty: none.
    """

    folder: SeedFolder
    query: Pass
    source: str
    reader: SourceConfig
    item: Portion
    selection: Selection
    chunk: int
    decoder: Decoder
    data: DataConfig | None = None
    skip: frozenset[int] = frozenset()
    attempts: int = ATTEMPTS
    begun: Mapping[int, Begun] = field(default_factory=dict)
    session: str = ""
    bank: str = ""

    @property
    def encoder(self) -> str:
        """The encoder to query."""
        return self.query.encoder

    @property
    def queries(self) -> int:
        """Queries for the chunks not skipped, over all checkpoints."""
        return self.queries_of(self.images)

    @property
    def is_left(self) -> bool:
        """Tell whether chunks are not done."""
        return len(self.skip) < self.chunks

    @property
    def images(self) -> int:
        """Images in the chunks not skipped."""
        return self.selection.count - sum(map(self.size, self.skip))

    def queries_of(self, images: int) -> int:
        """Queries for a number of images, over all checkpoints."""
        return images * self.query.queries_per_image

    def size(self, chunk: int) -> int:
        """Images of a chunk."""
        return min(self.chunk, self.selection.count - chunk * self.chunk)

    @property
    def chunks(self) -> int:
        """Number of chunks of the shard."""
        return self.file.chunks

    @property
    def place(self) -> tuple[str, str, str]:
        """The name of its shard."""
        return self.source, self.reader.model_dump_json(), self.item.name

    @property
    def file(self) -> FeatureFile:
        """The files of the shard."""
        return FeatureFile(self.source, self.item.name, -(-self.selection.count // self.chunk))

    def path(self, epoch: int, chunk: int) -> str:
        """File of one chunk."""
        return self.file.path(self.query.folder, epoch, chunk)

    def paths(self, chunk: int) -> list[str]:
        """Files of one chunk, one for each checkpoint."""
        return [self.path(epoch, chunk) for epoch in self.query.epochs]

    def rejected_path(self, chunk: int) -> str:
        """File that lists the rejected samples of a chunk, if there are any."""
        return self.file.rejected_path(self.query.folder, self.query.epochs[0], chunk)

    @property
    def company(self) -> tuple[object, ...]:
        """Equal for jobs that may share chunks of images: the same samples, read and decoded in the same way."""
        own = (self.query.tag,) if self.query.is_alone else ()
        plan, data = self.query.plan(), self.data
        told = "" if data is None else repr((data.meaning_of(data.label), data.model_dump(mode="json")["captions"]))
        samples = (self.folder.seed, self.selection.digest, self.chunk, self.decoder)
        return (self.query.protocol.nonce, *samples, told, plan.captioned, plan.labelled, *own)

    def packed(self) -> bytes:
        """The job without its samples, as it travels with its chunks; see `unpacked`."""
        return zlib.compress(pickle.dumps(replace(self, selection=self.selection.bare(), skip=frozenset(), data=None)))


def unpacked(data: bytes) -> ShardJob:
    """The job that `ShardJob.packed` gave."""
    return pickle.loads(zlib.decompress(data))


def places_of(data: DataConfig) -> list[Place]:
    """All shards of all sources, in a fixed order."""
    return [(source, model, item) for source, model in data.sources.items() for item in Source(model).items()]


def jobs_of(query: Pass, data: DataConfig, folder: SeedFolder, places: Iterable[Place]) -> Iterator[ShardJob]:
    """The jobs of one pass on some shards; a shard without a wanted sample has no job."""
    splits, decoder, plan = Splits.load(folder.path), data.decoder(), query.plan()
    drawn = storage.stamp(f"{splits.folder}/splits/{ROLES}")
    first = None if query.count is None else Firsts.from_splits(splits, query.roles, query.count, folder.seed)
    told = data if plan.captioned or plan.labelled else None
    for source, model, item in places:
        count = splits.size(source, item.name, query.roles)
        if not count:
            continue
        known = splits.digest(source, item.name, query.roles)
        selection = Selection(splits.folder, drawn, query.roles, count, known)
        if first is not None:
            classes, rows = selection.classes(source, item.name), splits.shard(source, item.name)
            asked = set(rows["key"].filter(pa.array(first.among(rows))).to_pylist())
            some = {key: label for key, label in classes.items() if key in asked}
            selection = Selection.given_as(some, splits.folder, drawn)
        if selection.count:
            yield ShardJob(folder, query, source, model, item, selection, query.chunk, decoder, told)


def looked_up(jobs: Sequence[ShardJob]) -> list[ShardJob]:
    """The jobs with the chunks that are done, which are to be skipped."""
    there = storage.existing(job.path(epoch, 0) for job in jobs for epoch in job.query.epochs)

    def done(job: ShardJob) -> frozenset[int]:
        return frozenset(chunk for chunk in range(job.chunks) if there.issuperset(job.paths(chunk)))

    return [replace(job, skip=done(job)) for job in jobs]


def orders_of(jobs: Iterable[ShardJob]) -> Iterator[ReadOrder]:
    """One order per shard for several jobs: reading a shard costs the same however few samples are needed.

    Jobs that ask for the same samples share their chunks.
    """
    for shares in shared(jobs):
        first = shares[0][0]
        yield ReadOrder(first.source, first.reader, first.item, tuple(map(_share, shares)))


def shared(jobs: Iterable[ShardJob]) -> Iterator[list[list[ShardJob]]]:
    """The jobs of every order; those in one list share chunks of images."""
    by_shard: dict[tuple[str, str, str], dict[tuple[object, ...], list[ShardJob]]] = {}
    for job in jobs:
        by_shard.setdefault(job.place, {}).setdefault(job.company, []).append(job)
    for companies in by_shard.values():
        shares = [
            company[start : start + TOGETHER]
            for company in companies.values()
            for start in range(0, len(company), TOGETHER)
        ]
        for start in range(0, len(shares), SHARES):
            yield shares[start : start + SHARES]


def _share(jobs: Sequence[ShardJob]) -> Share:
    """The share of a shard that some jobs read together."""
    first, plan = jobs[0], jobs[0].query.plan()
    return Share(
        tuple(job.packed() for job in jobs),
        tuple(job.skip for job in jobs),
        first.selection,
        first.chunk,
        first.decoder,
        first.data if plan.captioned else None,
        plan.labelled,
    )
