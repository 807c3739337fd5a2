"""What pre-training takes here: a few optimiser steps, timed in a process with the resources of a training worker.

The weights are fresh and the images the first of some shards, again and again: neither changes the time of a step.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from mi_core.checks import ConfigError
from mi_core.costs import Quantity, rate
from mi_core.images import decode
from mi_core.objectives import OBJECTIVES
from mi_core.runtime import keep_freed_memory
from mi_core.training.data import Batch
from mi_core.training.loop import Pretrainer, objective_parameters
from pipelines.config.data import DataConfig
from pipelines.config.encoders import TrainedConfig
from pipelines.config.limits import ResourcesConfig
from pipelines.config.sources import SourceConfig
from pipelines.data.captions import caption_of
from pipelines.data.samples import Item
from pipelines.data.sources import Source
from pipelines.estimate.source_samples import ShardSample
from pipelines.files.digest import digest
from pipelines.pretrain.worker import TrainingJob
from pipelines.run.ray_session import mapped

LEAST, MOST = 3, 24  # timed steps


@dataclass(frozen=True)
class TrainingCost:
    """What training one kind of encoder takes: seconds of one worker per image and epoch; how it was measured."""

    per_image: Quantity
    steps: int
    batch: int
    device: str


def training_key(job: TrainingJob) -> str:
    """What two trainings share that take the same time per image."""
    parameters = asdict(replace(job.config.pretraining(), epochs=1))
    return digest(parameters, job.config.augmentation, job.data.channels, job.data.image_size)


def time_training(
    job: TrainingJob,
    members: int,
    resources: ResourcesConfig,
    shards: Sequence[ShardSample],
    workers: int,
    seconds: float,
) -> TrainingCost:
    """Time optimiser steps on images of some shards, in workers with the resources of the run's.

    Args:
        job: the encoder and its data.
        members: how many images it is trained on.
        resources: of the run.
        shards: of the sources that hold its members.
        workers: that train side by side in the run; here each trains an encoder of its own.
        seconds: to spend, about.

    Raises:
        ConfigError: the objective does not fit batch or backbone.
    """
    config, data = job.config, job.data
    images = [(shard.source, data.sources[shard.source], shard.item, shard.labels) for shard in shards]
    whole = max(2, config.batch_size // resources.train_workers)
    threads, gpu = max(1, int(resources.train_cpus)), resources.train_gpus > 0
    given = [(config, data, images, members, whole, threads, gpu, seconds)] * workers
    cpus, gpus = resources.train_cpus, resources.train_gpus
    found = mapped(_train_some, given, "workers", "timing training", cpus=cpus, gpus=gpus)
    steps = [(took, size) for timed, size, _ in found for took in timed]
    return TrainingCost(
        rate([took for took, _ in steps], [size for _, size in steps]),
        len(steps),
        max(size for _, size in steps),
        found[0][2],
    )


def _train_some(
    config: TrainedConfig,
    data: DataConfig,
    shards: Sequence[tuple[str, SourceConfig, Item, Mapping[str, int | None]]],
    members: int,
    whole: int,
    threads: int,
    gpu: bool,
    seconds: float,
) -> tuple[list[float], int, str]:
    """Seconds of some steps of the largest batch, up to a whole one, that the time allows."""
    torch.set_num_threads(threads)
    device = torch.device("cuda" if gpu else "cpu")
    if not gpu:
        keep_freed_memory()
    loaded = list(_images(data, shards, whole))
    began, size = time.perf_counter(), whole
    while size > 16 and size % 2 == 0:
        size //= 2
    while True:
        try:
            step = _steps(config, loaded, members, size, device)
        except ConfigError:  # the objective takes no batch so small
            if size == whole:
                raise
            size = min(whole, 2 * size)
            continue
        next(step)  # warms up, compiles
        took = next(step)
        larger = min(whole, 4 * size)
        if size == whole or LEAST * took * larger / size > seconds - (time.perf_counter() - began):
            break
        size = larger
    timed: list[float] = []
    while len(timed) < LEAST or (len(timed) < MOST and time.perf_counter() - began < seconds):
        timed.append(next(step))
    return timed, size, device.type


def _images(
    data: DataConfig, shards: Sequence[tuple[str, SourceConfig, Item, Mapping[str, int | None]]], count: int
) -> Iterator[tuple[torch.Tensor, int | None, str]]:
    """Pixels, class and caption of up to ``count`` images of some shards, as many of each."""
    share = math.ceil(count / len(shards))
    for name, source, item, labels in shards:
        keys = list(labels)[:share]
        for sample in Source(source).read(item, set(keys)):
            label = labels[sample.key]
            caption, _ = caption_of(data, name, sample.key, sample.others, label)
            yield torch.from_numpy(decode(sample.image, data.decoder())), label, caption


class _OneBatch:
    """The members of an encoder, all of whose batches are the same one."""

    def __init__(self, batch: Batch, count: int) -> None:
        self.batch, self.count = batch, count
        self.channels, self.size = batch.images.shape[1:3]
        self.steps = max(1, count // len(batch.images))

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batch, again and again."""
        yield from itertools.repeat(self.batch, self.steps)


def _steps(
    config: TrainedConfig,
    loaded: Sequence[tuple[torch.Tensor, int | None, str]],
    members: int,
    size: int,
    device: torch.device,
) -> Iterator[float]:
    """Optimiser steps on the same batch again and again; yields the seconds of each."""
    parameters = replace(config.pretraining(), batch_size=size)
    objective, settings = OBJECTIVES[config.objective], objective_parameters(parameters)
    rows = [loaded[row % len(loaded)] for row in range(size)]
    labels = [label for _, label, _ in rows]
    if objective.target == "attribute":
        labels = [row % 2 for row in range(size)]  # which values they are takes no time
    targets = objective.encode_targets(settings, labels, [caption for *_, caption in rows])
    images = torch.stack([pixels for pixels, *_ in rows]).to(device)
    batch = Batch(images, torch.arange(size, device=device), None if targets is None else targets.to(device))
    trainer = Pretrainer(_OneBatch(batch, members), config.views(), parameters, seed=0, device=device)
    trainer.trained.train()

    def timed() -> Iterator[float]:
        while True:
            started = time.perf_counter()
            float(trainer.train_batch(batch, 0))  # a number on the host: the device is done
            yield time.perf_counter() - started

    return timed()
