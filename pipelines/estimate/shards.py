"""A few shards of every source: how long their images take to read and decode, and how many images a role has.

Every source is sampled by itself, so a rare or expensive one counts with its own times and its own number of images.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from mi_core.costs import NOTHING, Range, rate, total_of_groups
from pipelines.config.data import DataConfig
from pipelines.config.sources import SourceConfig
from pipelines.data.samples import Item, Problem
from pipelines.data.scan import ATTRIBUTE, usable
from pipelines.data.sources import Source
from pipelines.data.splits import Splits, are_drawn
from pipelines.errors import UserError
from pipelines.files.digest import digest
from pipelines.run.folder import SeedFolder
from pipelines.run.points import Run
from pipelines.run.ray_session import mapped

SHARDS = 4  # of a source, at most
DECODED = 256  # images of a shard, at most
RoleSizes = Mapping[str, Range]
"""Images of every role and part of a seed."""


@dataclass(frozen=True)
class ShardSample:
    """One shard: its images, seconds to stream them, seconds to decode the first, and the classes of these by key."""

    source: str
    item: Item
    images: int
    streaming: float
    decoding: float
    labels: Mapping[str, int | None]

    def count(self, classes: Sequence[int] | None = None) -> float:
        """Images of the shard, in all classes or as many as the decoded ones have in some."""
        if classes is None:
            return self.images
        return self.images * sum(label in classes for label in self.labels.values()) / max(1, len(self.labels))


@dataclass(frozen=True)
class SourceSample:
    """Some shards of a source; ``items``: all that it has."""

    name: str
    items: Sequence[Item]
    shards: Sequence[ShardSample]

    @property
    def usable(self) -> list[ShardSample]:
        """The shards that hold a usable image. Raises UserError: none does."""
        found = [shard for shard in self.shards if shard.labels]
        if not found:
            names = ", ".join(shard.item.name for shard in self.shards)
            raise UserError(f"data.sources.{self.name}: no usable image in the shards looked at ({names})")
        return found

    def size(self, classes: Sequence[int] | None = None) -> Range:
        """Images of the source, in some classes or in all."""
        listed = [item.count for item in self.items if item.count is not None]
        if classes is None and len(listed) == len(self.items):
            return Range.exact(sum(listed))
        return total_of_groups([shard.count(classes) for shard in self.shards], len(self.items))

    @property
    def streaming(self) -> Range:
        """Seconds per image that is streamed."""
        return rate([shard.streaming for shard in self.usable], [shard.images for shard in self.usable])

    @property
    def scanning(self) -> Range:
        """Seconds per image that is streamed, decoded and hashed, as roles are drawn."""
        return rate([shard.decoding for shard in self.usable], [len(shard.labels) for shard in self.usable])


Samples = Mapping[str, SourceSample]
"""Samples of sources by `source_key`."""


def source_key(name: str, source: SourceConfig) -> str:
    """A source and its settings, which may change over a sweep."""
    return digest(name, source.model_dump(mode="json"))


def sample_sources(runs: Sequence[Run]) -> Samples:
    """Look at some shards of every source, as Ray tasks. Raises UserError: a source cannot be listed."""
    data = [config.data for config, _ in runs]
    sources = {source_key(name, source): (name, source, of) for of in data for name, source in of.sources.items()}
    items = {key: Source(source).items() for key, (_, source, _) in sources.items()}
    work = [(key, item) for key in sources for item in evenly(items[key], SHARDS)]
    shards = mapped(sample_shard, [(*sources[key], item) for key, item in work], "shards", "looking at some shards")
    pairs = list(zip(work, shards, strict=True))
    return {
        key: SourceSample(name, items[key], [shard for (of, _), shard in pairs if of == key])
        for key, (name, *_) in sources.items()
    }


def evenly(every: Sequence[Item], count: int) -> list[Item]:
    """``count`` evenly spaced items, or all if there are fewer."""
    if len(every) <= count:
        return list(every)
    return [every[(2 * number + 1) * len(every) // (2 * count)] for number in range(count)]


def sample_shard(name: str, source: SourceConfig, data: DataConfig, item: Item) -> ShardSample:
    """Stream one shard whole, then decode and hash its first images."""
    own = {key: one for key, one in data.attributes.items() if one.sources is None or name in one.sources}
    near = data.near_duplicates is not None
    next(Source(source).scan(item), None)  # opens the source
    started = time.perf_counter()
    images = sum(1 for _ in Source(source).scan(item))
    streamed = time.perf_counter()
    first = list(islice(usable(source, item, data.decoder(), own, data.group_by, near), DECODED))
    decoding = time.perf_counter() - streamed
    labels: dict[str, int | None] = {}
    for found in first:
        if not isinstance(found, Problem):
            sample, _, known = found
            labels[sample.key] = sample.label if data.label is None else known[f"{ATTRIBUTE}{data.label}"]
    return ShardSample(name, item, images, streamed - started, decoding, labels)


def role_sizes(runs: Sequence[Run], samples: Samples) -> dict[SeedFolder, RoleSizes]:
    """Images of the roles of every seed: exact where roles are drawn, otherwise from the config and the samples."""
    sizes: dict[SeedFolder, RoleSizes] = {}
    for config, folder in runs:
        for place in map(folder.seed, config.seeds):
            if are_drawn(place.path):
                sizes[place] = {role: Range.exact(n) for role, n in Splits.load(place.path).counts().items()}
            else:
                sizes[place] = sizes_of(config.data, samples)
    return sizes


def sizes_of(data: DataConfig, samples: Samples) -> RoleSizes:
    """Images of every role and part. Broken and double images count: only drawing the roles finds them."""
    sizes: dict[str, Range] = {}
    for name, role in sorted(data.roles.items(), key=lambda named: named[1].source_name not in data.sources):
        origin, part = role.source_name, role.fraction or 1.0
        if role.count is not None:
            sizes[name] = Range.exact(role.count)
        elif origin in data.sources:
            sizes[name] = samples[source_key(origin, data.sources[origin])].size(role.classes) * part
        else:
            sizes[name] = sizes[origin] * _share(data, name, samples) * part
    return sizes


def _share(data: DataConfig, part: str, samples: Samples) -> Range:
    """The share of a role that is in the classes of one of its parts."""
    classes, parent = data.roles[part].classes, data.roles[data.roles[part].source_name]
    if classes is None:
        return Range.exact(1.0)
    both = [label for label in classes if parent.classes is None or label in parent.classes]
    shards = samples[source_key(parent.source_name, data.sources[parent.source_name])].usable
    pairs = [(shard.count(both), of) for shard in shards if (of := shard.count(parent.classes))]
    return rate(*zip(*pairs, strict=True)) if pairs else NOTHING
