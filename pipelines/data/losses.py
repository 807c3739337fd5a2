"""What is left out of a source, and how many samples are lost with each damaged shard.

The count is exact where the shards stand beside the manifest of `encoder-audit shards import`. Otherwise it is
estimated from the bytes behind the damage, or, where a file has no whole end, from what the whole shards hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from pipelines.config.sources import SourceConfig
from pipelines.console import count_of
from pipelines.data.samples import FILES, Damage, Item, Note, Problem
from pipelines.data.shard_paths import covered
from pipelines.data.sources import Source
from pipelines.errors import UserError
from pipelines.files import storage

MANIFEST = "manifest.json"
COUNTED, BY_MANIFEST, BY_BYTES, BY_OTHERS, UNKNOWN = "counted", "manifest", "bytes", "other shards", "unknown"
_REMEDY = "delete it if it is out of date"
SHOWN = 3  # unusable samples named in an error
_WORDS = {
    BY_MANIFEST: f"as {MANIFEST} says",
    BY_BYTES: "judged by the bytes behind it",
    BY_OTHERS: "judged by the whole shards",
    UNKNOWN: "at the least: no shard is whole, so how many cannot be known",
}


@dataclass(frozen=True)
class Rejection:
    """A sample, or with an empty key (the rest of) a shard, that is left out of the run.

    Args:
        source, shard, key: its place.
        reason: in words.
        lost: samples that are gone with it.
        basis: how they were counted: ``counted``, ``manifest``, or estimated by ``bytes``, by the ``other shards``, or
            ``unknown`` (at the least).
    """

    source: str
    shard: str
    key: str
    reason: str
    lost: int = 1
    basis: str = COUNTED

    @property
    def estimated(self) -> bool:
        """Whether the number of lost samples is no count."""
        return self.basis not in (COUNTED, BY_MANIFEST)

    @property
    def noted(self) -> bool:
        """Whether nothing is left out: it is only to know."""
        return bool(self.key) and not self.lost

    @property
    def place(self) -> str:
        """Where it stood."""
        return "/".join(part for part in (self.source, self.shard, self.key) if part)


@dataclass(frozen=True)
class Reading:
    """One item as it was read: the samples in use, and a problem for each of the others."""

    item: Item
    used: int
    problems: tuple[Problem, ...]

    @property
    def found(self) -> int:
        """Samples that were met, in use or not."""
        return self.used + sum(not isinstance(problem, Damage | Note) for problem in self.problems)

    @property
    def whole(self) -> bool:
        """Whether it was read to its end."""
        return not any(isinstance(problem, Damage) for problem in self.problems)


def rejections(name: str, source: SourceConfig, readings: Sequence[Reading]) -> list[Rejection]:
    """All that is left out of a source, in the order of its items; what every damaged shard held is counted.

    Args:
        name: of the source.
        source: whose items were read.
        readings: of all items.
    """
    found: list[Rejection] = []
    yardstick = _Yardstick(source, readings)
    for reading in readings:
        for problem in reading.problems:
            if isinstance(problem, Damage):
                found.append(yardstick.judged(name, reading, problem))
            else:
                found.append(_listed_as(name, reading.item.name, problem))
        found += yardstick.short(name, reading)
    found += [_listed_as(name, str(source.path), problem) for problem in Source(source).unread()]
    return found + list(yardstick.missing(name))


def _listed_as(source: str, shard: str, problem: Problem) -> Rejection:
    return Rejection(source, shard, problem.key, problem.reason, 0 if isinstance(problem, Note) else 1)


class _Yardstick:
    """What shards of a source hold, as far as is known."""

    def __init__(self, source: SourceConfig, readings: Sequence[Reading]) -> None:
        self.source = source
        self.readings = readings
        self.whole = [reading for reading in readings if reading.whole]

    @cached_property
    def counts(self) -> dict[str, int]:
        """Samples of every shard that a manifest lists, by path."""
        if self.source.kind != "shards":
            return {}
        folders = dict.fromkeys(reading.item.path.rpartition("/")[0] for reading in self.readings)
        return {path: count for folder in folders for path, count in _listed(folder)}

    @cached_property
    def samples_per_shard(self) -> float:
        """Mean of the whole shards."""
        return sum(reading.found for reading in self.whole) / max(1, len(self.whole))

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Bytes of all shards, by path: one question per folder, asked only where a shard is damaged."""
        folders = dict.fromkeys(reading.item.path.rpartition("/")[0] for reading in self.readings)
        return {path: size for folder in folders for path, size in storage.sizes(folder).items()}

    @cached_property
    def bytes_per_sample(self) -> float:
        """Mean of the whole shards; 0 where there is none."""
        size = sum(self.sizes.get(reading.item.path, 0) for reading in self.whole)
        return size / max(1, sum(reading.found for reading in self.whole))

    @property
    def most(self) -> int:
        """Samples of the damaged shard that gave most."""
        return max(one.found for reading in self.readings for one in reading.problems if isinstance(one, Damage))

    def judged(self, name: str, reading: Reading, damage: Damage) -> Rejection:
        lost, basis = self._lost(reading.item, damage)
        about = "" if basis == BY_MANIFEST else "about "
        reason = f"{damage.reason}; {about}{count_of(lost, 'sample', 'samples')} lost, {_WORDS[basis]}"
        return Rejection(name, reading.item.name, "", reason, lost, basis)

    def _lost(self, item: Item, damage: Damage) -> tuple[int, str]:
        if item.path in self.counts:
            return max(0, self.counts[item.path] - damage.found), BY_MANIFEST
        each = damage.read / damage.found if damage.found else self.bytes_per_sample
        by_bytes = round(damage.left / each) if each else 0
        if not damage.cut:
            return max(1, by_bytes), BY_BYTES
        by_others = round(self.samples_per_shard) - damage.found
        if not self.whole:
            return max(1, by_bytes, self.most - damage.found), UNKNOWN
        return (by_bytes, BY_BYTES) if by_bytes > by_others else (max(0, by_others), BY_OTHERS)

    def short(self, name: str, reading: Reading) -> Iterator[Rejection]:
        """A shard that ends well but before the manifest says so."""
        listed = self.counts.get(reading.item.path, 0)
        if reading.whole and reading.found < listed:
            reason = f"it holds {reading.found} of the {listed} samples that {MANIFEST} lists ({_REMEDY})"
            yield Rejection(name, reading.item.name, "", reason, listed - reading.found, BY_MANIFEST)

    def missing(self, name: str) -> Iterator[Rejection]:
        """Shards of the manifest that the source's patterns name, and that are not there."""
        there = {reading.item.path for reading in self.readings}
        for path in covered(self.source.patterns, sorted(self.counts.keys() - there)):
            shard = PurePosixPath(path).name.removesuffix(".tar")
            reason = f"missing, though {MANIFEST} lists it ({_REMEDY})"
            yield Rejection(name, shard, "", reason, self.counts[path], BY_MANIFEST)


def _listed(folder: str) -> Iterator[tuple[str, int]]:
    """Path and samples of every shard in the manifest of a folder; nothing where there is none of ours."""
    if not storage.exists(f"{folder}/{MANIFEST}"):
        return
    try:
        for entry in storage.read_json(f"{folder}/{MANIFEST}")["shards"]:
            yield f"{folder}/{entry['name']}", int(entry["samples"])
    except (OSError, ValueError, TypeError, KeyError):  # somebody else's
        return


@dataclass(frozen=True)
class Tally:
    """Samples in use and left out, shards and how many of them are unreadable or short.

    Args:
        used: usable samples.
        rejected: all that is left out.
        shards: number of items by source, missing ones included.
    """

    used: int
    rejected: tuple[Rejection, ...]
    shards: Mapping[str, int]

    @property
    def lost(self) -> int:
        """Samples left out."""
        return sum(bad.lost for bad in self.rejected)

    @property
    def unusable(self) -> list[Rejection]:
        """What is left out, without what is only noted."""
        return [bad for bad in self.rejected if not bad.noted]

    def notes(self) -> list[str]:
        """What is to know of every source besides, a line each; nothing is lost with it."""
        found: dict[str, dict[tuple[str, str], list[str]]] = {}
        for bad in self.rejected:
            if bad.noted:
                apart = bad.key if bad.key.startswith(FILES) else ""
                found.setdefault(bad.source, {}).setdefault((bad.reason, apart), []).append(bad.key)
        return [
            f"{source}{': ' if source else ''}"
            + "; ".join(f"{_keys(keys)}: {reason}" for (reason, _), keys in notes.items())
            for source, notes in found.items()
        ]

    @classmethod
    def of(cls, used: int, rejected: Sequence[Rejection], items: Mapping[str, Sequence[Item]]) -> Tally:
        """The tally of some sources with these items."""
        shards = {name: {item.name for item in every} for name, every in items.items()}
        for bad in rejected:
            if not bad.key:
                shards[bad.source].add(bad.shard)
        return cls(used, tuple(rejected), {name: len(every) for name, every in shards.items()})

    def __str__(self) -> str:
        """For example ``about 500 of 1000 samples are unusable (5 of 10 shards unreadable or short)``."""
        about = "about " if any(bad.estimated for bad in self.rejected) else ""
        bad = [one for one in self.rejected if not one.key]
        sources = {one.source for one in bad}
        every = sum(count for name, count in self.shards.items() if name in sources)
        shards = f" ({len(bad)} of {every} shards unreadable or short)" if bad else ""
        return f"{about}{self.lost} of {self.used + self.lost} samples are unusable{shards}"

    def check(self, allowed: float, option: str) -> None:
        """Raise UserError, with the first places, if more than a share ``allowed`` in [0, 1] is lost.

        Where no shard of a source is whole, nothing says how much the damaged ones lost: then it is their share of the
        shards that counts.
        """
        named = "; ".join(f"{bad.place}: {bad.reason}" for bad in self.unusable[:SHOWN])
        if self.lost > allowed * (self.used + self.lost):
            raise UserError(f"{self}, more than {option}: {named}")
        for name, count in self.shards.items():
            blind = sum(bad.source == name and bad.basis == UNKNOWN for bad in self.rejected)
            if blind > allowed * count:
                raise UserError(
                    f"{blind} of {count} shards of {name} are unreadable or short, more than {option}, and none is "
                    f"whole, so what they lost cannot be known: {named}"
                )


def _keys(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{len(keys):,} samples"
