"""The time of a few chunks of queries and of a few optimiser steps, in the processes that a run uses for them.

Speed does not depend on weights, so encoders that are still to be trained are timed with fresh ones. Encoders of the
same architecture with the same queries are timed once.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import torch

from mi_core.augmentations.views import clean
from mi_core.costs import Range, rate
from mi_core.images import decode
from mi_core.objectives import OBJECTIVES
from mi_core.runtime import keep_freed_memory
from mi_core.training.data import ResidentImages
from mi_core.training.loop import Pretrainer, objective_parameters
from pipelines.config.data import DataConfig
from pipelines.config.limits import ResourcesConfig
from pipelines.config.run_config import RunConfig
from pipelines.data.captions import made_caption
from pipelines.data.sources import Source
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.estimate.outline import Pass, Training, lay_weights
from pipelines.estimate.shards import SHARDS, Samples, ShardSample, source_key
from pipelines.extract.jobs import ShardJob
from pipelines.extract.readers import ReadOrder, read_chunks
from pipelines.extract.telemetry import STEPS
from pipelines.extract.worker import EncodeChunks
from pipelines.files import storage
from pipelines.run.ray_session import encoder_actors, mapped, trainings_at_once

SECONDS = 20.0  # for one kind of queries over all its shards, or of training
CHUNKS = 3  # of a shard
OPTIMISED = 8  # optimiser steps of a worker, at most
SHARED = STEPS[:2]  # decoding and views, which all checkpoints share


@dataclass(frozen=True)
class Chunk:
    """One timed chunk of one checkpoint: seconds by step; stored bytes that grow with its images, and all others."""

    source: str
    images: int
    seconds: Mapping[str, float]
    growing: int
    fixed: int


@dataclass(frozen=True)
class QueryCost:
    """The cost of one kind of queries; ``startup``: seconds until the actors had answered their first image."""

    name: str
    chunks: Sequence[Chunk]
    startup: float

    @property
    def batch(self) -> int:
        """Images of the largest chunk."""
        return max(chunk.images for chunk in self.chunks)

    @property
    def row_bytes(self) -> Range:
        """Stored bytes per image and checkpoint; a file has `file_bytes` besides."""
        return rate([chunk.growing for chunk in self.chunks], [chunk.images for chunk in self.chunks])

    @property
    def file_bytes(self) -> int:
        """Stored bytes of a file without images."""
        return max(chunk.fixed for chunk in self.chunks)

    def step(self, name: str) -> Range:
        """Seconds per image of one step, of one checkpoint."""
        return rate([chunk.seconds[name] for chunk in self.chunks], [chunk.images for chunk in self.chunks])

    def per_image(self, source: str, checkpoints: int) -> Range:
        """Seconds of an actor per image of a source, over some checkpoints."""
        chunks = [chunk for chunk in self.chunks if chunk.source == source]
        times = {name: 1 if name in SHARED else checkpoints for name in STEPS}
        took = [sum(chunk.seconds[name] * n for name, n in times.items()) for chunk in chunks]
        return rate(took, [chunk.images for chunk in chunks])


@dataclass(frozen=True)
class TrainingCost:
    """Seconds of one worker per image and epoch; how many steps of how many images were timed."""

    name: str
    per_image: Range
    steps: int
    batch: int


def time_queries(passes: Sequence[Pass], config: RunConfig, samples: Samples, seconds: float) -> dict[str, QueryCost]:
    """Time every kind of queries in as many encoder actors as a run has, one per shard at most.

    Args:
        passes: all queries of the run.
        config: of the run.
        samples: of its sources.
        seconds: to spend on a kind, about, after the actors have started.

    Returns:
        Costs by `Pass.kind`.

    Raises:
        UserError: a source has no usable image in the shards looked at, or an encoder fails on one.
    """
    import ray

    resources, kinds = config.resources, dict[str, dict[str, ShardJob]]()
    for one in passes:
        kinds.setdefault(one.kind, {}).setdefault(one.job.source, one.job)
    remote = ray.remote(num_cpus=resources.actor_cpus, num_gpus=resources.gpus_per_actor)(EncodeChunks)
    number = min(encoder_actors(resources), SHARDS)
    actors = [remote.remote(threads=resources.decoding_threads) for _ in range(number)]
    try:
        return {kind: _time_kind(list(of.values()), config, samples, actors, seconds) for kind, of in kinds.items()}
    finally:
        for actor in actors:
            ray.kill(actor)


def _time_kind(
    jobs: Sequence[ShardJob], config: RunConfig, samples: Samples, actors: Sequence[Any], seconds: float
) -> QueryCost:
    """Time some chunks of a few shards of every source, as large as the time allows; there is one job per source."""
    first = jobs[0]
    lay_weights(first)
    work = [
        _on_shard(replace(first, source=job.source, reader=job.reader), config.data, shard)
        for job in jobs
        for shard in samples[source_key(job.source, job.reader)].usable[: max(1, SHARDS // len(jobs))]
    ]
    started = time.perf_counter()
    _answers(actors, [_some(work[0], 0, 1)] * len(actors))  # loads the encoder
    startup = time.perf_counter() - started
    allowed = seconds * min(1.0, len(actors) / len(work)) / CHUNKS
    single = [sum(chunk.seconds.values()) for chunk in _answers(actors, [_some(job, 0, 1) for job in work])]
    sizes = [
        max(1, min(job.chunk, int(allowed / took), len(job.wanted) // CHUNKS))
        for job, took in zip(work, single, strict=True)
    ]
    rounds = [[_some(job, n, size) for job, size in zip(work, sizes, strict=True)] for n in range(CHUNKS)]
    chunks = [chunk for some in rounds for chunk in _answers(actors, some)]
    return QueryCost(f"{first.encoder}: {', '.join(first.query.plan().sets)}", chunks, startup)


def _on_shard(job: ShardJob, data: DataConfig, shard: ShardSample) -> ShardJob:
    """A job for the first images of one shard, of one checkpoint."""
    wanted = tuple(list(shard.labels)[: CHUNKS * job.chunk])
    captions = {key: made_caption(data, job.source, key, shard.labels[key]) for key in wanted}
    query = replace(job.query, epochs=job.query.epochs[-1:])
    job = replace(job, item=shard.item, wanted=wanted, query=query, captions=None if job.captions is None else captions)
    return job if job.labels is None else replace(job, labels=_own_answers(job))


def _own_answers(job: ShardJob) -> dict[str, int]:
    """The classes that the encoder itself gives: a search for its boundary then does all of its work."""
    encoder = describe(job.folder, job.encoder).load(job.query.epochs[0])
    found: dict[str, int] = {}
    for sample in Source(job.reader).read(job.item, set(job.wanted)):
        with torch.inference_mode():
            pixels = clean(torch.from_numpy(decode(sample.image, job.decoder))[None])
            found[sample.key] = int(encoder(pixels)["logits"].argmax())
    return found


def _some(job: ShardJob, number: int, size: int) -> ShardJob:
    """The job for one chunk of its images."""
    start = number * size % len(job.wanted)
    wanted = job.wanted[start : start + size]
    return replace(job, wanted=wanted, chunk=len(wanted))


def _answers(actors: Sequence[Any], jobs: Sequence[ShardJob]) -> list[Chunk]:
    """Let actors work side by side on jobs of one chunk. Raises UserError: an encoder fails."""
    import ray

    orders = [pickle.dumps(ReadOrder(job.source, job.reader, job.item, (job.share(),))) for job in jobs]
    rows = [row for order in orders for row in read_chunks(pa.table({"order": [order]}))]
    pending = [actors[n % len(actors)].__call__.remote(row) for n, row in enumerate(rows)]
    chunks = []
    for job, receipts in zip(jobs, ray.get(pending), strict=True):
        (receipt,) = receipts.to_pylist()
        if receipt["error"]:
            raise UserError(receipt["error"])
        table = storage.read_table(job.path(job.query.epochs[0], 0))
        fixed = len(storage.table_bytes(table.slice(0, 0)))
        growing = len(storage.table_bytes(table)) - fixed
        chunks.append(Chunk(job.source, len(table), {name: receipt[name] for name in STEPS}, growing, fixed))
    return chunks


def side_by_side(trainings: Sequence[Training], resources: ResourcesConfig) -> int:
    """Encoders that are trained at a time; one at least."""
    return max(1, min(trainings_at_once(resources), len(trainings)))


def time_trainings(
    trainings: Sequence[Training], resources: ResourcesConfig, seconds: float
) -> dict[str, TrainingCost]:
    """Time some optimiser steps of every kind of training, in as many processes as train side by side in the run.

    Args:
        trainings: of the run.
        resources: of the run; each process has those of a training worker, and trains an encoder of its own.
        seconds: to spend on a kind, about; one step is timed however long it takes.

    Returns:
        Costs by `Training.kind`.

    Raises:
        ConfigError: an objective does not fit batch or backbone.
    """
    found: dict[str, TrainingCost] = {}
    cpus, gpus = resources.train_cpus, resources.train_gpus
    for kind, one in {one.kind: one for one in reversed(trainings)}.items():
        size = max(2, one.job.config.batch_size // resources.train_workers)
        given = [(one, size, resources, seconds)] * (side_by_side(trainings, resources) * resources.train_workers)
        timed = mapped(time_steps, given, "workers", "timing training", cpus=cpus, gpus=gpus)
        steps = [took for of_worker in timed for took in of_worker]
        found[kind] = TrainingCost(one.job.name, rate(steps, [size] * len(steps)), len(steps), size)
    return found


def time_steps(one: Training, size: int, resources: ResourcesConfig, seconds: float) -> list[float]:
    """Seconds of some optimiser steps on a batch of noise, after one that warms up."""
    torch.set_num_threads(max(1, int(resources.train_cpus)))
    device = "cuda" if resources.train_gpus else "cpu"
    if device == "cpu":
        keep_freed_memory()
    job, parameters = one.job, one.job.config.pretraining()
    objective = OBJECTIVES[parameters.objective]
    labels, captions = [row % 2 for row in range(size)], ["a picture"] * size
    targets = objective.encode_targets(objective_parameters(parameters), labels, captions)
    pixels = torch.randint(256, (size, job.data.channels, job.data.image_size, job.data.image_size), dtype=torch.uint8)
    names = [("noise", str(row)) for row in range(size)]
    data = ResidentImages(pixels, names, targets, batch_size=size, seed=0, device=device)
    (batch,) = data.epoch(0)
    data.count = round(one.images.value)  # some objectives need more images than one batch
    trainer = Pretrainer(data, job.config.views(), replace(parameters, batch_size=size), seed=0, device=device)
    trainer.trained.train()
    ticks = [time.perf_counter()]
    while len(ticks) < 3 or (len(ticks) < OPTIMISED + 2 and time.perf_counter() - ticks[0] < seconds):
        float(trainer.train_batch(batch, 0))  # a number on the host: the device is done
        ticks.append(time.perf_counter())
    return [end - start for start, end in pairwise(ticks[1:])]
