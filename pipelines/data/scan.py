"""Read every sample of every source once: decode it as the run will decode it, and hash its pixels.

Unusable samples are listed with place and reason; the run continues while they are few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from mi_core.image_files import ImageError, has_more_frames
from mi_core.images import Decoder, decode_and_hash
from mi_core.validity.near_duplicates import descriptors, perceptual_hash
from pipelines.config.attributes import AttributeConfig, GroupConfig
from pipelines.config.data import DataConfig
from pipelines.config.sources import SourceConfig
from pipelines.data.attributes import group_of, values_of
from pipelines.data.losses import Reading, Rejection, Tally, rejections
from pipelines.data.samples import Item, Note, Problem, Sample
from pipelines.data.sources import Source

ATTRIBUTE = "attribute."  # before the name of an attribute: its column
GROUP = "group"  # the column of what samples belong to, where a config groups them
PHASH, DESCRIPTOR = "phash", "descriptor"  # columns of what finds near-copies, where a config looks for them
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


def scan(data: DataConfig, scan_map: ScanMap | None = None) -> Scan:
    """Decode and hash every sample of every source, once for all seeds.

    Args:
        data: sources, decoder, attributes and group to read, and the share of unusable samples that is allowed.
        scan_map: ``map(function, argument tuples)`` that keeps the order, for example over Ray tasks.

    Raises:
        UserError: more samples than allowed are unusable; the first are named.
    """
    sources, attributes, group_by, near = data.sources, data.attributes, data.group_by, data.near_duplicates is not None
    work = [(name, source, item) for name, source in sources.items() for item in Source(source).items()]
    mapped = scan_map or (lambda function, arguments: [function(*given) for given in arguments])
    read = {
        name: {key: one for key, one in attributes.items() if one.sources is None or name in one.sources}
        for name in sources
    }
    decoder = data.decoder()
    read_items = mapped(scan_item, [(source, item, decoder, read[name], group_by, near) for name, source, item in work])
    schema = _schema(attributes, group_by, near)
    tables: list[pa.Table] = []
    readings: dict[str, list[Reading]] = {name: [] for name in sources}
    seen: dict[tuple[str, str], str] = {}
    for (name, _, item), (table, problems) in zip(work, read_items, strict=True):
        firsts = {key: seen.setdefault((name, key), item.name) for key in table["key"].to_pylist()}
        again = [Problem(key, f"shard {at} already has this key") for key, at in firsts.items() if at != item.name]
        kept = table.filter(pa.array([at == item.name for at in firsts.values()], pa.bool_())) if again else table
        columns: dict[str, Any] = {"source": [name] * len(kept), "item": [item.name] * len(kept)}
        columns |= {column: pa.nulls(len(kept), pa.int64()) for column in schema.names if column.startswith(ATTRIBUTE)}
        tables.append(pa.table(columns | {column: kept[column] for column in kept.column_names}, schema=schema))
        readings[name].append(Reading(item, len(kept), (*problems, *again)))
    samples = pa.concat_tables(tables)
    rejected = [bad for name, source in sources.items() for bad in rejections(name, source, readings[name])]
    tally = Tally.of(len(samples), rejected, {name: [one.item for one in read] for name, read in readings.items()})
    tally.check(data.max_rejected, f"data.max_rejected = {data.max_rejected:.2%}")
    if data.label is not None:
        place = samples.column_names.index("label")
        samples = samples.set_column(place, "label", samples[f"{ATTRIBUTE}{data.label}"])
    return Scan(samples, tally)


_SCANNED = pa.schema(
    [
        ("source", pa.string()),
        ("item", pa.string()),
        ("key", pa.string()),
        ("label", pa.int64()),
        ("sha256", pa.string()),
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
    source: SourceConfig,
    item: Item,
    decoder: Decoder,
    attributes: Mapping[str, AttributeConfig],
    group_by: GroupConfig | None,
    near: bool,
) -> tuple[pa.Table, list[Problem]]:
    """Decode and hash one item: the usable samples (columns of `Scan` from the key on) and the problems."""
    rows: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for found in usable(source, item, decoder, attributes, group_by, near):
        if isinstance(found, Problem):
            problems.append(found)
            continue
        sample, sha, known = found
        rows.append({"key": sample.key, "label": sample.label, "sha256": sha, **known})
    own = _schema(attributes, group_by, near)
    return pa.Table.from_pylist(rows, pa.schema([own.field(name) for name in own.names[2:]])), problems
