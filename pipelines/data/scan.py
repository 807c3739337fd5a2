"""Read every sample of every source once: decode it as the run will decode it, and hash its pixels.

Every item is a task of its own, which commits one Parquet file and last a receipt; a scan that was killed goes on with
the items that have no receipt. Unusable samples are listed with place and reason; the run continues while they are few.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa

from mi_core.image_files import ImageError, has_more_frames
from mi_core.images import Decoder, decode_and_hash
from mi_core.validity.near_duplicates import descriptors, perceptual_hash
from pipelines.config.attributes import AttributeConfig, GroupConfig
from pipelines.config.data import DataConfig
from pipelines.config.sources import SourceConfig
from pipelines.console import count_of, say
from pipelines.data.attributes import group_of, values_of
from pipelines.data.columns import codes_of
from pipelines.data.losses import Reading, Rejection, Tally, rejections
from pipelines.data.samples import Damage, Item, Note, Problem, Sample
from pipelines.data.sources import Source
from pipelines.files import storage
from pipelines.files.digest import digest

ATTRIBUTE = "attribute."  # before the name of an attribute: its column
GROUP = "group"  # the column of what samples belong to, where a config groups them
PHASH, DESCRIPTOR = "phash", "descriptor"  # columns of what finds near-copies, where a config looks for them
Look = Callable[[Sequence[Item]], Sequence[Item]]
ScanMap = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], list[Any]]


@dataclass(frozen=True)
class Scan:
    """Usable samples of all sources, and the tally of unusable ones.

    The samples' columns: source, item, key, label, sha256, attribute.*; group where they are grouped; phash and
    descriptor where near-copies are looked for.
    """

    samples: pa.Table
    tally: Tally

    @property
    def rejected(self) -> tuple[Rejection, ...]:
        """The unusable samples, in the order of the sources."""
        return self.tally.rejected


def scan(
    data: DataConfig, folder: str | None = None, scan_map: ScanMap | None = None, look: Look | None = None
) -> Scan:
    """Decode and hash every sample of every source, once for all seeds.

    Args:
        data: sources, decoder, attributes and group to read, and the share of unusable samples that is allowed.
        folder: keeps what was read of every item; an item that is there is not read again. None: nothing is kept.
        scan_map: ``map(function, argument tuples)`` that keeps the order, for example over Ray tasks.
        look: which items of a source to read; None: all.

    Raises:
        UserError: more samples than allowed are unusable; the first are named.
    """
    sources, near = data.sources, data.near_duplicates is not None
    every = {name: Source(source).items() for name, source in sources.items()}
    items = every if look is None else {name: look(there) for name, there in every.items()}
    work = [
        _Work(name, item, state, None if folder is None else f"{folder}/{name}/{item.name}")
        for name in sources
        for item, state in zip(items[name], _states(items[name]), strict=True)
    ]
    kept = storage.existing([_receipt(piece.place) for piece in work if piece.place is not None])
    known = [piece.known(kept) for piece in work]
    todo = [piece for piece, one in zip(work, known, strict=True) if one is None]
    if len(todo) < len(work):
        say("data", f"{len(work) - len(todo)} of {count_of(len(work), 'shard', 'shards')} already read")
    own = {
        name: {key: one for key, one in data.attributes.items() if one.sources is None or name in one.sources}
        for name in sources
    }
    mapped = scan_map or (lambda function, arguments: [function(*given) for given in arguments])
    settings = [(sources[piece.source], data.decoder(), own[piece.source], data.group_by, near) for piece in todo]
    fresh = iter(mapped(scan_item, [(piece, *one) for piece, one in zip(todo, settings, strict=True)]))
    by_source: dict[str, list[tuple[Item, ScannedItem]]] = {name: [] for name in sources}
    for piece, one in zip(work, known, strict=True):
        scanned = one or next(fresh) or ScannedItem.load(cast(str, piece.place))
        by_source[piece.source].append((piece.item, scanned))
    schema = _schema(data.attributes, data.group_by, near)
    tables: list[pa.Table] = []
    rejected: list[Rejection] = []
    for name, read in by_source.items():
        readings = []
        for (item, _), scanned in zip(read, _each_key_once(read), strict=True):
            tables.append(_with_source(scanned.samples, name, item.name, schema))
            readings.append(Reading(item, len(scanned.samples), scanned.problems))
        rejected += rejections(name, sources[name], readings, whole=len(items[name]) == len(every[name]))
    samples = pa.concat_tables(tables)
    tally = Tally.of(len(samples), rejected, items)
    tally.check(data.max_rejected, f"data.max_rejected = {data.max_rejected:.2%}")
    if data.label is not None:
        place = samples.column_names.index("label")
        samples = samples.set_column(place, "label", samples[f"{ATTRIBUTE}{data.label}"])
    return Scan(samples, tally)


@dataclass(frozen=True)
class _Work:
    """An item to read.

    Args:
        source, item: in which source, and which.
        state: of its files; another state means that they were written again.
        place: of the outcome; None if it is not kept.
    """

    source: str
    item: Item
    state: str
    place: str | None

    def known(self, receipts: Collection[str]) -> ScannedItem | None:
        """The outcome if it is there, of files that were read to their end and have not changed since."""
        if self.place is None or _receipt(self.place) not in receipts:
            return None
        receipt = storage.read_json(_receipt(self.place))
        damaged = Damage.__name__ in [problem["kind"] for problem in receipt["problems"]]
        return None if damaged or receipt["files"] != self.state else ScannedItem.load(self.place)


@dataclass(frozen=True)
class ScannedItem:
    """The outcome of reading one item.

    Args:
        samples: the usable ones; columns of `Scan` from the key on.
        problems: one for every other sample, and notes.
    """

    samples: pa.Table
    problems: tuple[Problem, ...]

    def save(self, place: str, state: str) -> None:
        """Write a Parquet file, and last a receipt with the state of the item's files."""
        storage.write_table(f"{place}.parquet", self.samples)
        problems = [{"kind": type(problem).__name__, **asdict(problem)} for problem in self.problems]
        storage.write_json(_receipt(place), {"files": state, "usable": len(self.samples), "problems": problems})

    @classmethod
    def load(cls, place: str) -> ScannedItem:
        """The outcome as it was written."""
        kinds = {kind.__name__: kind for kind in (Problem, Note, Damage)}
        problems = [kinds[told.pop("kind")](**told) for told in storage.read_json(_receipt(place))["problems"]]
        return cls(storage.read_table(f"{place}.parquet"), tuple(problems))


def _receipt(place: str) -> str:
    return f"{place}.json"


def _states(items: Sequence[Item]) -> list[str]:
    """The state of the files of every item: which they are, and when they were written. Each folder is listed once."""
    files = [[f"{item.path}/{name}" for name in item.files] or [item.path] for item in items]
    folders = {path.rpartition("/")[0] for paths in files for path in paths if path}
    written = {path: stamp for folder in folders for path, stamp in storage.stamps(folder).items()}
    return [
        digest(
            item.name, item.start, item.stop, [(path, written.get(storage.absolute(path))) for path in paths if path]
        )
        for item, paths in zip(items, files, strict=True)
    ]


def _each_key_once(items: Sequence[tuple[Item, ScannedItem]]) -> Iterator[ScannedItem]:
    """The items of a source, without samples whose key an earlier item has; these become problems."""
    keys = codes_of(pa.chunked_array([scanned.samples["key"].combine_chunks() for _, scanned in items], pa.string()))
    ends = np.cumsum([len(scanned.samples) for _, scanned in items])
    number = np.repeat(np.arange(len(items)), np.diff(ends, prepend=0))
    _, first, code = np.unique(keys, return_index=True, return_inverse=True)
    owner = number[first][code] if len(keys) else number
    again = owner != number
    for (_, scanned), end in zip(items, ends.tolist(), strict=True):
        rows = slice(end - len(scanned.samples), end)
        twice = scanned.samples["key"].filter(pa.array(again[rows])).to_pylist() if again[rows].any() else []
        if not twice:
            yield scanned
            continue
        problems = [
            Problem(key, f"shard {items[earlier][0].name} already has this key")
            for key, earlier in zip(twice, owner[rows][again[rows]].tolist(), strict=True)
        ]
        yield ScannedItem(scanned.samples.filter(pa.array(~again[rows])), (*scanned.problems, *problems))


def _with_source(samples: pa.Table, name: str, item: str, schema: pa.Schema) -> pa.Table:
    """The columns of `Scan` for the samples of one item; attributes that its source has not are null."""
    columns: dict[str, Any] = {"source": [name] * len(samples), "item": [item] * len(samples)}
    columns |= {column: pa.nulls(len(samples), pa.int64()) for column in schema.names if column.startswith(ATTRIBUTE)}
    return pa.table(columns | {column: samples[column] for column in samples.column_names}, schema=schema)


_SCANNED = pa.schema(
    [
        ("source", pa.string()),
        ("item", pa.string()),
        ("key", pa.string()),
        ("label", pa.int64()),
        ("sha256", pa.binary(32)),
    ]
)


def _schema(attributes: Iterable[str], group_by: GroupConfig | None, near: bool) -> pa.Schema:
    own = [(f"{ATTRIBUTE}{name}", pa.int64()) for name in attributes]
    own += [(GROUP, pa.string())] if group_by else []
    own += [(PHASH, pa.uint64()), (DESCRIPTOR, pa.binary(64))] if near else []
    return pa.schema([*_SCANNED, *own])


def usable(
    source: SourceConfig,
    item: Item,
    decoder: Decoder,
    attributes: Mapping[str, AttributeConfig] | None = None,
    group_by: GroupConfig | None = None,
    near: bool = False,
) -> Iterator[tuple[Sample, str, dict[str, Any]] | Problem]:
    """Read an item in order: (sample, SHA-256 of its pixels, its other columns) if it decodes, or a problem."""
    for sample in Source(source).scan(item):
        if isinstance(sample, Problem):
            yield sample
            continue
        try:
            pixels, sha = decode_and_hash(sample.image, decoder)
            known: dict[str, Any] = {
                f"{ATTRIBUTE}{name}": value for name, value in values_of(attributes or {}, sample).items()
            }
            known |= {GROUP: group_of(group_by, sample)} if group_by else {}
            if near:
                known |= {PHASH: int(perceptual_hash(pixels[None])[0]), DESCRIPTOR: descriptors(pixels[None]).tobytes()}
        except ImageError as error:
            yield Problem(sample.key, f"undecodable: {error}")
        except ValueError as error:
            yield Problem(sample.key, str(error))
        else:
            yield sample, sha, known
            if has_more_frames(sample.image):
                yield Note(sample.key, "it has several frames or pages; the first is used")


def scan_item(
    work: _Work,
    source: SourceConfig,
    decoder: Decoder,
    attributes: Mapping[str, AttributeConfig],
    group_by: GroupConfig | None,
    near: bool,
) -> ScannedItem | None:
    """Decode and hash one item; the outcome is written to its place, or returned where it has none."""
    rows: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for found in usable(source, work.item, decoder, attributes, group_by, near):
        if isinstance(found, Problem):
            problems.append(found)
            continue
        sample, sha, known = found
        rows.append({"key": sample.key, "label": sample.label, "sha256": bytes.fromhex(sha), **known})
    whole = _schema(attributes, group_by, near)
    samples = pa.Table.from_pylist(rows, pa.schema([whole.field(name) for name in whole.names[2:]]))
    scanned = ScannedItem(samples, tuple(problems))
    if work.place is None:
        return scanned
    scanned.save(work.place, work.state)
    return None
