"""Read every sample of every source once: decode it as the run will decode it, and hash its pixels.

Every item is a task of its own, which commits one Parquet file and last a receipt; a scan that was killed goes on with
the items that have no receipt. Unusable samples are listed with place and reason; the run continues while they are few.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from mi_core.image_files import ImageError, lacking, readable
from mi_core.images import Decoder, Pixels, decode_and_hash
from mi_core.validity.near_duplicates import LEAST_SIDE, TOO_SMALL, marks
from pipelines.config.sections.attributes import AttributeConfig, GroupConfig
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.sources import SHARDED, SourceConfig
from pipelines.console import count_of, say
from pipelines.data.columns import ATTRIBUTE, DESCRIPTOR, GROUP, PHASH
from pipelines.data.database import memory_for, one_by_one
from pipelines.data.read.attributes import Attributes, group_of
from pipelines.data.read.samples import FILES, IMAGES, Damage, Note, Portion, Problem, Sample
from pipelines.data.read.shard_paths import sampled
from pipelines.data.read.sources import Source
from pipelines.data.scan.glimpses import Keeping, glimpses_path, most_of_shard
from pipelines.data.scan.losses import Rejection, ScanReceipt, Tally, rejections, repeated_keys
from pipelines.errors import Unavailable
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.files.stores import may_pass
from pipelines.run.parts import TaskMap

LISTED = 100  # unusable samples of an item that are listed one by one, at most
LISTED_OF_SOURCE = 10_000  # the same of all items of a source; one of each item is listed in any case
REPEATED = "repeated-keys.parquet"
Look = Callable[[Sequence[Portion]], Sequence[Portion]]


@dataclass(frozen=True)
class ScannedShard:
    """The kept samples of one item.

    Args:
        source, item: the name of its source, and its own.
        path: its Parquet file: key, label, sha256, attribute.* of its source; group where samples are grouped; phash
            and descriptor where near-copies are looked for. In the order of the item.
        rows: of the file.
    """

    source: str
    item: str
    path: str
    rows: int


@dataclass(frozen=True)
class Scan:
    """The samples of all sources, kept shard by shard, and the tally of unusable samples.

    Args:
        folder: of the files.
        shards: in the order of the sources.
        repeated: number of samples of every source whose key an earlier shard has; `REPEATED` lists them by source,
            item, row and key. They are not usable.
        tally: of the samples.
        read: shards that were read and that there are, of every source.
        held: a temporary folder that goes with the scan.
    """

    folder: str
    shards: tuple[ScannedShard, ...]
    repeated: Mapping[str, int]
    tally: Tally
    read: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    held: Any = field(default=None, repr=False, compare=False)

    @property
    def rejected(self) -> tuple[Rejection, ...]:
        """The unusable samples, in the order of the sources."""
        return self.tally.rejected

    @property
    def usable(self) -> dict[str, int]:
        """Number of usable samples of every source."""
        rows: Counter[str] = Counter()
        for shard in self.shards:
            rows[shard.source] += shard.rows
        return {source: count - self.repeated.get(source, 0) for source, count in rows.items()}


def scan(data: DataConfig, folder: str | None = None, task_map: TaskMap = one_by_one, look: Look | None = None) -> Scan:
    """Decode and hash every sample of every source, once for all seeds.

    Args:
        data: sources, decoder, attributes and group to read, and the share of unusable samples that is allowed.
        folder: keeps what was read of every item; an item that is there is not read again. None: a temporary one.
        task_map: runs the tasks, one for each item.
        look: which items of a source to read; None: all.

    Raises:
        UserError: more samples than allowed are unusable; the first are named.
    """
    held = tempfile.TemporaryDirectory(prefix="encoder-audit-") if folder is None else None
    place = folder or str(held and held.name)
    sources = data.sources
    every = {name: Source(source).items() for name, source in sources.items()}
    drawn = {name: sampled(there, name, data.shards) for name, there in every.items()}
    items = drawn if look is None else {name: look(there) for name, there in drawn.items()}
    read = _read(data, items, place, task_map)
    usable_shards, rejected, of_earlier = [], [], {}
    tables: list[pa.Table] = []
    for name, pieces in read.items():
        repeatable = sources[name].kind in SHARDED and len(pieces) > 1
        usable_shards += [piece.shard(reading.used) for piece, reading in pieces]
        found, readings = pa.table({}), [reading for _, reading in pieces]
        if repeatable:
            found, readings = _each_key_once(pieces, task_map)
        rejected += rejections(name, sources[name], readings, whole=len(items[name]) == len(every[name]))
        if len(found):
            of_earlier[name] = len(found)
            tables.append(found)
    if tables:
        storage.write_table(f"{place}/{REPEATED}", pa.concat_tables(tables))
    used = sum(shard.rows for shard in usable_shards) - sum(of_earlier.values())
    tally = Tally.from_rejections(used, rejected, items)
    tally.check(data.max_rejected, f"data.max_rejected = {data.max_rejected:.2%}")
    of_all = {name: (len(drawn[name]), len(there)) for name, there in every.items()}
    return Scan(place, tuple(usable_shards), of_earlier, tally, of_all, held)


@dataclass(frozen=True)
class _Work:
    """An item to read.

    Args:
        source, item: in which source, and which.
        state: of its files and of what they are read with; another state means that it has to be read again.
        folder: of the scan.
        glimpses: samples of which more is kept, see `pipelines.data.scan.glimpses`.
        listed: unusable samples, and notes, that are listed one by one.
    """

    source: str
    item: Portion
    state: str
    folder: str
    glimpses: int
    listed: int

    @property
    def place(self) -> str:
        """Of the outcome, less its ending. Another state has another place: drawn roles keep the first."""
        return f"{self.folder}/{self.source}/{self.item.name}-{self.state[:8]}"

    @property
    def receipt(self) -> str:
        """The file that is written last."""
        return f"{self.place}.json"

    def shard(self, rows: int) -> ScannedShard:
        """The kept samples."""
        return ScannedShard(self.source, self.item.name, f"{self.place}.parquet", rows)


_Read = list[tuple[_Work, ScanReceipt]]


def _read(data: DataConfig, items: Mapping[str, Sequence[Portion]], folder: str, task_map: TaskMap) -> dict[str, _Read]:
    """Read what is not there yet; the receipts of all items by source."""
    work = [
        _Work(name, item, state, folder, most_of_shard(len(some)), max(1, min(LISTED, LISTED_OF_SOURCE // len(some))))
        for name, some in items.items()
        for item, state in zip(some, _states(some, data.attributes_in(name)), strict=True)
    ]
    receipts = _read_receipts(work)
    work, before = [_with_new_formats(piece, receipts.get(piece.receipt)) for piece in work], work
    receipts |= _read_receipts([piece for piece, old in zip(work, before, strict=True) if piece is not old])
    todo = [piece for piece in work if piece.receipt not in receipts]
    if len(todo) < len(work):
        say("data", f"{len(work) - len(todo)} of {count_of(len(work), 'shard', 'shards')} already read")
    made = task_map(scan_item, [(piece, data) for piece in todo], title="reading and hashing")
    receipts |= {piece.receipt: receipt for piece, receipt in zip(todo, made, strict=True)}
    read: dict[str, _Read] = {name: [] for name in items}
    for piece in work:
        read[piece.source].append((piece, receipts[piece.receipt]))
    return read


def _read_receipts(work: Sequence[_Work]) -> dict[str, ScanReceipt]:
    """The receipts of items that were read to their end: damage may have been a fault of the network."""
    written = storage.existing(piece.receipt for piece in work)
    there = [piece for piece in work if piece.receipt in written]
    read = storage.at_once(lambda piece: ScanReceipt.read(piece.item, piece.receipt), there)
    return {piece.receipt: one for piece, one in zip(there, read, strict=True) if one.whole}


def _with_new_formats(piece: _Work, receipt: ScanReceipt | None) -> _Work:
    """An item as it is to be read: anew, where its receipt lacked formats that can be read by now."""
    gained = sorted(set(receipt.lacking) & set(readable())) if receipt and receipt.lacking else []
    return replace(piece, state=digest(piece.state, *gained)) if gained else piece


def _states(items: Sequence[Portion], attributes: Mapping[str, AttributeConfig]) -> list[str]:
    """The state of every item: which files it has, and when these and the tables of attributes were written.

    Each folder is listed once.
    """
    named = sorted({one.table for one in attributes.values() if one.table is not None})
    tables = [(path, storage.stamp(path)) for path in named]
    files = [[f"{item.path}/{name}" for name in item.files] or [item.path] for item in items]
    folders = {path.rpartition("/")[0] for paths in files for path in paths if path}
    written = {path: stamp for folder in folders for path, stamp in storage.stamps(folder).items()}
    return [
        digest(item.name, item.start, item.stop, [(path, written.get(path)) for path in paths if path], *tables)
        for item, paths in zip(items, files, strict=True)
    ]


def _each_key_once(read: _Read, task_map: TaskMap) -> tuple[pa.Table, list[ScanReceipt]]:
    """The samples of a source whose key an earlier item has, and the readings of its items, where these are problems.

    Returns:
        A table of source, item, row, key; and the readings.
    """
    readings = [reading for _, reading in read]
    rows = sum(reading.used for reading in readings)
    shards = [piece.shard(reading.used) for piece, reading in read]
    paths = [shard.path for shard in shards]
    (found,) = task_map(repeated_keys, [(paths, rows)], title="comparing keys", memory=memory_for(rows))
    names = pa.array([shard.item for shard in shards])
    again: dict[int, list[Problem]] = {}
    for shard, key, earlier in zip(*(found[name].to_pylist() for name in ("shard", "key", "earlier")), strict=True):
        again.setdefault(shard, []).append(repeated(key, shards[earlier].item))
    for shard, problems in again.items():
        before = readings[shard]
        told = (*before.problems, *shortened(problems, read[0][0].listed))
        readings[shard] = replace(before, used=before.used - len(problems), problems=told)
    source = pa.array([read[0][0].source] * len(found), pa.string())
    columns = {"source": source, "item": names.take(found["shard"]), "row": found["row"], "key": found["key"]}
    return pa.table(columns), readings


def repeated(key: str, shard: str) -> Problem:
    """The problem of a sample whose key an earlier shard has."""
    reason = f"shard {shard} already has this key; if it is another image, set shard_in_key: true on the source"
    return Problem(key, reason)


def shortened(problems: Sequence[Problem], most: int) -> list[Problem]:
    """The first ``most`` problems; one more counts the others by the first words of their reason. Notes are counted."""
    rest: dict[tuple[type[Problem], str], list[Problem]] = {}
    seen, noted = 0, Counter(one.reason for one in problems if isinstance(one, Note))
    listed: list[Problem] = []
    for problem in problems:
        kind = type(problem)
        if kind is Note:
            continue
        seen += 1
        if seen <= most or kind is Damage:
            listed.append(problem)
        else:
            rest.setdefault((kind, problem.reason.partition(":")[0]), []).append(problem)
    for (kind, _), others in rest.items():
        reason = f"{count_of(len(others), 'more sample', 'more samples')}, the first {others[0].key}: "
        listed.append(kind(FILES, f"{reason}{others[0].reason}", count=len(others)))
    return listed + [Note(IMAGES, reason, count=count) for reason, count in noted.items()]


def _schema(attributes: Iterable[str], group_by: GroupConfig | None, near: bool) -> pa.Schema:
    own = [("key", pa.string()), ("label", pa.int64()), ("sha256", pa.binary(32))]
    own += [(f"{ATTRIBUTE}{name}", pa.int64()) for name in attributes]
    own += [(GROUP, pa.string())] if group_by else []
    own += [(PHASH, pa.uint64()), (DESCRIPTOR, pa.binary(64))] if near else []
    return pa.schema(own)


def usable(
    source: SourceConfig,
    item: Portion,
    decoder: Decoder,
    attributes: Mapping[str, AttributeConfig] | None = None,
    group_by: GroupConfig | None = None,
    near: bool = False,
) -> Iterator[tuple[Sample, Pixels, str, dict[str, Any]] | Problem]:
    """Read an item in order: (sample, its pixels, their SHA-256, its other columns) if it decodes, or a problem.

    Raises:
        UserError: the table of an attribute cannot be read.
        Unavailable: the store of the item does not answer; nothing is known of its samples.
    """
    own = Attributes(attributes or {})
    for sample in Source(source).scan(item):
        if isinstance(sample, Problem):
            if may_pass(sample.reason):  # no damage: it may be whole the next time
                raise Unavailable(f"{item.path}: {sample.reason}")
            yield sample
            continue
        try:
            pixels, sha, side, remarks = decode_and_hash(sample.image, decoder)
            known: dict[str, Any] = {f"{ATTRIBUTE}{name}": value for name, value in own.values_of(sample).items()}
            known |= {GROUP: group_of(group_by, sample)} if group_by else {}
            if near:
                known |= dict(zip((PHASH, DESCRIPTOR), marks(pixels, side), strict=True))
                remarks += (TOO_SMALL,) if side < LEAST_SIDE else ()
        except ImageError as error:
            yield Problem(sample.key, f"undecodable: {error}")
        except ValueError as error:
            yield Problem(sample.key, str(error))
        else:
            yield sample, pixels, sha, known
            yield from (Note(sample.key, remark) for remark in remarks)


def scan_item(work: _Work, data: DataConfig) -> ScanReceipt:
    """Decode and hash one item; write a Parquet file, and last a receipt."""
    near = data.near_duplicates is not None
    attributes = data.attributes_in(work.source)
    rows: list[dict[str, Any]] = []
    problems: list[Problem] = []
    keeping = Keeping(work.source, work.glimpses)
    for found in usable(data.sources[work.source], work.item, data.decoder(), attributes, data.group_by, near):
        if isinstance(found, Problem):
            problems.append(found)
            continue
        sample, pixels, sha, known = found
        keeping.see(sample.key, sample.image, pixels)
        label = sample.label if data.label is None else known.get(f"{ATTRIBUTE}{data.label}")
        rows.append({"key": sample.key, "label": label, "sha256": bytes.fromhex(sha), **known})
    samples = pa.Table.from_pylist(rows, _schema(attributes, data.group_by, near))
    told = tuple(shortened(problems, work.listed))
    reading = ScanReceipt(work.item, len(samples), told, lacking(one.reason for one in problems))
    keeping.write(glimpses_path(f"{work.place}.parquet"))
    storage.write_table(f"{work.place}.parquet", samples)
    reading.write(work.receipt)
    return reading
