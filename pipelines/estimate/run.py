"""What a run will cost, from a short calibration: hours, queries, bytes and money, each with a 95 % interval.

Nothing big is run and nothing is left behind. The stages' own planning counts queries and trainings on an outline of
the run (`pipelines.estimate.outline`). A few batches give the seconds (`pipelines.estimate.calibration`). Hours are
those of the CPUs and GPUs that processes reserve while they are busy.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mi_core.costs import Quantity, nodes_for, total, workers_for
from pipelines.config.encoders import DefendedConfig, EndpointConfig
from pipelines.config.limits import PricesConfig
from pipelines.config.run_config import RunConfig
from pipelines.console import count_of, say
from pipelines.encoders.probe_ledger import attacked
from pipelines.estimate.calibration import SECONDS, QueryCost, calibrators, query_key, time_queries
from pipelines.estimate.outline import Outline, Pass, outline
from pipelines.estimate.source_samples import Samples, role_sizes
from pipelines.estimate.stage_costs import (
    HOUR,
    NOTHING,
    Measured,
    StageCost,
    data_stage,
    extract_stage,
    pretrain_stage,
    side_by_side,
)
from pipelines.estimate.training_calibration import TrainingCost, time_training, training_key
from pipelines.files import storage
from pipelines.run.folder import RunFolder
from pipelines.run.points import Run


@dataclass(frozen=True)
class EncoderQueries:
    """What is asked of one encoder over all checkpoints, seeds and sweep points: images in passes, queries."""

    images: Quantity
    queries: Quantity


@dataclass(frozen=True)
class Estimate:
    """What a run will cost.

    Args:
        stages: data, pretrain and extract; attacks and reports, which ask encoders nothing, are not in it.
        encoders: what is asked, by encoder.
        attacked: encoders whose queries a budget bounds and a price is asked for.
        encoding, reading: seconds of encoder actors and of readers, for `cluster`.
        longest: hours on the clock of the longest training, with the run's workers.
        prices: of the run.
        query_costs, training_costs: what was timed, by the first encoder of a kind.
        notes: what a reader has to know, in sentences.
    """

    stages: Mapping[str, StageCost]
    encoders: Mapping[str, EncoderQueries]
    attacked: tuple[str, ...]
    encoding: Quantity
    reading: Quantity
    longest: Quantity
    prices: PricesConfig
    query_costs: Mapping[str, QueryCost]
    training_costs: Mapping[str, TrainingCost]
    notes: tuple[str, ...]

    def spent(self, name: str, stages: Sequence[str]) -> Quantity:
        """``cpu_hours``, ``gpu_hours`` or ``money`` of some stages."""
        found = [stage for stage in stages if stage in self.stages]
        if name == "money":
            return total(self.money(stage) for stage in found)
        return total(getattr(self.stages[stage], name) for stage in found)

    def money(self, stage: str) -> Quantity:
        """What a stage costs at the known prices, its features stored for one month."""
        cost, known = self.stages[stage], self.prices.known
        asked = total(found.queries for name, found in self.encoders.items() if name in self.attacked)
        amounts = {
            "cpu_hour": cost.cpu_hours,
            "gpu_hour": cost.gpu_hours,
            "query": asked if stage == "extract" else NOTHING,
            "storage_gb_month": cost.gigabytes,
        }
        return total(amounts[name] * price for name, price in known.items())


def estimate(runs: Sequence[Run], seconds: float = SECONDS) -> Estimate:
    """Estimate a run and the points of its sweeps; Ray is connected.

    Args:
        runs: a run and the points of its sweeps.
        seconds: for timing one kind of queries or training, about.

    Raises:
        UserError, ConfigError: sources or encoders that the run itself would refuse.
    """
    config, folder = runs[0]
    say("estimate", "looking at some shards and timing some batches")
    samples = Samples.take([of_run.data for of_run, _ in runs])
    with _scratch(folder) as place:
        planned = outline(runs, place, role_sizes(runs, samples))
        queries = _query_costs(planned, config, samples, seconds)
        trainings = _training_costs(planned, config, samples, seconds)
        measured = Measured(planned, samples, queries, trainings)
        return _estimated(runs, measured)


@contextmanager
def _scratch(folder: RunFolder) -> Iterator[str]:
    """A folder beside a run's, which every node can reach if it reaches that; nothing is left of it."""
    parents = [] if storage.is_uri(folder.path) else list(Path(folder.path).parents)
    made = [parent for parent in parents if not parent.exists()]
    place = f"{folder.path}.estimate-{uuid.uuid4().hex[:8]}"
    try:
        yield place
    finally:
        storage.remove(place)
        for parent in made:
            parent.rmdir()


def _query_costs(planned: Outline, config: RunConfig, samples: Samples, seconds: float) -> dict[str, QueryCost]:
    """What every kind of query takes, by its key."""
    groups: dict[str, dict[str, Pass]] = {}
    for asked in planned.passes:
        groups.setdefault(query_key(asked.job), {}).setdefault(asked.job.source, asked)
    with calibrators(config.resources) as actors:
        return {
            key: time_queries([asked.job for asked in by_source.values()], config.data, samples, actors, seconds)
            for key, by_source in groups.items()
        }


def _training_costs(planned: Outline, config: RunConfig, samples: Samples, seconds: float) -> dict[str, TrainingCost]:
    """What every kind of training takes, by its key."""
    kinds = {training_key(training.job): training for training in reversed(planned.trainings)}
    return {
        key: time_training(
            training.job,
            round(training.images.value),
            config.resources,
            [shard for sample in samples.of_members(training.job) for shard in sample.usable],
            side_by_side(config.resources, len(planned.trainings)) * config.resources.train_workers,
            seconds,
        )
        for key, training in kinds.items()
    }


def _estimated(runs: Sequence[Run], measured: Measured) -> Estimate:
    config, planned = runs[0][0], measured.planned
    trained, longest = pretrain_stage(measured, config.resources)
    return Estimate(
        {
            "data": data_stage(measured, runs),
            "pretrain": trained,
            "extract": extract_stage(measured, config.resources),
        },
        {name: _asked_of(name, planned) for of_run, _ in runs for name in of_run.encoders},
        tuple(sorted(attacked(runs))),
        measured.encoding(),
        measured.reading(),
        longest,
        config.prices,
        _named(measured.queries, [(query_key(asked.job), _words(asked)) for asked in planned.passes]),
        _named(measured.trainings, [(training_key(training.job), training.job.name) for training in planned.trainings]),
        tuple(_notes(runs, measured)),
    )


def _named(costs: Mapping[str, Any], names: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Costs by the first encoder of a kind; a second kind of the same name gets a number."""
    found: dict[str, Any] = {}
    for key, cost in costs.items():
        name = next(name for of, name in names if of == key)
        again = sum(1 for other in found if other.partition(", again")[0] == name)
        found[f"{name}, again ({again + 1})" if again else name] = cost
    return found


def _words(asked: Pass) -> str:
    """The encoder of a pass and what it is asked: views, clean, ..."""
    return f"{asked.job.encoder}: {', '.join(asked.job.query.plan().sets)}"


def _asked_of(name: str, planned: Outline) -> EncoderQueries:
    passes = [asked for asked in planned.passes if asked.job.encoder == name]
    probes = [queries for probed, queries in planned.probes if probed == name]
    return EncoderQueries(
        total(asked.images for asked in passes), total([*(asked.queries for asked in passes), *probes])
    )


def _notes(runs: Sequence[Run], measured: Measured) -> Iterator[str]:
    config, queries, trainings = runs[0][0], measured.queries.values(), measured.trainings.values()
    images, steps = sum(cost.images for cost in queries), sum(cost.steps for cost in trainings)
    devices = {cost.device for cost in queries} | {cost.device for cost in trainings}
    yield (
        f"timed on {', '.join(sorted(devices))}: {count_of(images, 'image', 'images')} through encoders, "
        f"{count_of(steps, 'optimiser step', 'optimiser steps')}; intervals are 95 % t-intervals over batches and "
        "do not foresee a machine that is busier later"
    )
    if any(cost.batch < min(config.queries.chunk, 16) for cost in queries):
        yield "encoders were timed on smaller batches than the run's, to save time; larger ones may be faster"
    if any(not asked.images.exact for asked in measured.planned.passes):
        yield "sizes of roles come from some shards, images included that turn out broken or double when they are drawn"
    for name, encoder in config.encoders.items():
        if isinstance(encoder, EndpointConfig):
            yield _of_endpoint(name, encoder, _asked_of(name, measured.planned).queries.value)
    if any(isinstance(encoder, DefendedConfig) for encoder in config.encoders.values()):
        yield "encoders with a defense are timed as the plain ones; what fitting a defense takes is not in it"
    yield "not in it: starting Ray, attacks and reports, start and end of every training"


def _of_endpoint(name: str, encoder: EndpointConfig, queries: float) -> str:
    """What is known of one behind an API without asking it."""
    stated = encoder.parameters()
    requests = math.ceil(queries / stated.batch)
    told = f"{name} is behind an API and was not asked: a small network was timed in its place"
    if stated.requests_per_second:
        hours = requests / stated.requests_per_second / HOUR
        told += f"; at {stated.requests_per_second:g} requests per second its answers take {hours:.3g} h at least"
    money = queries * stated.price_per_image + requests * stated.price_per_request
    return told + (f"; at its own prices they cost {money:.4g}, which is not in the money above" if money else "")


@dataclass(frozen=True)
class Cluster:
    """What querying needs to be done in a wanted time, at the upper ends of the intervals."""

    hours: float
    encoder_actors: int
    readers: int
    nodes: int


def cluster(found: Estimate, config: RunConfig, hours: float, node: tuple[float, float]) -> Cluster:
    """How many encoder actors, readers and nodes query within some hours.

    Args:
        found: the estimate.
        config: of the run; its resources say what an actor and a reader hold.
        hours: wanted, on the clock.
        node: (CPUs, GPUs) of a node.

    Raises:
        ConfigError: a node does not hold an actor.
    """
    resources = config.resources
    actors = workers_for(found.encoding.interval()[1], hours * HOUR)
    readers = workers_for(found.reading.interval()[1], hours * HOUR)
    nodes = nodes_for(
        actors,
        readers,
        actor=(resources.actor_cpus, resources.gpus_per_actor),
        reader_cpus=resources.reader_cpus,
        node=node,
    )
    return Cluster(hours, actors, readers, nodes)
