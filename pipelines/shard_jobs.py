"""Which features stand in which files: one Parquet file per shard, before that per chunk, and reading them back.

File names are a function of the work: encoder, checkpoint, source, shard, and a tag that hashes what was computed
for which samples. So what is there is done, what is missing is to do, and writing twice changes nothing.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from mi_core.extraction import QueryPlan
from mi_core.features import consumes
from mi_core.features.sequential import StoppingRule
from mi_core.images import Decoder
from mi_core.records import Features
from pipelines import storage
from pipelines.artifacts import SeedFolder, digest
from pipelines.captions import made_caption
from pipelines.demands import demands_of
from pipelines.errors import UserError
from pipelines.layers import SEQUENTIAL, Demand, Layer, Recipe, Stopping, layers_of
from pipelines.readers import Share
from pipelines.samples import Item
from pipelines.sources import Source, SourceConfig
from pipelines.splits import Splits

if TYPE_CHECKING:
    from pipelines.config import RunConfig

ATTEMPTS = 5  # at a chunk in one session, at most: what is left of it then is committed as crashed
Begun = tuple[int, int]
"""Markers of a chunk, and deaths of workers that they prove."""
Place = tuple[str, SourceConfig, Item]
"""A shard: the name of its source, the source, and which of its items."""


@dataclass(frozen=True)
class ShardJob:
    """One shard for one layer: the unit that is planned and compacted. Plain data; a function of the config alone."""

    folder: SeedFolder
    layer: Layer
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

    @property
    def queries(self) -> int:
        """What is asked of the encoder for the chunks that are not skipped, over all checkpoints, at most."""
        return self.queries_of(self.images)

    @property
    def images(self) -> int:
        """Images of the chunks that are not skipped."""
        return sum(self.size(chunk) for chunk in range(self.chunks) if chunk not in self.skip)

    def queries_of(self, images: int) -> int:
        """What some of its images ask of the encoder, over all checkpoints, at most."""
        return images * self.layer.queries_per_image

    @property
    def plan(self) -> QueryPlan:
        """What is asked per image, and until when."""
        return replace(self.layer.plan(), rule=self.rule)

    @property
    def rule_path(self) -> str:
        """File of the rule that stops the asking: it is fitted once, before the first query."""
        return f"{self.folder.path}/features/{self.layer.encoder}/rules/{self.layer.tag}.json"

    def size(self, chunk: int) -> int:
        """Images of a chunk."""
        return min(self.chunk, len(self.wanted) - chunk * self.chunk)

    @property
    def chunks(self) -> int:
        """Number of chunks of the shard."""
        return -(-len(self.wanted) // self.chunk)

    @property
    def identity(self) -> str:
        """What two jobs share that compute the same: encoders, images, views and needs, not the folder."""
        shard = [self.source, self.reader.model_dump(mode="json"), self.item.name]
        return digest(self.tag, shard, sorted((self.captions or {}).items()), sorted((self.labels or {}).items()))

    def joined(self, before: ShardJob | None) -> ShardJob:
        """The job that computes this one and one of the same identity: of the other's folder, at the epochs of both."""
        if before is None:
            return self
        return replace(
            before,
            layer=replace(before.layer, epochs=tuple(sorted({*before.layer.epochs, *self.layer.epochs}))),
        )

    def path(self, epoch: int, chunk: int | None = None) -> str:
        """File of one chunk, or of the compacted shard."""
        suffix = "" if chunk is None else f"-{chunk:05d}"
        folder = f"{self.folder.features(self.layer.encoder, epoch)}/{self.source}"
        return f"{folder}/{self.item.name}.{self.tag}{suffix}.parquet"

    @cached_property
    def tag(self) -> str:
        """The layer and the selection of samples: another selection never meets these files."""
        return digest(self.layer.tag, list(self.wanted), self.chunk)[:12]

    def share(self) -> Share:
        """What the reader has to find and to skip."""
        bare = replace(self, captions=None)
        return Share(pickle.dumps(bare), frozenset(self.wanted), self.chunk, self.skip, self.captions)

    @property
    def rejected_path(self) -> str:
        """File that lists the rejected samples, if there are any."""
        return f"{self.path(self.layer.epochs[0]).removesuffix('.parquet')}.rejected.json"


def load_features(
    config: RunConfig,
    folder: SeedFolder,
    encoder: str,
    epoch: int,
    output: str,
    needs: Sequence[str],
    roles: Sequence[str],
    recipe: Recipe | None = None,
    *,
    crafter: str | None = None,
    count: int | None = None,
    stopping: Stopping | None = None,
    without: Sequence[str] = (),
) -> Features:
    """Committed features of some roles, in the order of the splits; rejected samples are left out and counted.

    Args:
        recipe: of the views, for needs that consume views.
        crafter: encoder that images were crafted on, for needs that consume such.
        count: samples of each role, by rank of a hash; None: all.
        stopping: what decided when to stop asking for views, for the need that such a decision makes.
        without: roles whose samples are left out.

    Raises:
        UserError: features are missing (extraction has not finished).
    """
    splits = Splits.load(folder.path)
    wanted = splits.ids(roles)
    if count is not None:
        chosen = set(splits.first(roles, count, folder.seed))
        wanted = [name for name in wanted if name in chosen]
    left_out = set(splits.ids(without))
    wanted = [name for name in wanted if name not in left_out]
    asked = set(wanted)
    columns: dict[str, dict[str, Any]] = {need: {} for need in needs}
    rejected: set[str] = set()
    demands = [demand for demand in demands_of(config) if demand.encoder == encoder and output in demand.outputs]
    for job in (job for demand in demands for job in shard_jobs(demand, config, folder)):
        present = [
            need
            for need in needs
            if need in job.layer.needs
            and (consumes(need) != "views" or job.layer.recipe == recipe)
            and (consumes(need) != "adversarial" or job.layer.crafter == crafter)
            and (need != SEQUENTIAL or job.layer.stopping == stopping)
        ]
        if not present or asked.isdisjoint(f"{job.source}/{key}" for key in job.wanted):
            continue
        path = job.path(epoch)
        if not storage.exists(path):
            raise UserError(f"{path} is missing; run the extract stage first")
        table = storage.read_table(path)
        ids = [f"{job.source}/{key}" for key in table["key"].to_pylist()]
        good = [name for name, status in zip(ids, table["status"].to_pylist(), strict=True) if status == "ok"]
        rejected |= set(ids) - set(good)
        for need in present:
            columns[need].update(zip(good, _matrix(table[f"{output}.{need}"]), strict=True))
    kept = [name for name in wanted if name not in rejected]
    lost = [name for need in needs for name in kept if name not in columns[need]]
    if lost:
        raise UserError(f"features of {encoder} miss {len(lost)} samples, first {lost[0]}; run the extract stage")
    return Features(
        np.array(kept, dtype=np.str_),
        {need: np.stack([rows[name] for name in kept]) for need, rows in columns.items()},
    )


def places_of(config: RunConfig) -> list[Place]:
    """All shards of all sources, in a fixed order."""
    return [(source, model, item) for source, model in config.data.sources.items() for item in Source(model).items()]


def shard_jobs(demand: Demand, config: RunConfig, folder: SeedFolder, *, plan: bool = False) -> Iterator[ShardJob]:
    """All (layer, shard) pairs of one demand, in a fixed order; with ``plan``, what none covers is planned first."""
    places = places_of(config)
    for layer in layers_of(demand, config, folder, plan=plan):
        yield from jobs_of(layer, config, folder, places)


def jobs_of(layer: Layer, config: RunConfig, folder: SeedFolder, places: Iterable[Place]) -> Iterator[ShardJob]:
    """The jobs of one layer on some shards; none where a shard holds no sample that is wanted."""
    splits, decoder, plan = Splits.load(folder.path), config.data.decoder(), layer.plan()
    first = None if layer.count is None else set(splits.first(layer.roles, layer.count, folder.seed))
    for source, model, item in places:
        classes = splits.classes(source, item.name, layer.roles)
        for key in splits.keys(source, item.name, layer.without) if layer.without else ():
            classes.pop(key, None)
        if first is not None:
            classes = {key: label for key, label in classes.items() if f"{source}/{key}" in first}
        if not classes:
            continue
        job = ShardJob(folder, layer, source, model, item, tuple(classes), config.queries.chunk, decoder)
        made, known = None, None
        if plan.captioned:
            made = {key: made_caption(config.data, source, key, label) for key, label in classes.items()}
        if plan.labelled:
            known = {key: known_label(f"{source}/{key}", label) for key, label in classes.items()}
        yield replace(job, captions=made, labels=known)


def known_label(name: str, label: int | None) -> int:
    """A label. Raises UserError: there is none; the sample is named."""
    if label is None:
        raise UserError(f"{name} has no class, which attacks on classifiers need; give labelled data, or data.label")
    return label


def rejected_samples(config: RunConfig, folder: SeedFolder) -> list[dict[str, str]]:
    """Samples of one seed that could not be queried: source, shard, key and reason, each once."""
    paths = [job.rejected_path for demand in demands_of(config) for job in shard_jobs(demand, config, folder)]
    there = listed(paths)
    entries = [entry for path in dict.fromkeys(paths) if path in there for entry in storage.read_json(path)]
    return list({tuple(entry.values()): entry for entry in entries}.values())


def listed(paths: Iterable[str]) -> set[str]:
    """What stands in the folders of some files; each folder is listed once."""
    folders = {path.rpartition("/")[0] for path in paths}
    return {path for folder in folders for path in storage.list_files(folder, recursive=False)}


def remaining(jobs: Sequence[ShardJob]) -> list[ShardJob]:
    """Those of some jobs whose shards are not complete, with the chunks to skip."""
    there = listed(job.path(epoch) for job in jobs for epoch in job.layer.epochs)

    def done(job: ShardJob, chunk: int | None = None) -> bool:
        return all(job.path(epoch, chunk) in there for epoch in job.layer.epochs)

    return [
        replace(job, skip=frozenset(chunk for chunk in range(job.chunks) if done(job, chunk)))
        for job in jobs
        if not done(job)
    ]


def share_features(done: ShardJob, job: ShardJob) -> None:
    """Copy the features of a shard to another run that asks for the same ones."""
    pairs = [(done.path(epoch), job.path(epoch)) for epoch in job.layer.epochs]
    for source, target in [(done.rejected_path, job.rejected_path), *pairs]:
        if source != target and storage.exists(source) and not storage.exists(target):
            storage.copy(source, target)


def sample_table(keys: list[str], status: list[str], columns: dict[str, np.ndarray]) -> pa.Table:
    """One row per sample, in order; rejected samples have a status and null measurements."""
    rows = np.flatnonzero([state == "ok" for state in status])
    arrays: dict[str, pa.Array] = {
        "key": pa.array(keys, pa.string()),
        "status": pa.array(status, pa.string()),
    }
    take = np.full(len(keys), -1)
    take[rows] = np.arange(len(rows))
    indices = pa.array(take, mask=take < 0)
    for name, values in columns.items():
        flat = pa.array(np.ascontiguousarray(values, dtype=np.float32).reshape(-1), pa.float32())
        whole = flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, math.prod(values.shape[1:]))
        arrays[name] = whole.take(indices)
    return pa.table(arrays)


def _matrix(column: pa.ChunkedArray) -> np.ndarray:
    """Measurements of the samples that have them: (N,) or (N, width) float32."""
    present = column.drop_null().combine_chunks()
    if pa.types.is_fixed_size_list(column.type):
        return np.asarray(present.flatten()).reshape(len(present), column.type.list_size)
    return np.asarray(present)
