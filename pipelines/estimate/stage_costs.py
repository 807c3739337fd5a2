"""From what was counted and what was timed to what each stage takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mi_core.costs import Quantity, total
from pipelines.config.limits import ResourcesConfig
from pipelines.data.splits import are_drawn
from pipelines.estimate.calibration import QueryCost, query_key
from pipelines.estimate.outline import Outline, Pass, Training
from pipelines.estimate.source_samples import Samples, SourceSample
from pipelines.estimate.training_calibration import TrainingCost, training_key
from pipelines.extract.run import READERS_PER_ACTOR, SHARES
from pipelines.pretrain.worker import streams
from pipelines.run.points import Run
from pipelines.run.ray_session import available_cpus, encoder_actors, trainings_at_once

HOUR = 3600.0
GIGABYTE = 1e9
NOTHING = Quantity(0.0)


@dataclass(frozen=True)
class StageCost:
    """What one stage takes: hours of reserved CPUs and GPUs, hours on the clock with the run's own resources."""

    images: Quantity
    cpu_hours: Quantity
    gpu_hours: Quantity
    wall_hours: Quantity
    queries: Quantity = NOTHING
    gigabytes: Quantity = NOTHING


@dataclass(frozen=True)
class Measured:
    """What was counted and timed: the outline, shards of the sources, costs by `query_key` and `training_key`."""

    planned: Outline
    samples: Samples
    queries: Mapping[str, QueryCost]
    trainings: Mapping[str, TrainingCost]

    def encoding(self) -> Quantity:
        """Seconds of encoder actors."""
        groups: dict[tuple[str, str], list[Pass]] = {}
        for asked in self.planned.passes:
            groups.setdefault((query_key(asked.job), asked.job.source), []).append(asked)
        parts = []
        for (key, source), passes in groups.items():
            images = total(asked.images for asked in passes)
            checkpoints = sum(asked.images.value * len(asked.job.query.epochs) for asked in passes)
            parts.append(self.queries[key].per_image(source, checkpoints / max(1.0, images.value)) * images)
        return total(parts)

    def reading(self) -> Quantity:
        """Seconds of readers: a shard is streamed once for up to `SHARES` jobs, however little they want of it."""
        jobs: dict[SourceSample, int] = {}
        for asked in self.planned.passes:
            sample = self.samples.of(asked.job.source, asked.job.reader)
            jobs[sample] = jobs.get(sample, 0) + 1
        return total(sample.reading * sample.size() * -(-count // SHARES) for sample, count in jobs.items())

    def training(self, training: Training, resources: ResourcesConfig) -> Quantity:
        """Seconds on the clock to train an encoder with the run's workers."""
        job = training.job
        each = self.trainings[training_key(job)].per_image * (1 / resources.train_workers)
        if streams(job, round(training.images.value)):  # read and decoded anew every epoch, while the workers train
            threads = max(1, int(resources.train_cpus)) * resources.train_workers
            fed = [sample.scanning * (1 / threads) for sample in self.samples.of_members(training.job)]
            each = max([each, *fed], key=_value)
        return each * training.images * job.config.epochs


def data_stage(measured: Measured, runs: Sequence[Run]) -> StageCost:
    """Reading, decoding and hashing every image once, to draw the roles; nothing where they are drawn."""
    scans = {
        config.data.scan_digest: config.data
        for config, folder in runs
        for seed in config.seeds
        if not are_drawn(folder.seed(seed).path)
    }
    every = [measured.samples.of(name, source) for data in scans.values() for name, source in data.sources.items()]
    hours = total(sample.scanning * sample.size() for sample in every) * (1 / HOUR)
    cpus = available_cpus()
    return StageCost(total(sample.size() for sample in every), hours, NOTHING, hours * (1 / cpus))


def side_by_side(resources: ResourcesConfig, trainings: int) -> int:
    """How many encoders the connected cluster trains at a time; one at least."""
    return max(1, min(trainings_at_once(resources), trainings))


def pretrain_stage(measured: Measured, resources: ResourcesConfig) -> tuple[StageCost, Quantity]:
    """What all trainings take, and the hours on the clock of the longest one."""
    trainings = measured.planned.trainings
    seconds = [measured.training(training, resources) for training in trainings]
    longest = max(seconds, key=_value, default=NOTHING)
    together = total(seconds)
    wall = max(together * (1 / side_by_side(resources, len(trainings))), longest, key=_value)
    worker_hours = together * (resources.train_workers / HOUR)
    images = total(training.images * training.job.config.epochs for training in trainings)
    return (
        StageCost(images, worker_hours * resources.train_cpus, worker_hours * resources.train_gpus, wall * (1 / HOUR)),
        longest * (1 / HOUR),
    )


def extract_stage(measured: Measured, resources: ResourcesConfig) -> StageCost:
    """What querying takes: actors and readers work side by side, so the slower of the two sets the time."""
    planned, encoding, reading = measured.planned, measured.encoding(), measured.reading()
    actors = encoder_actors(resources)
    readers = READERS_PER_ACTOR * actors
    busy = max(encoding * (1 / actors), reading * (1 / readers), key=_value)
    startup = max((cost.startup for cost in measured.queries.values()), default=0.0)
    return StageCost(
        total(asked.images for asked in planned.passes),
        total([encoding * (resources.actor_cpus / HOUR), reading * (resources.reader_cpus / HOUR)]),
        encoding * (resources.gpus_per_actor / HOUR),
        total([busy, Quantity(startup)]) * (1 / HOUR),
        total([*(asked.queries for asked in planned.passes), *(queries for _, queries in planned.probes)]),
        total(_stored(asked, measured) for asked in planned.stored) * (1 / GIGABYTE),
    )


def _stored(asked: Pass, measured: Measured) -> Quantity:
    """Bytes of the features of a pass, one file per shard and checkpoint."""
    cost, checkpoints = measured.queries[query_key(asked.job)], len(asked.job.query.epochs)
    shards = measured.samples.of(asked.job.source, asked.job.reader).items
    files = min(float(shards), asked.images.value) * checkpoints
    return total([asked.images * cost.row_bytes * checkpoints, Quantity(files * cost.file_bytes)])


def _value(quantity: Quantity) -> float:
    return quantity.value
