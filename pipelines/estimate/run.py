"""The cost of a run: hours, queries, bytes and money, each with a range.

The stages' own planning counts (`outline`); a few shards, chunks and optimiser steps give the times (`shards`,
`timing`). A range reaches from the fastest to the slowest piece that was timed. Nothing is left behind.
"""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mi_core.costs import NOTHING, Range, largest, nodes_for, total, workers_for
from pipelines.config.encoders import DefendedConfig, EndpointConfig
from pipelines.config.limits import ResourcesConfig
from pipelines.config.run_config import RunConfig
from pipelines.console import say
from pipelines.data.splits import are_drawn
from pipelines.encoders.probe_ledger import attacked
from pipelines.estimate.outline import Outline, Training, outline
from pipelines.estimate.shards import Samples, role_sizes, sample_sources, source_key
from pipelines.estimate.timing import SECONDS, QueryCost, TrainingCost, side_by_side, time_queries, time_trainings
from pipelines.extract.run import READERS_PER_ACTOR, SHARES
from pipelines.files import storage
from pipelines.pretrain.worker import streams
from pipelines.run.folder import RunFolder
from pipelines.run.points import Run
from pipelines.run.ray_session import available_cpus, encoder_actors

HOUR, GIGABYTE = 3600.0, 1e9
PRICED = {"cpu_hour": "cpu_hours", "gpu_hour": "gpu_hours", "storage_gb_month": "gigabytes"}
Amounts = dict[str, Range]
"""Ranges by name."""


@dataclass(frozen=True)
class Estimate:
    """The cost of a run.

    Args:
        stages: ``images``, ``queries``, ``cpu_hours`` and ``gpu_hours`` (reserved while busy), ``wall_hours``,
            ``gigabytes`` and, with prices, ``money`` of data, pretrain and extract.
        encoders: ``images`` and ``queries`` by encoder, over all checkpoints, seeds and sweep points.
        encoding, reading: seconds of encoder actors and of readers.
        longest: hours on the clock of the longest training.
        timed, trained: the measured costs of queries and trainings, by the first encoder of a kind.
        prices: of the run.
        notes: facts that a reader has to know, in sentences.
    """

    stages: Mapping[str, Amounts]
    encoders: Mapping[str, Amounts]
    encoding: Range
    reading: Range
    longest: Range
    timed: Mapping[str, QueryCost]
    trained: Mapping[str, TrainingCost]
    prices: Mapping[str, float]
    notes: Sequence[str]

    @property
    def total(self) -> Amounts:
        """All stages together, but for images, which every stage counts anew."""
        return {name: self.spent(name, list(self.stages)) for name in self.stages["extract"] if name != "images"}

    def spent(self, name: str, stages: Sequence[str]) -> Range:
        """One amount of some stages, such as ``cpu_hours``."""
        return total(self.stages[stage].get(name, NOTHING) for stage in stages if stage in self.stages)


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
    samples = sample_sources(runs)
    with _scratch(folder) as place:
        planned = outline(runs, place, role_sizes(runs, samples))
        timed = time_queries(planned.passes, config, samples, seconds)
    trained = time_trainings(planned.trainings, config.resources, seconds)
    encoders = {name: _asked(name, planned) for of_run, _ in runs for name in of_run.encoders}
    remote = [
        _of_endpoint(name, encoder, encoders[name]["queries"].value)
        for name, encoder in config.encoders.items()
        if isinstance(encoder, EndpointConfig)
    ]
    encoding = total(
        timed[one.kind].per_image(one.job.source, len(one.job.query.epochs)) * one.images for one in planned.passes
    )
    reading = _reading(planned, samples)
    trainings = [_training(one, trained[one.kind], samples, config.resources) for one in planned.trainings]
    stages = {
        "data": _data(runs, samples),
        "pretrain": _pretrain(planned, trainings, config.resources),
        "extract": _extract(planned, timed, samples, (encoding, reading), config.resources),
    }
    clock = [stages["extract"]["wall_hours"], *(Range.exact(hours) for hours, _ in remote)]
    stages["extract"]["wall_hours"] = largest(clock)
    prices = config.prices.known
    for stage, amounts in stages.items() if prices else ():
        terms = [amounts[unit] * prices.get(price, 0.0) for price, unit in PRICED.items()]
        if stage == "extract":
            terms += [encoders[name]["queries"] * prices.get("query", 0.0) for name in attacked(runs)]
        amounts["money"] = total(terms)
    notes = [*(words for _, words in remote), *_notes(config, planned, timed)]
    longest = largest(trainings) * (1 / HOUR)
    return Estimate(stages, encoders, encoding, reading, longest, _named(timed), _named(trained), prices, notes)


def _named(costs: Mapping[str, Any]) -> dict[str, Any]:
    """Costs by their names; a second kind of the same name shows its hash."""
    found: dict[str, Any] = {}
    for kind, cost in costs.items():
        found[f"{cost.name} ({kind[:6]})" if cost.name in found else cost.name] = cost
    return found


@contextmanager
def _scratch(folder: RunFolder) -> Iterator[str]:
    """A folder beside a run's, on the same storage; nothing is left of it."""
    parents = [] if storage.is_uri(folder.path) else list(Path(folder.path).parents)
    made = [parent for parent in parents if not parent.exists()]
    place = f"{folder.path}.estimate-{uuid.uuid4().hex[:8]}"
    try:
        yield place
    finally:
        storage.remove(place)
        for parent in made:
            parent.rmdir()


def _asked(name: str, planned: Outline) -> Amounts:
    """Images shown to one encoder, and queries."""
    passes = [one for one in planned.passes if one.job.encoder == name]
    probes = [Range.exact(queries) for probed, queries in planned.probes if probed == name]
    return {
        "images": total(one.images for one in passes),
        "queries": total([*(one.queries for one in passes), *probes]),
    }


def _reading(planned: Outline, samples: Samples) -> Range:
    """Seconds of readers: a source is streamed whole for up to `SHARES` jobs, however little they want of it."""
    jobs = Counter(source_key(one.job.source, one.job.reader) for one in planned.passes)
    return total(samples[key].streaming * samples[key].size() * -(-count // SHARES) for key, count in jobs.items())


def _training(one: Training, cost: TrainingCost, samples: Samples, resources: ResourcesConfig) -> Range:
    """Seconds on the clock to train an encoder."""
    data, each = one.job.data, cost.per_image * (1 / resources.train_workers)
    if streams(one.job, round(one.images.value)):  # read and decoded anew every epoch, while the workers train
        threads = max(1, int(resources.train_cpus)) * resources.train_workers
        roles = [
            data.roles[data.roles[role].source_name] if data.roles[role].source_name in data.roles else data.roles[role]
            for role in one.job.config.train_on
        ]
        names = {role.source_name for role in roles}
        fed = [samples[source_key(name, data.sources[name])].scanning * (1 / threads) for name in names]
        each = largest([each, *fed])
    return each * one.images * one.job.config.epochs


def _data(runs: Sequence[Run], samples: Samples) -> Amounts:
    """Reading, decoding and hashing every image once, to draw the roles that are not drawn."""
    scans = {
        config.data.scan_digest: config.data
        for config, folder in runs
        if not all(are_drawn(folder.seed(seed).path) for seed in config.seeds)
    }
    every = [samples[source_key(name, one)] for data in scans.values() for name, one in data.sources.items()]
    hours = total(sample.scanning * sample.size() for sample in every) * (1 / HOUR)
    images = total(sample.size() for sample in every)
    return _amounts(images=images, cpu_hours=hours, wall_hours=hours * (1 / available_cpus()))


def _pretrain(planned: Outline, seconds: Sequence[Range], resources: ResourcesConfig) -> Amounts:
    """All trainings, side by side as far as the cluster holds them."""
    together = total(seconds)
    worker_hours = together * (resources.train_workers / HOUR)
    wall = largest([together * (1 / side_by_side(planned.trainings, resources)), *seconds])
    return _amounts(
        images=total(one.images * one.job.config.epochs for one in planned.trainings),
        cpu_hours=worker_hours * resources.train_cpus,
        gpu_hours=worker_hours * resources.train_gpus,
        wall_hours=wall * (1 / HOUR),
    )


def _extract(
    planned: Outline,
    timed: Mapping[str, QueryCost],
    samples: Samples,
    work: tuple[Range, Range],
    resources: ResourcesConfig,
) -> Amounts:
    """All queries: actors and readers work side by side, so the slower of them set the time."""
    (encoding, reading), actors = work, encoder_actors(resources)
    busy = largest([encoding * (1 / actors), reading * (1 / (READERS_PER_ACTOR * actors))])
    startup = max((cost.startup for cost in timed.values()), default=0.0)
    stored = []
    for one in planned.stored:
        cost, shards = timed[one.kind], len(samples[source_key(one.job.source, one.job.reader)].items)
        files = one.images.at_most(shards) * cost.file_bytes
        stored.append(total([one.images * cost.row_bytes, files]) * len(one.job.query.epochs))
    return _amounts(
        images=total(one.images for one in planned.passes),
        queries=total([*(one.queries for one in planned.passes), *(Range.exact(n) for _, n in planned.probes)]),
        cpu_hours=total([encoding * (resources.actor_cpus / HOUR), reading * (resources.reader_cpus / HOUR)]),
        gpu_hours=encoding * (resources.gpus_per_actor / HOUR),
        wall_hours=total([busy, Range.exact(startup)]) * (1 / HOUR),
        gigabytes=total(stored) * (1 / GIGABYTE),
    )


def _amounts(**some: Range) -> Amounts:
    names = ("images", "queries", "cpu_hours", "gpu_hours", "wall_hours", "gigabytes")
    return {name: some.get(name, NOTHING) for name in names}


def _of_endpoint(name: str, encoder: EndpointConfig, queries: float) -> tuple[float, str]:
    """The least hours that an API needs at its rate (0: unknown), and facts about it; it is not asked."""
    stated = encoder.parameters()
    requests = math.ceil(queries / stated.batch)
    money = queries * stated.price_per_image + requests * stated.price_per_request
    hours = requests / stated.requests_per_second / HOUR if stated.requests_per_second else 0.0
    told = f"{name} is behind an API and was not asked: a small network was timed in its place; "
    told += (
        f"at {stated.requests_per_second:g} requests per second its answers take {hours:.3g} h at least"
        if hours
        else f"the time of its answers is unknown without encoders.{name}.endpoint.requests_per_second"
    )
    return hours, told + (
        f"; at its own prices they cost {money:.4g}, which is not in the money above" if money else ""
    )


def _notes(config: RunConfig, planned: Outline, timed: Mapping[str, QueryCost]) -> Iterator[str]:
    yield (
        "a range reaches from the fastest to the slowest piece that was timed; a machine that is busier later takes "
        "longer"
    )
    if any(cost.batch < min(config.queries.chunk, 16) for cost in timed.values()):
        yield "encoders were timed on smaller batches than the run's, to save time; larger ones may be faster"
    if any(not one.images.known for one in planned.passes):
        yield "the sizes of some roles come from a few shards"
    if any(isinstance(encoder, DefendedConfig) for encoder in config.encoders.values()):
        yield "an encoder with a defense is timed as the plain one; fitting the defense is not included"
    yield "not included: starting Ray, attacks and reports, start and end of every training"


@dataclass(frozen=True)
class Cluster:
    """The processes and nodes that query in a wanted time."""

    hours: float
    encoder_actors: int
    readers: int
    nodes: int


def cluster(found: Estimate, config: RunConfig, hours: float, node: tuple[float, float]) -> Cluster:
    """How many encoder actors, readers and nodes query within some hours, at the upper ends of the ranges.

    Args:
        found: the estimate.
        config: of the run; its resources say what an actor and a reader hold.
        hours: wanted, on the clock.
        node: (CPUs, GPUs) of a node.

    Raises:
        ConfigError: a node does not hold an actor.
    """
    resources = config.resources
    actors = workers_for(found.encoding.high, hours * HOUR)
    readers = workers_for(found.reading.high, hours * HOUR)
    actor = (resources.actor_cpus, resources.gpus_per_actor)
    nodes = nodes_for(actors, readers, actor=actor, reader_cpus=resources.reader_cpus, node=node)
    return Cluster(hours, actors, readers, nodes)
