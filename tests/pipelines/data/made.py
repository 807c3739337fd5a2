"""Scans made up without images, and the slow way to draw roles: in one process, one sample after the other."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mi_core.hashing import digest64
from mi_core.validity.near_duplicates import clusters, confirmed, near_pairs, usual_distance
from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.duplicates import keeping
from pipelines.data.scan.losses import Tally
from pipelines.data.scan.scan import Scan, ScannedShard, scan
from pipelines.errors import UserError
from pipelines.files import storage


@cache
def _scan(data: str) -> Scan:
    return scan(DataConfig.model_validate_json(data))


def scanned(data: DataConfig, folder: str) -> Scan:
    """A scan whose files are read once for all tests of a process."""
    shutil.copytree(_scan(data.model_dump_json(by_alias=True)).folder, folder, dirs_exist_ok=True)
    return scan(data, folder)


@dataclass(frozen=True)
class Row:
    """A sample as a scan sees it."""

    source: str
    item: str
    key: str
    label: int | None
    pixels: bytes
    group: str = ""
    phash: int = 0
    descriptor: bytes = bytes(64)

    @property
    def name(self) -> str:
        return f"{self.source}/{self.key}"


def scan_of(rows: Sequence[Row], folder: str, config: DataConfig) -> Scan:
    """The files of a scan that saw these rows, in their order."""
    columns: dict[str, Any] = {"key": pa.string(), "label": pa.int64(), "sha256": pa.binary(32)}
    columns |= {"group": pa.string()} if config.group_by else {}
    columns |= {"phash": pa.uint64(), "descriptor": pa.binary(64)} if config.near_duplicates else {}
    shards = []
    for source in config.sources:
        for item in dict.fromkeys(row.item for row in rows if row.source == source):
            here = [row for row in rows if (row.source, row.item) == (source, item)]
            values = [{**vars(row), "sha256": row.pixels} for row in here]
            path = f"{folder}/{source}/{item}.parquet"
            table = pa.Table.from_pylist(
                [{name: one[name] for name in columns} for one in values], pa.schema(list(columns.items()))
            )
            storage.write_table(path, table)
            shards.append(ScannedShard(source, item, path, len(here)))
    return Scan(folder, tuple(shards), {}, Tally(len(rows), (), {}))


@dataclass(frozen=True)
class SlowDraw:
    """Role and part of every sample that has one, by id; the ids that were dropped."""

    roles: dict[str, tuple[str, str]]
    copies: set[str]
    near: dict[str, str]


def slow_draw(config: DataConfig, rows: Sequence[Row], seed: int) -> SlowDraw:
    """The roles that `draw` finds, for rows in the order of the scan."""
    given = {role.source_name: name for name, role in config.roles.items() if role.whole}
    lists = {name: Path(role.keys).read_text().split() for name, role in config.roles.items() if role.keys is not None}
    listed: dict[str, str] = {}
    for name, keys in lists.items():
        for row in rows:
            named = row.source == config.roles[name].source_name and row.key in keys
            if named and listed.setdefault(row.name, name) != name:
                raise UserError(f"both name {row.name}")
    role_of = {row.name: listed.get(row.name, given.get(row.source)) for row in rows}
    used = {role.source_name for role in config.roles.values()}
    first = dict(zip(config.sources, keeping(config.roles, list(config.sources)).tolist(), strict=True))
    rank = {row.name: _hash(config, seed, "role", row) for row in rows}
    ahead = {name: 2 if name.endswith("nonmember") or name == "control" else 0 for name in lists}
    ahead_of = {row.name: ahead[listed[row.name]] if row.name in listed else first[row.source] for row in rows}
    order = sorted((row for row in rows if row.source in used), key=lambda row: (ahead_of[row.name], rank[row.name]))
    kept: dict[bytes, Row] = {}
    copies = set()
    for row in order:
        mine = kept.setdefault(row.pixels, row)
        if mine is not row:
            copies.add(row.name)
            if role_of[row.name] and role_of[mine.name] and role_of[row.name] != role_of[mine.name]:
                raise UserError(f"share .* images?: {mine.name} and {row.name}")
    order = [row for row in order if row.name not in copies]
    near: dict[str, str] = {}
    if config.near_duplicates is not None:
        hashes = np.array([row.phash for row in order], np.uint64)
        distance = config.near_duplicates.distance
        pairs = near_pairs(hashes, distance=usual_distance(len(order)) if distance is None else distance)
        levels = np.frombuffer(b"".join(row.descriptor for row in order), np.uint8).reshape(len(order), 64)
        group = clusters(len(order), confirmed(pairs, levels, least=config.near_duplicates.least))
        owner: dict[int, Row] = {}
        for row, number in zip(order, group.tolist(), strict=True):
            if owner.setdefault(number, row) is not row:
                near[row.name] = owner[number].name
        order = [row for row in order if row.name not in near]
    roles: dict[str, str] = {}
    groups: dict[str, str] = {}
    short: list[str] = []
    shared = False
    for row in order:
        if name := role_of[row.name]:
            roles[row.name] = name
            shared |= groups.setdefault(row.group, name) != name and config.group_by is not None
    for source in (source for source in config.sources if source not in given):
        _take(config, source, [row for row in order if row.source == source], rank, roles, groups, short)
    parts: dict[str, str] = {}
    torn: dict[str, str] = {}
    for parent in config.roles:
        here = [row for row in rows if roles.get(row.name) == parent]
        own = {row.name: _hash(config, seed, "part", row) for row in here}
        _take(config, parent, sorted(here, key=lambda row: own[row.name]), own, parts, torn, short)
    if shared:
        raise UserError("share the group")
    if short or {*given.values(), *lists} - set(roles.values()):
        raise UserError("data.roles" if lists else "are wanted from")
    return SlowDraw({name: (role, parts.get(name, "")) for name, role in roles.items()}, copies, near)


def _take(
    config: DataConfig,
    origin: str,
    ranked: Sequence[Row],
    rank: dict[str, int],
    roles: dict[str, str],
    groups: dict[str, str],
    short: list[str],
) -> None:
    takers = {name: role for name, role in sorted(config.roles.items()) if role.source_name == origin and role.is_drawn}
    asked = sum(role.count or 0 for role in takers.values())
    if origin in config.sources and asked > sum(row.name not in roles for row in ranked):
        raise UserError("distinct usable images")
    low = 0.0
    for name, role in takers.items():
        free = [
            row
            for row in ranked
            if row.name not in roles
            and (not config.group_by or row.group not in groups)
            and (role.classes is None or row.label in role.classes)
        ]
        if role.count is not None:
            mine = free[: role.count]
        else:
            high = low + (role.fraction or 0)
            mine = [row for row in free if low <= np.float64(np.uint64(rank[row.name])) / 2.0**64 < high]
            low = high
        if not mine or len(mine) < (role.count or 0):
            short.append(name)
        roles |= {row.name: name for row in mine}
        groups |= {row.group: name for row in mine}


def _hash(config: DataConfig, seed: int, purpose: str, row: Row) -> int:
    if config.group_by:
        return digest64(seed, purpose, row.group)
    return (
        digest64(seed, purpose, row.pixels.hex()) if purpose == "part" else digest64(seed, purpose, row.source, row.key)
    )
