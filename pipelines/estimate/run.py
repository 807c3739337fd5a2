"""The cost of a run: hours, queries, bytes and money, each with a range.

The stages' own planning counts (`outline`); a few shards, chunks and optimiser steps give the times (`measure`). A
range reaches from the fastest to the slowest piece that was timed. Nothing is left behind.
"""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mi_core.costs import NOTHING, Range, largest, nodes_for, total, workers_for
from mi_core.report.words.numbers import plain
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import DefendedConfig, EncoderConfig, EndpointConfig
from pipelines.config.sections.limits import ResourcesConfig
from pipelines.console import count_of, say
from pipelines.data.draw.splits import Splits, are_drawn
from pipelines.encoders.probes import attacked
from pipelines.estimate import measure
from pipelines.estimate.measure import SECONDS, QueryCost, Samples, TrainingCost, key, side_by_side
from pipelines.estimate.outline import Outline, RoleSizes, TimedPass, Training, outline
from pipelines.extract.actor.asking import together
from pipelines.extract.actor.worker import STEPS
from pipelines.extract.division.jobs import shared
from pipelines.extract.division.passes import CHUNK
from pipelines.extract.stream import READERS_PER_ACTOR
from pipelines.files import storage
from pipelines.plan.prospects import prospects
from pipelines.pretrain.worker import exceed
from pipelines.run.folder import RunFolder, SeedFolder
from pipelines.run.points import Run
from pipelines.run.ray_session import available_cpus, encoder_actors

HOUR, GIGABYTE = 3600.0, 1e9
PRICED = {"cpu_hour": "cpu_hours", "gpu_hour": "gpu_hours", "storage_gb_month": "gigabytes"}
Amounts = dict[str, Range]
"""Ranges by name: CPUs and GPUs are reserved while busy, ``wall_hours`` are on the clock with the run's resources."""
EMPTY = dict.fromkeys(("images", "queries", "cpu_hours", "gpu_hours", "wall_hours", "gigabytes"), NOTHING)


@dataclass(frozen=True)
class Estimate:
    """The cost of a run.

    Args:
        stages: ``images``, ``queries``, ``cpu_hours`` and ``gpu_hours`` (reserved while busy), ``wall_hours``,
            ``gigabytes`` and, with prices, ``money`` of data, pretrain and extract.
        encoders: ``images`` and ``queries`` by encoder, over all checkpoints, seeds and sweep points.
        encoding, reading: seconds of encoder actors and of readers.
        longest_training_hours: on the clock.
        seconds_per_image, training_seconds_per_image: measured, by the first encoder of a kind.
        prices: of the run.
        endpoints: encoders behind an API: their answers may take longer than is told.
        notes: facts that a reader has to know, in sentences.
    """

    stages: Mapping[str, Amounts]
    encoders: Mapping[str, Amounts]
    encoding: Range
    reading: Range
    longest_training_hours: Range
    seconds_per_image: Mapping[str, QueryCost]
    training_seconds_per_image: Mapping[str, TrainingCost]
    prices: Mapping[str, float]
    endpoints: Sequence[str]
    notes: Sequence[str]

    @property
    def total(self) -> Amounts:
        """All stages together; ``images`` are left out, for every stage counts them anew."""
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
    samples = measure.sample_sources(runs)
    seeds = [(of_run, of_folder.seed(seed)) for of_run, of_folder in runs for seed in of_run.seeds]
    with _scratch(folder) as place:
        planned = outline(runs, place, {at: _role_sizes(of_run.data, at, samples) for of_run, at in seeds})
        timed = measure.time_queries(planned.passes, config.resources, samples, seconds)
        orders = list(orders_of(planned.passes))
    trained = measure.time_trainings(planned.trainings, config.resources, seconds)
    encoders = {name: _images_and_queries(planned, name) for of_run, _ in runs for name in of_run.encoders}
    endpoints = {name: one for name, one in config.encoders.items() if isinstance(one, EndpointConfig)}
    remote = [endpoint_costs(name, one, encoders[name]["queries"].value) for name, one in endpoints.items()]
    encoding = total(
        timed[one.kind].per_image(one.job.source, len(one.job.query.epochs), shares) * one.images
        for order in orders
        for one, shares in order
    )
    readings = Counter(key(one.job.source, one.job.reader) for (one, _), *_ in orders)
    reading = total(samples[of].streaming * samples[of].size * count for of, count in readings.items())
    trainings = [training_seconds(one, trained[one.kind], samples, config.resources) for one in planned.trainings]
    stages = {
        "data": data_stage(runs, samples, available_cpus()),
        "pretrain": _pretrain(planned, trainings, config.resources),
        "extract": extract_times(encoding, reading, config.resources, encoder_actors(config.resources)),
    }
    asked = stages["extract"]
    stored = total(one.images * len(one.job.query.epochs) * timed[one.kind].bytes for one in planned.passes)
    asked |= _images_and_queries(planned) | {"gigabytes": stored * (1 / GIGABYTE)}
    asked["wall_hours"] = largest([asked["wall_hours"], *(Range.exact(hours) for hours, _ in remote)])
    prices = config.prices.model_dump(exclude_none=True)
    for stage, amounts in stages.items() if prices else ():
        terms = [amounts[unit] * prices.get(price, 0.0) for price, unit in PRICED.items()]
        if stage == "extract":
            terms += [encoders[name]["queries"] * prices.get("query", 0.0) for name in attacked(runs)]
        amounts["money"] = total(terms)
    sizes = {role: one.value for role, one in _role_sizes(config.data, seeds[0][1], samples).items()}
    notes = [
        *prospects(config, sizes),
        *(words for _, words in remote),
        *_notes(planned, timed, config.queries.chunk, config.encoders),
    ]
    longest, measured = largest(trainings) * (1 / HOUR), (_named(timed), _named(trained))
    return Estimate(stages, encoders, encoding, reading, longest, *measured, prices, list(endpoints), notes)


def orders_of(passes: Sequence[TimedPass]) -> Iterator[list[tuple[TimedPass, dict[str, float]]]]:
    """The passes that one reading serves, each with its shares of a decoding and of a set of views."""
    of_job = {id(one.job): one for one in passes}
    for shares in shared(one.job for one in passes):
        order = []
        for jobs in shares:
            views = [together(job, _side(of_job[id(job)])) for job in jobs]
            for job, seen in zip(jobs, views, strict=True):
                company = [other.encoder for other, same in zip(jobs, views, strict=True) if same == seen]
                turns = max(map(company.count, company))  # an encoder that is asked twice is asked in turns
                order.append((of_job[id(job)], {"decode": 1 / len(jobs), "augment": turns / len(company)}))
        yield order


def _side(one: TimedPass) -> int | None:
    """The side of the images that an encoder takes, where its settings say it."""
    encoder, _ = one.encoders[one.job.folder.path, one.job.encoder]
    return getattr(encoder.settings, "size", None)


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
            with suppress(OSError):  # it was never made, or somebody else uses it by now
                parent.rmdir()


def _role_sizes(data: DataConfig, folder: SeedFolder, samples: Samples) -> RoleSizes:
    """Images of the roles of one seed: exact where they are drawn, otherwise from the config and the samples."""
    if are_drawn(folder.path):
        return {role: Range.exact(count) for role, count in Splits.load(folder.path).counts().items()}
    return measure.sizes_of(data, samples)


def _images_and_queries(planned: Outline, name: str | None = None) -> Amounts:
    """Images shown to one encoder, and queries; None: to all."""
    passes = [one for one in planned.passes if name in (None, one.job.encoder)]
    queries = [one.images * one.job.query.queries_per_image for one in passes]
    banks = {one.job.query.tag: one.job.query.bank_queries for one in passes}
    probes = [Range.exact(asked) for probed, asked in planned.probes if name in (None, probed)]
    return {
        "images": total(one.images for one in passes),
        "queries": total([*queries, *map(Range.exact, banks.values()), *probes]),
    }


def training_seconds(one: Training, cost: TrainingCost, samples: Samples, resources: ResourcesConfig) -> Range:
    """Seconds on the clock to train an encoder."""
    data, each = one.data, cost.per_image * (1 / resources.train_workers)
    if exceed(data, round(one.images.value), resources.resident_mb * 2**20):  # read anew every epoch, during training
        threads = max(1, int(resources.train_cpus)) * resources.train_workers
        named = {data.roles[role].source_name for role in one.settings.train_on}
        origins = {data.roles[name].source_name if name in data.roles else name for name in named}
        each = largest([each, *(samples[key(name, data.sources[name])].scanning * (1 / threads) for name in origins)])
    return each * one.images * one.settings.epochs


def data_stage(runs: Sequence[Run], samples: Samples, cpus: float) -> Amounts:
    """Reading, decoding and hashing every image once, to draw the roles that are not drawn."""
    scans = {
        config.data.scan_digest: config.data
        for config, folder in runs
        if not all(are_drawn(folder.seed(seed).path) for seed in config.seeds)
    }
    every = [samples[key(name, source)] for data in scans.values() for name, source in data.sources.items()]
    hours = total(sample.scanning * sample.size for sample in every) * (1 / HOUR)
    wall = hours * (1 / cpus)
    return EMPTY | {"images": total(sample.size for sample in every), "cpu_hours": hours, "wall_hours": wall}


def _pretrain(planned: Outline, seconds: Sequence[Range], resources: ResourcesConfig) -> Amounts:
    """All trainings, side by side as far as the cluster holds them."""
    together = total(seconds) * (1 / HOUR)
    wall = [together * (1 / side_by_side(planned.trainings, resources)), *(one * (1 / HOUR) for one in seconds)]
    return EMPTY | {
        "images": total(one.images * one.settings.epochs for one in planned.trainings),
        "cpu_hours": together * resources.train_workers * resources.train_cpus,
        "gpu_hours": together * resources.train_workers * resources.train_gpus,
        "wall_hours": largest(wall),
    }


def extract_times(encoding: Range, reading: Range, resources: ResourcesConfig, actors: int) -> Amounts:
    """Hours of actors and readers, which work side by side: the slower of them set the time."""
    busy = largest([encoding * (1 / actors), reading * (1 / (READERS_PER_ACTOR * actors))])
    return EMPTY | {
        "cpu_hours": total([encoding * (resources.actor_cpus / HOUR), reading * (resources.reader_cpus / HOUR)]),
        "gpu_hours": encoding * (resources.gpus_per_actor / HOUR),
        "wall_hours": busy * (1 / HOUR),
    }


def endpoint_costs(name: str, encoder: EndpointConfig, queries: float) -> tuple[float, str]:
    """The least hours that an API needs at its rate (0: unknown), and facts about it; it is not asked."""
    stated = encoder.parameters()
    requests = math.ceil(queries / stated.images_per_request)
    money = queries * stated.price_per_image + requests * stated.price_per_request
    told = f"{name} is behind an API and was not asked: a small network was timed in its place"
    paid = f"; at its own prices they cost {plain(money, 4)}, which is not in the money above" if money else ""
    if not stated.requests_per_second:
        return 0.0, f"{told}; the time of its answers is unknown without endpoint.requests_per_second{paid}"
    hours = requests / stated.requests_per_second / HOUR
    rate = f"at {stated.requests_per_second:g} requests per second its answers take {plain(hours)} h at least"
    return hours, f"{told}; {rate}{paid}"


def _notes(
    planned: Outline, timed: Mapping[str, QueryCost], asked: int | str, encoders: Mapping[str, EncoderConfig]
) -> Iterator[str]:
    yield "a range reaches from the fastest to the slowest piece that was timed; a busier machine takes longer"
    chunk = CHUNK if asked == "auto" else int(asked)
    if any(cost.batch < min(chunk, 16) for cost in timed.values()):
        yield "encoders were timed on smaller batches than the run's, to save time; larger ones may be faster"
    if any(one.images.low < one.images.high for one in planned.passes):
        yield "the sizes of some roles come from a few shards"
    if any(isinstance(encoder, DefendedConfig) for encoder in encoders.values()):
        yield "an encoder with a defense is timed as the plain one; fitting the defense is not included"
    yield "not included: starting Ray and its processes, attacks, reports, start and end of every training"


@dataclass(frozen=True)
class Cluster:
    """The processes and nodes that query in a wanted time."""

    hours: float
    encoder_actors: int
    readers: int
    nodes: int


def cluster(found: Estimate, held: ResourcesConfig, hours: float, node: tuple[float, float]) -> Cluster:
    """The actors, readers and nodes of (CPUs, GPUs) that query within some hours, at the upper ends of the ranges.

    Raises:
        ConfigError: a node does not hold an actor.
    """
    actors, readers = (workers_for(one.high, hours * HOUR) for one in (found.encoding, found.reading))
    actors = max(actors, math.ceil(readers / READERS_PER_ACTOR))  # a run has no more readers for its actors
    actor = (held.actor_cpus, held.gpus_per_actor)
    nodes = nodes_for(actors, readers, actor=actor, reader_cpus=held.reader_cpus, node=node)
    return Cluster(hours, actors, readers, nodes)


Units = tuple[tuple[float, str], ...]
TIME: Units = ((1.0, "h"), (60.0, "min"), (HOUR, "s"))
STEP: Units = ((1000.0, "ms"),)
BYTES: Units = ((1e-3, "TB"), (1.0, "GB"), (1e3, "MB"), (1e6, "kB"))
AMOUNTS: dict[str, tuple[Units, str]] = {
    "images": (((1.0, "images"),), ""),
    "queries": (((1.0, "queries"),), ""),
    "cpu_hours": (TIME, " of CPU time"),
    "gpu_hours": (TIME, " of GPU time"),
    "wall_hours": (TIME, " here"),
    "gigabytes": (BYTES, " stored"),
    "money": (((1.0, "in the unit of `prices`"),), ""),
}
STEP_WORDS = dict(zip(STEPS, ("decoding", "views", "encoder", "features", "storing"), strict=True))


def as_json(found: Estimate, wanted: Cluster | None = None) -> dict[str, Any]:
    """The estimate as plain values: hours, seconds, bytes; every range as ``value``, ``low`` and ``high``."""
    whole = {"total": {name: asdict(one) for name, one in found.total.items()}}
    return asdict(found) | whole | ({} if wanted is None else {"cluster": asdict(wanted)})


def lines(found: Estimate, wanted: Cluster | None = None) -> Iterator[str]:
    """The estimate in words: the whole run, its stages and encoders, the measured times, notes."""
    clock, asked = amount(found.total["wall_hours"], TIME), _words({"queries": found.total["queries"]})
    money = f"it costs {_words({'money': found.total['money']})}" if found.prices else "the config has no prices"
    yield f"The run takes {'at least' if found.endpoints else 'about'} {clock} here and asks {asked}; {money}."
    for name, amounts in [*found.stages.items(), ("total", found.total)]:
        yield f"{name}: {_words(amounts)}"
    for name, amounts in found.encoders.items():
        yield f"encoder {name}: {_words(amounts)}"
    for name, cost in found.seconds_per_image.items():
        chunks = f"{count_of(cost.chunks, 'chunk', 'chunks')} of up to {count_of(cost.batch, 'image', 'images')}"
        yield f"{name}: {cost.bytes:,.0f} bytes stored per image; timed on {chunks}"
        for source, seconds in cost.seconds.items():
            steps = ", ".join(f"{words} {amount(seconds[step], STEP)}" for step, words in STEP_WORDS.items())
            yield f"    per image of {source}: {steps}"
    for name, training in found.training_seconds_per_image.items():
        steps = f"{count_of(training.steps, 'step', 'steps')} of {count_of(training.batch, 'image', 'images')}"
        yield f"training {name}: {amount(training.per_image, STEP)} per image and epoch; timed on {steps}"
    if found.training_seconds_per_image:
        yield f"the longest training takes {amount(found.longest_training_hours, TIME)} with the run's workers"
    if wanted is not None:
        yield (
            f"to query within {wanted.hours:g} h: {count_of(wanted.encoder_actors, 'encoder actor', 'encoder actors')} "
            f"and {count_of(wanted.readers, 'reader', 'readers')} on {count_of(wanted.nodes, 'node', 'nodes')}"
        )
    yield from (f"note: {note}" for note in found.notes)


def _words(amounts: Amounts) -> str:
    """All amounts above 0 with their units."""
    told = [amount(one, AMOUNTS[name][0]) + AMOUNTS[name][1] for name, one in amounts.items() if one.high]
    return ", ".join(told) or "nothing to do"


def amount(one: Range, units: Units) -> str:
    """A number in the largest unit in which it is at least 1, with how low and how high it may be.

    Example:
        >>> amount(Range(0.02, 0.015, 0.03), TIME), amount(Range.exact(2e-3), BYTES)
        ('1.2 min (0.9 to 1.8)', '2 MB')
    """
    factor, unit = next((pair for pair in units if one.value * pair[0] >= 1), units[-1])
    value, low, high = (_short(number * factor) for number in (one.value, one.low, one.high))
    return f"{value} {unit}" + ("" if low == high else f" ({low} to {high})")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else plain(value)
