"""A few shards of every source: what reading and decoding them takes, and how many images there are of each role.

No source is read whole: up to `SHARDS` shards, evenly spaced, are streamed once to count and to time the reading, and
their first images are decoded to time that.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from mi_core.costs import Quantity, rate, thinned, total_of_groups
from mi_core.images import Decoder
from pipelines.config.attributes import AttributeConfig
from pipelines.config.data import DataConfig, Role
from pipelines.config.sources import SourceConfig
from pipelines.data.attributes import values_of
from pipelines.data.samples import Item, Problem, Sample
from pipelines.data.scan import ATTRIBUTE, usable
from pipelines.data.sources import Source
from pipelines.data.splits import Splits, are_drawn
from pipelines.errors import UserError
from pipelines.pretrain.worker import TrainingJob
from pipelines.run.folder import SeedFolder
from pipelines.run.points import Run
from pipelines.run.ray_session import mapped

SHARDS = 4  # of a source, at most
SAMPLED = 1024  # images of a shard that are decoded, at most
SECONDS = 4.0  # for decoding images of one shard
BLOCKS = 8  # timed pieces of a shard, about
Observation = tuple[float, int]
"""Seconds, and images."""


@dataclass(frozen=True)
class ShardSample:
    """What one shard says of its source.

    Args:
        source, item: which shard.
        classes: samples by class (None: without one), unusable ones included as far as they have a class.
        read: seconds and samples of every timed piece, streamed.
        scanned: the same, streamed, decoded and hashed, as the roles are drawn.
        labels: class of the first usable samples, by key.
    """

    source: str
    item: Item
    classes: Mapping[int | None, int]
    read: tuple[Observation, ...]
    scanned: tuple[Observation, ...]
    labels: Mapping[str, int | None]

    @property
    def count(self) -> int:
        """Samples of the shard."""
        return sum(self.classes.values())


@dataclass(frozen=True, eq=False)
class SourceSample:
    """Some shards of a source of ``items`` shards; ``listed``: its number of samples, where the listing says it."""

    name: str
    model: SourceConfig
    items: int
    listed: int | None
    shards: tuple[ShardSample, ...]

    @property
    def usable(self) -> list[ShardSample]:
        """The shards in which a usable image was found. Raises UserError: there is none."""
        found = [shard for shard in self.shards if shard.labels]
        if not found:
            names = ", ".join(shard.item.name for shard in self.shards)
            raise UserError(f"data.sources.{self.name}: no usable image in the shards looked at ({names})")
        return found

    def size(self, classes: Sequence[int] | None = None) -> Quantity:
        """Samples of the source, in some classes or in all."""
        if classes is None and self.listed is not None:
            return Quantity(float(self.listed))
        counts = [
            shard.count if classes is None else sum(shard.classes.get(label, 0) for label in classes)
            for shard in self.shards
        ]
        return total_of_groups(counts, self.items)

    @property
    def reading(self) -> Quantity:
        """Seconds per sample that is streamed. Raises UserError: there are too few samples to time."""
        return self._rate([piece for shard in self.shards for piece in shard.read])

    @property
    def scanning(self) -> Quantity:
        """Seconds per sample that is streamed, decoded and hashed. Raises as `reading`."""
        return self._rate([piece for shard in self.shards for piece in shard.scanned])

    def _rate(self, pieces: Sequence[Observation]) -> Quantity:
        if len(pieces) < 2:
            raise UserError(f"data.sources.{self.name} has too few images to time reading them; give three or more")
        return rate([seconds for seconds, _ in pieces], [images for _, images in pieces])


@dataclass(frozen=True)
class Samples:
    """Samples of all sources of some runs, by name and settings of the source."""

    found: Mapping[tuple[str, str], SourceSample]

    @classmethod
    def take(cls, every: Sequence[DataConfig]) -> Samples:
        """Look at some shards of every source of some runs, as Ray tasks.

        Raises:
            UserError: a source cannot be listed.
        """
        first: dict[tuple[str, str], tuple[SourceConfig, DataConfig]] = {}
        for data in every:
            for name, source in data.sources.items():
                first.setdefault((name, source.model_dump_json()), (source, data))
        items = {key: Source(source).items() for key, (source, _) in first.items()}
        looked_at = [(key, item) for key in first for item in evenly(items[key], SHARDS)]
        given = [
            (key[0], source, item, data.decoder(), data.attributes, data.label)
            for key, item in looked_at
            for source, data in (first[key],)
        ]
        shards: dict[tuple[str, str], list[ShardSample]] = {}
        for (key, _), sample in zip(
            looked_at, mapped(sample_shard, given, "shards", "looking at some shards"), strict=True
        ):
            shards.setdefault(key, []).append(sample)
        return cls(
            {
                key: SourceSample(key[0], source, len(items[key]), _listed(items[key]), tuple(shards[key]))
                for key, (source, _) in first.items()
            }
        )

    def of(self, name: str, source: SourceConfig) -> SourceSample:
        """The sample of a source."""
        return self.found[name, source.model_dump_json()]

    def of_members(self, job: TrainingJob) -> list[SourceSample]:
        """The samples of the sources that hold the members of an encoder."""
        data = job.data
        named = [data.roles[role].source_name for role in job.config.train_on]
        origins = sorted({data.roles[name].source_name if name in data.roles else name for name in named})
        return [self.of(name, data.sources[name]) for name in origins]


def _listed(items: Sequence[Item]) -> int | None:
    counts = [item.count for item in items]
    return None if None in counts else sum(count or 0 for count in counts)


def evenly(every: Sequence[Item], count: int) -> list[Item]:
    """``count`` evenly spaced items, or all where there are fewer."""
    if len(every) <= count:
        return list(every)
    return [every[(2 * number + 1) * len(every) // (2 * count)] for number in range(count)]


def sample_shard(
    name: str,
    source: SourceConfig,
    item: Item,
    decoder: Decoder,
    attributes: Mapping[str, AttributeConfig],
    label: str | None,
) -> ShardSample:
    """Stream one shard, then decode and hash its first images.

    Args:
        name, source, item: the shard.
        decoder: of the run.
        attributes: of samples, by name.
        label: the attribute that is the class, if one is.
    """
    own = {key: one for key, one in attributes.items() if one.sources is None or name in one.sources}
    classes: Counter[int | None] = Counter()

    def streamed() -> Iterator[int]:
        for sample in Source(source).scan(item):
            classes[_class(sample, own, label)] += 1
            yield 1

    labels: dict[str, int | None] = {}

    def scanned() -> Iterator[int]:
        for found in islice(usable(source, item, decoder, own), SAMPLED):
            if not isinstance(found, Problem):
                sample, _, known = found
                labels[sample.key] = sample.label if label is None else int(known[f"{ATTRIBUTE}{label}"])
            yield 1

    read = _timed(streamed, item.count)
    count = sum(classes.values())
    decoded = _timed(scanned, min(count, SAMPLED), SECONDS)
    return ShardSample(name, item, dict(classes), read, decoded, labels)


def _class(sample: Sample | Problem, attributes: Mapping[str, AttributeConfig], label: str | None) -> int | None:
    if isinstance(sample, Problem):
        return None
    if label is None:
        return sample.label
    try:
        return values_of({label: attributes[label]}, sample)[label]
    except ValueError:
        return None


def _timed(
    pieces: Callable[[], Iterator[int]], count: int | None, seconds: float | None = None
) -> tuple[Observation, ...]:
    """Seconds and samples of pieces of a stream, in order, without the first sample, which pays for the opening."""
    size = max(1, (count or BLOCKS * 128) // BLOCKS)
    stream = iter(pieces())
    next(stream, None)
    started = last = time.perf_counter()
    found: list[Observation] = []
    while taken := sum(islice(stream, size)):
        now = time.perf_counter()
        found.append((now - last, taken))
        last = now
        if seconds is not None and now - started > seconds and len(found) > 1:
            break
    return tuple(found)


def role_sizes(runs: Sequence[Run], samples: Samples) -> dict[SeedFolder, dict[str, Quantity]]:
    """Images of the roles of every seed of some runs: counted where the roles are drawn, else from config and samples.

    Double and broken images are not known before roles are drawn: sizes by fractions, and of whole sources, hold them.
    """
    found: dict[SeedFolder, dict[str, Quantity]] = {}
    for config, folder in runs:
        for place in map(folder.seed, config.seeds):
            if are_drawn(place.path):
                found[place] = {role: Quantity(float(n)) for role, n in Splits.load(place.path).counts().items()}
            else:
                of_run = {name: samples.of(name, source) for name, source in config.data.sources.items()}
                found[place] = sizes_of(config.data, of_run)
    return found


def sizes_of(data: DataConfig, samples: Mapping[str, SourceSample]) -> dict[str, Quantity]:
    """Images of every role and part, as far as config and samples tell."""
    sizes: dict[str, Quantity] = {}
    for name, role in data.roles.items():
        if role.count is not None:
            sizes[name] = Quantity(float(role.count))
        elif role.source_name in data.sources:
            sizes[name] = thinned(samples[role.source_name].size(role.classes), role.fraction or 1.0)
    for name, role in data.roles.items():
        if name not in sizes:
            sizes[name] = thinned(_in_classes(data, role, sizes, samples), role.fraction or 1.0)
    return sizes


def _in_classes(
    data: DataConfig, part: Role, sizes: Mapping[str, Quantity], samples: Mapping[str, SourceSample]
) -> Quantity:
    """Images of a role that are in the classes of one of its parts."""
    parent = data.roles[part.source_name]
    if part.classes is None:
        return sizes[part.source_name]
    shards = samples[parent.source_name].shards
    both = set(part.classes) & set(parent.classes or part.classes)
    inside = [float(sum(shard.classes.get(label, 0) for label in both)) for shard in shards]
    of = [
        float(shard.count if parent.classes is None else sum(shard.classes.get(label, 0) for label in parent.classes))
        for shard in shards
    ]
    share = rate(inside, of) if len(shards) > 1 else Quantity(inside[0] / max(1.0, of[0]))
    return sizes[part.source_name] * share
