"""Split a pass into jobs, one per shard, and find the jobs that remain.

A feature file is named by its content: encoder, checkpoint, source, shard, and a tag that hashes the features and the
samples. So a file that exists is done, a missing file is to do, and writing a file twice changes nothing.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from mi_core.features.sequential import StoppingRule
from mi_core.images import Decoder
from mi_core.querying.plan import QueryPlan
from pipelines.config.run_config import RunConfig
from pipelines.config.sources import SourceConfig
from pipelines.data.captions import made_caption
from pipelines.data.samples import Item
from pipelines.data.sources import Source
from pipelines.data.splits import Splits, known_label
from pipelines.extract.passes import FeatureFile, QueryPass
from pipelines.extract.readers import Share
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.run.folder import SeedFolder

ATTEMPTS = 5  # at a chunk in one session; samples left after that are committed as crashed
Begun = tuple[int, int]
"""Markers of a chunk, and deaths of workers that they prove."""
Place = tuple[str, SourceConfig, Item]
"""A shard: the name of its source, the source, and which of its items."""


class Bare(NamedTuple):
    """What is left of the keys of a job in the row of a chunk, which carries none: their tag and their number."""

    tag: str
    images: int


@dataclass(frozen=True)
class ShardJob:
    """One shard of one pass: the unit of planning and compaction. Plain data that depends on the config alone."""

    folder: SeedFolder
    query: QueryPass
    source: str
    reader: SourceConfig
    item: Item
    wanted: tuple[str, ...]
    chunk: int
    decoder: Decoder
    skip: frozenset[int] = frozenset()
    captions: Mapping[str, str] | None = None
    labels: Mapping[str, int] | None = None
    attempts: int = ATTEMPTS
    begun: Mapping[int, Begun] = field(default_factory=dict)
    session: str = ""
    rule: StoppingRule | None = None
    bare: Bare | None = None

    @property
    def encoder(self) -> str:
        """The encoder to query."""
        return self.query.asking.encoder

    @property
    def queries(self) -> int:
        """Queries for the chunks not skipped, over all checkpoints; an upper bound if a rule stops early."""
        return self.queries_of(self.images)

    @property
    def images(self) -> int:
        """Images in the chunks not skipped."""
        return sum(self.size(chunk) for chunk in range(self.chunks) if chunk not in self.skip)

    def queries_of(self, images: int) -> int:
        """Queries for a number of images, over all checkpoints; an upper bound if a rule stops early."""
        return images * self.query.queries_per_image

    @property
    def plan(self) -> QueryPlan:
        """The queries per image, and the rule that stops them."""
        return replace(self.query.plan(), rule=self.rule)

    @property
    def rule_path(self) -> str:
        """File of the stopping rule, which is fitted once before the first query."""
        return f"{self.folder.path}/features/{self.encoder}/rules/{self.query.tag}.json"

    def size(self, chunk: int) -> int:
        """Images of a chunk."""
        return min(self.chunk, self.count - chunk * self.chunk)

    @property
    def chunks(self) -> int:
        """Number of chunks of the shard."""
        return -(-self.count // self.chunk)

    @property
    def count(self) -> int:
        """Images of the shard."""
        return len(self.wanted) if self.bare is None else self.bare.images

    @property
    def identity(self) -> str:
        """A digest that two jobs share if they compute the same features, whatever their folders."""
        shard = [self.source, self.reader.model_dump(mode="json"), self.item.name]
        return digest(self.tag, shard, sorted((self.captions or {}).items()), sorted((self.labels or {}).items()))

    def joined(self, before: ShardJob | None) -> ShardJob:
        """The job that also computes ``before``, of the same identity: in its folder, at the epochs of both."""
        if before is None:
            return self
        return replace(
            before,
            query=replace(before.query, epochs=tuple(sorted({*before.query.epochs, *self.query.epochs}))),
        )

    @property
    def file(self) -> FeatureFile:
        """The file of the shard."""
        return FeatureFile(self.source, self.item.name, self.tag)

    def path(self, epoch: int, chunk: int | None = None) -> str:
        """File of one chunk, or of the compacted shard."""
        return self.file.path(self.folder, self.encoder, epoch, chunk)

    @cached_property
    def tag(self) -> str:
        """A digest of the pass and its samples, so that another selection has other files."""
        return digest(self.query.tag, list(self.wanted), self.chunk)[:12] if self.bare is None else self.bare.tag

    def share(self) -> Share:
        """The keys to read and the chunks to skip."""
        bare = replace(self, wanted=(), skip=frozenset(), captions=None, labels=None, bare=Bare(self.tag, self.count))
        return Share(pickle.dumps(bare), frozenset(self.wanted), self.chunk, self.skip, self.captions, self.labels)

    @property
    def rejected_path(self) -> str:
        """File that lists the rejected samples, if there are any."""
        return self.file.rejected_path(self.folder, self.encoder, self.query.epochs[0])


def places_of(config: RunConfig) -> list[Place]:
    """All shards of all sources, in a fixed order."""
    return [(source, model, item) for source, model in config.data.sources.items() for item in Source(model).items()]


def jobs_of(query: QueryPass, config: RunConfig, folder: SeedFolder, places: Iterable[Place]) -> Iterator[ShardJob]:
    """The jobs of one pass on some shards; a shard without a wanted sample has no job."""
    splits, decoder, plan = Splits.load(folder.path), config.data.decoder(), query.plan()
    asking = query.asking
    first = None if asking.count is None else set(splits.first(query.roles, asking.count, folder.seed))
    for source, model, item in places:
        classes = splits.classes(source, item.name, query.roles)
        for key in splits.keys(source, item.name, asking.without) if asking.without else ():
            classes.pop(key, None)
        if first is not None:
            classes = {key: label for key, label in classes.items() if f"{source}/{key}" in first}
        if not classes:
            continue
        job = ShardJob(folder, query, source, model, item, tuple(classes), config.queries.chunk, decoder)
        made, known = None, None
        if plan.captioned:
            made = {key: made_caption(config.data, source, key, label) for key, label in classes.items()}
        if plan.labelled:
            known = {key: known_label(f"{source}/{key}", label) for key, label in classes.items()}
        yield replace(job, captions=made, labels=known)


def remaining(jobs: Sequence[ShardJob]) -> list[ShardJob]:
    """Keep the jobs whose shards are incomplete, with the chunks to skip."""
    there = storage.existing(job.path(epoch) for job in jobs for epoch in job.query.epochs)

    def done(job: ShardJob, chunk: int | None = None) -> bool:
        return all(job.path(epoch, chunk) in there for epoch in job.query.epochs)

    return [
        replace(job, skip=frozenset(chunk for chunk in range(job.chunks) if done(job, chunk)))
        for job in jobs
        if not done(job)
    ]
