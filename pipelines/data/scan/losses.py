"""Account for unusable samples, and estimate how many samples a damaged shard lost.

The count is exact where the shards stand beside the manifest of `encoder-audit shards import`. Otherwise it is
estimated from the bytes behind the damage, or, where a file has no whole end, from what the whole shards hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa

from pipelines.config.sections.sources import SourceConfig
from pipelines.console import count_of
from pipelines.data.database import database
from pipelines.data.read.samples import IMAGES, Damage, Note, Portion, Problem
from pipelines.data.read.shard_paths import covered
from pipelines.data.read.sources import Source
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.many import streamed

MANIFEST = "manifest.json"
COUNTED, BY_MANIFEST, BY_BYTES, BY_OTHERS, UNKNOWN = "counted", "manifest", "bytes", "other shards", "unknown"
NOTED = "noted"
_REMEDY = "if the manifest is out of date, delete it"
SHOWN = 3  # unusable samples named in an error
_WORDS = {
    COUNTED: "as the footer of its file says",
    BY_MANIFEST: f"as {MANIFEST} says",
    BY_BYTES: "estimated from the bytes after the damage",
    BY_OTHERS: "estimated from the undamaged shards",
    UNKNOWN: "at least: every shard is damaged, so nothing shows how many",
}


@dataclass(frozen=True)
class Rejection:
    """A sample left out of the run; with an empty key, a shard or the rest of it.

    Args:
        source, shard, key: its place.
        reason: in words.
        lost: samples that are gone with it; of a note those that it is about.
        basis: how they were counted: ``counted``, ``manifest``, or estimated by ``bytes``, by the ``other shards``, or
            ``unknown`` (at the least); ``noted``: it is only a note, and no sample is gone.
    """

    source: str
    shard: str
    key: str
    reason: str
    lost: int = 1
    basis: str = COUNTED

    @property
    def estimated(self) -> bool:
        """Tell whether the number of lost samples is an estimate."""
        return self.basis not in (COUNTED, BY_MANIFEST, NOTED)

    @property
    def noted(self) -> bool:
        """Tell whether this is only a note: no sample is lost."""
        return self.basis == NOTED

    @property
    def place(self) -> str:
        """Source, shard and key, joined by slashes."""
        return "/".join(part for part in (self.source, self.shard, self.key) if part)


@dataclass(frozen=True)
class ScanReceipt:
    """The outcome of reading one item: usable samples, problems and notes for the others, and formats it lacked."""

    item: Portion
    used: int
    problems: tuple[Problem, ...]
    lacking: tuple[str, ...] = ()

    def write(self, path: str) -> None:
        """Write the receipt of an item."""
        problems = [{"kind": type(problem).__name__, **asdict(problem)} for problem in self.problems]
        storage.write_json(path, {"rows": self.used, "problems": problems, "lacking": list(self.lacking)})

    @classmethod
    def read(cls, item: Portion, path: str) -> ScanReceipt:
        """The receipt as it was written."""
        kinds = {kind.__name__: kind for kind in (Problem, Note, Damage)}
        entry = storage.read_json(path)
        problems = tuple(kinds[told.pop("kind")](**told) for told in entry["problems"])
        return cls(item, entry["rows"], problems, tuple(entry["lacking"]))

    @property
    def sample_count(self) -> int:
        """Samples seen, usable or not."""
        return self.used + sum(one.count for one in self.problems if not isinstance(one, Damage | Note))

    @property
    def whole(self) -> bool:
        """Tell whether the item was read to its end."""
        return not any(isinstance(problem, Damage) for problem in self.problems)


def rejections(name: str, source: SourceConfig, readings: Sequence[ScanReceipt], *, whole: bool) -> list[Rejection]:
    """List the unusable samples of a source in the order of its items, with the losses of damaged shards, then notes.

    Args:
        name: of the source.
        source: whose items were read.
        readings: of items, in their order.
        whole: whether all items were read; if not, none counts as missing.
    """
    rejected: list[Rejection] = []
    noted: Counter[str] = Counter()
    yardstick = _Yardstick(source, readings)
    for reading in readings:
        for problem in reading.problems:
            if isinstance(problem, Note):
                noted[problem.reason] += problem.count
            elif isinstance(problem, Damage):
                rejected.append(yardstick.judged(name, reading, problem))
            else:
                rejected.append(_listed_as(name, reading.item.name, problem))
        rejected += yardstick.short(name, reading)
    rejected += [_listed_as(name, str(source.path), problem) for problem in Source(source).unread()]
    rejected += list(yardstick.missing(name) if whole else ())
    return rejected + [Rejection(name, "", IMAGES, reason, count, NOTED) for reason, count in noted.items()]


def _listed_as(source: str, shard: str, problem: Problem) -> Rejection:
    basis = NOTED if isinstance(problem, Note) else COUNTED
    return Rejection(source, shard, problem.key, problem.reason, problem.count, basis)


class _Yardstick:
    """Known sizes of the shards of a source, from the manifest and from whole shards."""

    def __init__(self, source: SourceConfig, readings: Sequence[ScanReceipt]) -> None:
        self.source = source
        self.readings = readings
        self.whole = [reading for reading in readings if reading.whole]
        self.folders = dict.fromkeys(reading.item.path.rpartition("/")[0] for reading in readings)

    @cached_property
    def counts(self) -> dict[str, int]:
        """Samples per shard as the manifest lists them, by path."""
        if self.source.kind != "shards":
            return {}
        return {path: count for folder in self.folders for path, count in _listed(folder)}

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Bytes of all shards, by path; folders are listed only if a shard is damaged."""
        return {path: size for folder in self.folders for path, size in storage.sizes(folder).items()}

    @cached_property
    def samples(self) -> int:
        """Samples of the whole shards."""
        return sum(reading.sample_count for reading in self.whole)

    @cached_property
    def bytes_per_sample(self) -> float:
        """Mean over the whole shards; 0 if there is none."""
        size = sum(self.sizes.get(path, 0) for path in {reading.item.path for reading in self.whole})
        return size / max(1, self.samples)

    @property
    def most(self) -> int:
        """Largest number of samples that a damaged shard gave."""
        return max(one.found for reading in self.readings for one in reading.problems if isinstance(one, Damage))

    def judged(self, name: str, reading: ScanReceipt, damage: Damage) -> Rejection:
        lost, basis = self._lost(reading.item, damage)
        about = "" if basis in (COUNTED, BY_MANIFEST) else "about "
        reason = f"{damage.reason}; {about}{count_of(lost, 'sample', 'samples')} lost, {_WORDS[basis]}"
        return Rejection(name, reading.item.name, "", reason, lost, basis)

    def _lost(self, item: Portion, damage: Damage) -> tuple[int, str]:
        if item.count is not None:
            return item.count - damage.found, COUNTED
        if item.path in self.counts:
            return max(0, self.counts[item.path] - damage.found), BY_MANIFEST
        each = damage.read / damage.found if damage.found else self.bytes_per_sample
        by_bytes = round(damage.left / each) if each else 0
        if not damage.cut:
            return max(1, by_bytes), BY_BYTES
        by_others = round(self.samples / max(1, len(self.whole))) - damage.found
        if not self.whole:
            return max(1, by_bytes, self.most - damage.found), UNKNOWN
        return (by_bytes, BY_BYTES) if by_bytes > by_others else (max(0, by_others), BY_OTHERS)

    def short(self, name: str, reading: ScanReceipt) -> Iterator[Rejection]:
        """A shard that is whole but holds fewer samples than the manifest says."""
        listed = self.counts.get(reading.item.path, 0)
        if reading.whole and reading.sample_count < listed:
            reason = f"it holds {reading.sample_count} of the {listed} samples that {MANIFEST} lists ({_REMEDY})"
            yield Rejection(name, reading.item.name, "", reason, listed - reading.sample_count, BY_MANIFEST)

    def missing(self, name: str) -> Iterator[Rejection]:
        """Shards that the manifest lists and the source's patterns name, but that do not exist."""
        there = {reading.item.path for reading in self.readings}
        for path in covered(self.source.patterns, sorted(self.counts.keys() - there)):
            shard = PurePosixPath(path).name.removesuffix(".tar")
            reason = f"missing, though {MANIFEST} lists it ({_REMEDY})"
            yield Rejection(name, shard, "", reason, self.counts[path], BY_MANIFEST)


def _listed(folder: str) -> Iterator[tuple[str, int]]:
    """Path and number of samples of every shard in a folder's manifest; empty without a manifest of `shards import`."""
    if not storage.exists(f"{folder}/{MANIFEST}"):
        return
    try:
        for entry in storage.read_json(f"{folder}/{MANIFEST}")["shards"]:
            yield f"{folder}/{entry['name']}", int(entry["samples"])
    except (OSError, ValueError, TypeError, KeyError):  # somebody else's
        return


@dataclass(frozen=True)
class Tally:
    """Numbers of usable samples, unusable samples and shards.

    Args:
        used: usable samples.
        rejected: the samples and shards left out.
        shards: number of items by source, missing ones included.
    """

    used: int
    rejected: tuple[Rejection, ...]
    shards: Mapping[str, int]

    @property
    def lost(self) -> int:
        """Samples left out."""
        return sum(bad.lost for bad in self.unusable)

    @property
    def unusable(self) -> list[Rejection]:
        """The samples and shards left out, without mere notes."""
        return [bad for bad in self.rejected if not bad.noted]

    def notes(self) -> list[str]:
        """The notes, one line per source; a note costs no sample."""
        by_source: dict[str, list[str]] = {}
        for bad in self.rejected:
            if bad.noted:
                about = count_of(bad.lost, "image", "images") if bad.key == IMAGES else bad.key
                by_source.setdefault(bad.source, []).append(f"{about}: {bad.reason}")
        return [f"{source}{': ' if source else ''}" + "; ".join(notes) for source, notes in by_source.items()]

    @classmethod
    def from_rejections(cls, used: int, rejected: Sequence[Rejection], items: Mapping[str, Sequence[Portion]]) -> Tally:
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

        If no shard of a source is whole, the number of lost samples is unknown; then the share of damaged shards is
        compared instead.
        """
        named = "; ".join(f"{bad.place}: {bad.reason}" for bad in self.unusable[:SHOWN])
        if self.lost > allowed * (self.used + self.lost):
            raise UserError(f"{self}, more than {option}: {named}")
        for name, count in self.shards.items():
            blind = sum(bad.source == name and bad.basis == UNKNOWN for bad in self.rejected)
            if blind > allowed * count:
                raise UserError(
                    f"{blind} of {count} shards of {name} are unreadable or short, more than {option}, and no "
                    f"shard is undamaged, so the loss cannot be estimated: {named}"
                )


_READ = pa.schema([("shard", pa.uint32()), ("row", pa.uint32()), ("key", pa.string())])


def repeated_keys(paths: Sequence[str], rows: int) -> pa.Table:
    """The samples whose key an earlier file has.

    Args:
        paths: of Parquet files with a column ``key``; none holds a key twice.
        rows: of all files.

    Returns:
        shard (number of the file), row, key, and earlier (number of the file that has the key first), in order.
    """
    with database(rows) as connection:
        connection.register("every", storage.data_set(paths))
        connection.execute("CREATE TABLE again AS SELECT hash(key) AS h FROM every GROUP BY h HAVING count(*) > 1")
        if not connection.execute("SELECT count(*) FROM again").fetchall()[0][0]:
            return pa.table({name: pa.array([], pa.uint32()) for name in ("shard", "row", "key", "earlier")})
        connection.register("read", pa.RecordBatchReader.from_batches(_READ, _batches(paths)))
        connection.execute(
            "CREATE TABLE suspects AS SELECT shard, row, key FROM read WHERE hash(key) IN (SELECT h FROM again)"
        )
        return connection.sql(
            """
            SELECT shard, row, key, earlier FROM (
                SELECT *, first_value(shard) OVER (PARTITION BY key ORDER BY shard) AS earlier FROM suspects
            ) WHERE shard <> earlier ORDER BY shard, row
            """
        ).to_arrow_table()


def _keys(path: str) -> pa.Array:
    return storage.read_table(path, ["key"])["key"].combine_chunks()


def _batches(paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for number, keys in enumerate(streamed(_keys, paths)):
        columns = [np.full(len(keys), number, np.uint32), np.arange(len(keys), dtype=np.uint32), keys]
        yield pa.record_batch([pa.array(column) for column in columns], schema=_READ)
