"""The times of a few shards of every source, of a few chunks of queries and of a few optimiser steps.

All run in the processes, and with the resources, that the run uses for them. Every source is sampled by itself, so a
rare or expensive one counts with its own times. Speed does not depend on weights: encoders still to be trained are
timed with fresh ones. Encoders of the same architecture with the same queries are timed once.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import torch

from mi_core.augmentations.views import clean
from mi_core.costs import NOTHING, Range, rate, total, total_of_groups
from mi_core.images import decode
from mi_core.objectives import OBJECTIVES
from mi_core.runtime import keep_freed_memory, prepare_cuda
from mi_core.training.data import ResidentImages
from mi_core.training.loop import Pretrainer, objective_parameters
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.limits import ResourcesConfig
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.columns import ATTRIBUTE
from pipelines.data.look import SHARDS, evenly
from pipelines.data.read.key_lists import size_of
from pipelines.data.read.samples import Portion, Problem
from pipelines.data.read.shard_paths import sampled
from pipelines.data.read.sources import Source
from pipelines.data.scan.scan import usable
from pipelines.errors import UserError
from pipelines.estimate.outline import RoleSizes, Stated, TimeChunks, TimedPass, Training, stand_in
from pipelines.extract import bank
from pipelines.extract.actor.worker import STEPS
from pipelines.extract.division.jobs import ShardJob, orders_of
from pipelines.extract.division.passes import CHUNK
from pipelines.extract.division.readers import Selection, read_chunks
from pipelines.files import many, storage
from pipelines.run.points import Run
from pipelines.run.ray_session import TASK_MEMORY, borne, decoding_threads, encoder_actors, mapped, trainings_at_once

SECONDS = 20.0  # for one kind of queries over all its shards, or of training
DECODED = 256  # images of a shard, at most
CHUNKS = 3  # of a shard
OPTIMISED = 8  # steps of a training worker, at most
SHARED = STEPS[:2]  # decoding and views, which all checkpoints share


@dataclass(frozen=True)
class Shard:
    """One shard: its images, seconds to stream them and to decode the first, and the classes of these by key."""

    item: Portion
    images: int
    streaming: float
    decoding: float
    labels: Mapping[str, int | None]


@dataclass(frozen=True)
class SourceSample:
    """A source: images, seconds to stream one, seconds to stream, decode and hash one, and some usable shards."""

    size: Range
    streaming: Range
    scanning: Range
    shards: Sequence[Shard]

    @classmethod
    def from_shards(cls, name: str, items: Sequence[Portion], shards: Sequence[Shard]) -> SourceSample:
        """The sample of some shards. Raises UserError: none holds a usable image."""
        good = [shard for shard in shards if shard.labels]
        if not good:
            names = ", ".join(shard.item.name for shard in shards)
            raise UserError(f"data.sources.{name}: no usable image in the shards looked at ({names})")
        listed = [item.count for item in items if item.count is not None]
        counted = total_of_groups([shard.images for shard in shards], len(items))
        return cls(
            Range.exact(sum(listed)) if len(listed) == len(items) else counted,
            rate([shard.streaming for shard in good], [shard.images for shard in good]),
            rate([shard.decoding for shard in good], [len(shard.labels) for shard in good]),
            good,
        )

    def share(self, classes: Sequence[int] | None, among: Sequence[int] | None = None) -> Range:
        """The share of the images of some classes that are in others; None: all."""
        if classes is None:
            return Range.exact(1.0)
        groups = [[one for one in shard.labels.values() if among is None or one in among] for shard in self.shards]
        pairs = [(sum(one in classes for one in labels), len(labels)) for labels in groups if labels]
        return rate(*zip(*pairs, strict=True)) if pairs else NOTHING


Samples = Mapping[tuple[str, str], SourceSample]
"""Samples of sources by name and settings, which may change over a sweep: see `key`."""


def key(name: str, source: SourceConfig) -> tuple[str, str]:
    """A source among samples."""
    return name, source.model_dump_json()


def sample_sources(runs: Sequence[Run]) -> Samples:
    """Look at some shards of every source, as Ray tasks. Raises UserError: a source cannot be read."""
    every = [config.data for config, _ in runs]
    sources = {key(name, source): (name, source, data) for data in every for name, source in data.sources.items()}
    items = {of: sampled(Source(source).items(), name, data.shards) for of, (name, source, data) in sources.items()}
    work = [(of, item) for of in sources for item in evenly(items[of])]
    shards = mapped(sample_shard, [(*sources[of], item) for of, item in work], "shards", "looking at some shards")
    pairs = list(zip(work, shards, strict=True))
    of_source = {of: [shard for (its, _), shard in pairs if its == of] for of in sources}
    return {of: SourceSample.from_shards(of[0], items[of], some) for of, some in of_source.items()}


def sample_shard(name: str, source: SourceConfig, data: DataConfig, item: Portion) -> Shard:
    """Stream one shard whole, then decode and hash its first images."""
    read = data.decoder(), data.attributes_in(name), data.group_by, data.near_duplicates is not None
    next(Source(source).scan(item), None)  # opens the source
    started = time.perf_counter()
    images = sum(1 for _ in Source(source).scan(item))
    streamed = time.perf_counter()
    some = list(islice(usable(source, item, *read), DECODED))
    decoding = time.perf_counter() - streamed
    labels = {
        sample.key: sample.label if data.label is None else known[f"{ATTRIBUTE}{data.label}"]
        for sample, _, _, known in (found for found in some if not isinstance(found, Problem))
    }
    return Shard(item, images, streamed - started, decoding, labels)


def sizes_of(data: DataConfig, samples: Samples) -> RoleSizes:
    """Images of every role and part. Broken and double images count: only drawing the roles finds them."""
    sizes: dict[str, Range] = {}
    for name, role in sorted(data.roles.items(), key=lambda named: named[1].source_name not in data.sources):
        if role.count is not None or role.keys is not None:
            sizes[name] = Range.exact(role.count or size_of(str(role.keys), role.key_column))
            continue
        parent = data.roles.get(role.source_name)
        origin = role.source_name if parent is None else parent.source_name
        sample = samples[key(origin, data.sources[origin])]
        whole, among = (sample.size, None) if parent is None else (sizes[role.source_name], parent.classes)
        sizes[name] = whole * sample.share(role.classes, among) * (role.fraction or 1.0)
    return sizes


class Chunk(NamedTuple):
    """One timed chunk of one checkpoint: its images, seconds by step and what is stored."""

    source: str
    images: int
    seconds: Mapping[str, float]
    table: pa.Table


@dataclass(frozen=True)
class QueryCost:
    """The cost of one kind of queries per image and checkpoint: seconds by source and step, and stored bytes.

    ``chunks`` of at most ``batch`` images were timed.
    """

    name: str
    seconds: Mapping[str, Mapping[str, Range]]
    bytes: float
    chunks: int
    batch: int

    @classmethod
    def from_chunks(cls, name: str, chunks: Sequence[Chunk], most: int = CHUNK) -> QueryCost:
        """The cost that some chunks show; ``most``: images that the run has in a file."""
        seconds: dict[str, dict[str, Range]] = {}
        for source in sorted({one.source for one in chunks}):
            some = [one for one in chunks if one.source == source]
            images = [one.images for one in some]
            seconds[source] = {step: rate([one.seconds[step] for one in some], images) for step in STEPS}
        stored = pa.concat_tables([one.table for one in chunks])[:most]
        each = len(storage.table_bytes(stored)) / len(stored)
        return cls(name, seconds, each, len(chunks), max(one.images for one in chunks))

    def per_image(self, source: str, checkpoints: int, shares: Mapping[str, float] | None = None) -> Range:
        """Seconds of an actor per image of a source, over some checkpoints.

        Args:
            source: of the images.
            checkpoints: of the encoder.
            shares: of the steps that all checkpoints share, the part that is for this encoder; None: they are its own.
        """
        once = dict.fromkeys(SHARED, 1.0) | dict(shares or {})
        times = {step: once.get(step, checkpoints) for step in STEPS}
        return total(self.seconds[source][step] * n for step, n in times.items())


@dataclass(frozen=True)
class TrainingCost:
    """Seconds of one worker per image and epoch; how many steps of how many images were timed."""

    name: str
    per_image: Range
    steps: int
    batch: int


def time_queries(
    passes: Sequence[TimedPass], resources: ResourcesConfig, samples: Samples, seconds: float
) -> dict[str, QueryCost]:
    """Time every kind of queries for about some seconds, in encoder actors as a run has them; costs by kind.

    Raises:
        UserError: a source has no usable image in the shards looked at, or an encoder fails on one.
    """
    kinds: dict[str, dict[str, TimedPass]] = {}
    for one in passes:
        kinds.setdefault(one.kind, {}).setdefault(one.job.source, one)
    with _actors({name: encoder for one in passes for name, encoder in one.encoders.items()}, resources) as actors:
        return {kind: _time_kind(list(of.values()), samples, actors, seconds) for kind, of in kinds.items()}


@contextmanager
def _actors(stated: Stated, resources: ResourcesConfig) -> Iterator[list[Any]]:
    """Some encoder actors with stand-ins for the encoders."""
    import ray

    remote = ray.remote(num_cpus=resources.actor_cpus, num_gpus=resources.gpus_per_actor, memory=borne(TASK_MEMORY))(
        TimeChunks
    )
    number, settings = min(encoder_actors(resources), SHARDS), {"gpus": resources.gpus_per_actor}
    actors = [remote.remote(stated, threads=decoding_threads(resources), **settings) for _ in range(number)]
    try:
        yield actors
    finally:
        for actor in actors:
            ray.kill(actor)


def _time_kind(passes: Sequence[TimedPass], samples: Samples, actors: Sequence[Any], seconds: float) -> QueryCost:
    """Time chunks of a few shards of every source, as large as the time allows; there is one pass per source."""
    first, stated = bank.with_noise(passes[0].job), passes[0].encoders
    work = [
        _on_shard(replace(first, source=one.job.source, reader=one.job.reader), stated, shard)
        for one in passes
        for shard in samples[key(one.job.source, one.job.reader)].shards[: max(1, SHARDS // len(passes))]
    ]
    _ask(actors, [_chunk(work[0], number, 1) for number in range(len(actors))])  # loads the encoder
    single = [sum(chunk.seconds.values()) for chunk in _ask(actors, [_chunk(job, 0, 1) for job in work])]
    allowed = [seconds * min(1.0, len(actors) / len(work)) / CHUNKS / took for took in single]
    sizes = [
        max(1, min(job.chunk, int(most), job.selection.count // CHUNKS))
        for job, most in zip(work, allowed, strict=True)
    ]
    rounds = [[_chunk(job, n, size) for job, size in zip(work, sizes, strict=True)] for n in range(CHUNKS)]
    chunks = [chunk for some in rounds for chunk in _ask(actors, some)]
    return QueryCost.from_chunks(f"{first.encoder}: {', '.join(first.query.plan().sets)}", chunks, first.chunk)


def _on_shard(job: ShardJob, stated: Stated, shard: Shard) -> ShardJob:
    """A job for the first images of one shard, of one checkpoint.

    Where an attack searches for the boundary of a class, the class is the encoder's own answer: the search then does
    all of its work.
    """
    wanted = list(shard.labels)[: CHUNKS * job.chunk]
    query = replace(job.query, epochs=job.query.epochs[-1:])
    classes: dict[str, int | None] = {key: shard.labels[key] for key in wanted}
    if query.plan().labelled:
        encoder = stand_in(*stated[job.folder.path, job.encoder])
        for sample in Source(job.reader).read(shard.item, set(wanted)):
            pixels = torch.tensor(decode(sample.image, job.decoder))[None]
            with torch.inference_mode():
                classes[sample.key] = int(encoder(clean(pixels))["logits"].argmax())
    return replace(job, item=shard.item, selection=Selection.given_as(classes), query=query)


def _chunk(job: ShardJob, number: int, size: int) -> ShardJob:
    """The job for one chunk of its images."""
    classes = list((job.selection.given or {}).items())
    start = number * size % len(classes)
    some = dict(classes[start : start + size])
    return replace(job, selection=Selection.given_as(some), chunk=len(some))


def _ask(actors: Sequence[Any], jobs: Sequence[ShardJob]) -> list[Chunk]:
    """Let actors work side by side on jobs of one chunk. Raises UserError: an encoder fails."""
    import ray

    orders = [pickle.dumps(order) for job in jobs for order in orders_of([job])]
    rows = [row for order in orders for row in read_chunks(pa.table({"order": [order]}))]
    pending = [actors[n % len(actors)].__call__.remote(row) for n, row in enumerate(rows)]
    chunks = []
    for job, receipts in zip(jobs, ray.get(pending), strict=True):
        (receipt,) = receipts.to_pylist()
        if receipt["error"]:
            raise UserError(receipt["error"])
        many.remove_files(receipt["markers"])
        seconds = {name: receipt[name] for name in STEPS}
        chunks.append(Chunk(job.source, receipt["rows"], seconds, storage.read_table(job.path(job.query.epochs[0], 0))))
    return chunks


def side_by_side(trainings: Sequence[Training], resources: ResourcesConfig) -> int:
    """Encoders that are trained at a time; one at least."""
    return max(1, min(trainings_at_once(resources), len(trainings)))


def time_trainings(
    trainings: Sequence[Training], resources: ResourcesConfig, seconds: float
) -> dict[str, TrainingCost]:
    """Time optimiser steps of every kind of training for about some seconds, but one at least; costs by kind.

    As many processes as in the run train side by side, each an encoder of its own.

    Raises:
        ConfigError: an objective does not fit batch or backbone.
    """
    found: dict[str, TrainingCost] = {}
    cpus, gpus = resources.train_cpus, resources.train_gpus
    for kind, one in {one.kind: one for one in reversed(trainings)}.items():
        size = max(2, one.settings.batch_size // resources.train_workers)
        given = [(one, size, resources, seconds)] * (side_by_side(trainings, resources) * resources.train_workers)
        timed = mapped(time_steps, given, "workers", "timing training", cpus=cpus, gpus=gpus)
        steps = [took for of_worker in timed for took in of_worker]
        found[kind] = TrainingCost(one.encoder.name, rate(steps, [size] * len(steps)), len(steps), size)
    return found


def time_steps(one: Training, size: int, resources: ResourcesConfig, seconds: float) -> list[float]:
    """Seconds of some optimiser steps on a batch of noise, after one that warms up."""
    torch.set_num_threads(max(1, int(resources.train_cpus)))
    device = "cuda" if resources.train_gpus else "cpu"
    keep_freed_memory() if device == "cpu" else prepare_cuda()
    settings, source = one.settings, one.data
    parameters = settings.pretraining()
    objective = OBJECTIVES[parameters.objective]
    labels, captions = [row % 2 for row in range(size)], ["a picture"] * size
    targets = objective.encode_targets(objective_parameters(parameters), labels, captions)
    pixels = torch.randint(256, (size, source.channels, source.image_size, source.image_size), dtype=torch.uint8)
    names = [("noise", str(row)) for row in range(size)]
    data = ResidentImages(pixels, names, targets, batch_size=size, seed=0, device=device)
    data.count = round(one.images.value)  # some objectives need more images than one batch
    trainer = Pretrainer(data, settings.views(), replace(parameters, batch_size=size), seed=0, device=device)
    data.count = size
    trainer.trained.train()
    ticks = [time.perf_counter()]
    while len(ticks) < 3 or (len(ticks) < OPTIMISED + 2 and time.perf_counter() - ticks[0] < seconds):
        for drawn in trainer.view_batches():  # one batch
            float(trainer.train_views(*drawn, 0))  # a number on the host: the device is done
        ticks.append(time.perf_counter())
    return [end - start for start, end in pairwise(ticks[1:])]
