"""Roles: which samples are members, non-members and the rest, drawn by a seeded hash and free of shared images.

For every seed, the usable samples (`pipelines.scan`) are ordered by a hash of (seed, source, key): a count takes exact
ranks of that order, role after role by name, a fraction a range of the hash. An image that stands twice is kept once.
Where samples are grouped the hash is that of the group, and no group stands in two roles: a count takes whole groups
but the last, of which it takes what is missing; nobody else gets the rest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mi_core.hashing import digest64
from pipelines import storage
from pipelines.columns import BATCH, Coded, codes_of, ids_of
from pipelines.data_config import DataConfig, Role
from pipelines.duplicates import distinct, keeping, without_near_copies
from pipelines.errors import UserError
from pipelines.losses import Rejection
from pipelines.scan import ATTRIBUTE, DESCRIPTOR, GROUP, PHASH, Scan
from pipelines.sources import Source

SAMPLES, REJECTED, SUMMARY = "samples.parquet", "rejected.parquet", "summary.json"
NEAR = "near-copies.parquet"
_HASH_RANGE = 2.0**64
_NO_LABEL = np.iinfo(np.int64).min


def draw(config: DataConfig, found: Scan, seed: int) -> Splits:
    """Give every sample its role for one seed.

    Raises:
        UserError: roles that the user gave share an image, or a source is too small for its roles.
    """
    table = found.samples
    given = {role.source_name: name for name, role in config.roles.items() if not role.drawn}
    source = Coded.of(table["source"])
    rank = _hashes(table, seed, "role")
    labels = pc.fill_null(table["label"].cast(pa.int64()), _NO_LABEL).to_numpy()
    names = ["", *config.roles]  # roles and parts are numbers until all are drawn; 0: none
    roles, parts = np.zeros(len(table), np.int16), np.zeros(len(table), np.int16)
    order = np.lexsort((rank, keeping(config.roles, source.values)[source.codes]))  # the first copy stays
    used = {role.source_name for role in config.roles.values()}
    order = order[source.among(used)[source.codes[order]]]
    exact, duplicates = distinct(order, source, table, given)
    free, near = exact, None
    if config.near_duplicates is not None:
        free, near = without_near_copies(exact, table, config)
        table = table.drop_columns([PHASH, DESCRIPTOR])
    groups = codes_of(table[GROUP]) if config.group_by else None
    for name in sorted(config.sources, key=lambda name: name not in given):
        rows = free[source.among([name])[source.codes[free]]]
        if name in given:
            roles[rows] = names.index(given[name])
        else:
            check_size(config, name, len(rows))
            _assign(roles, names, rows, rank[rows], labels[rows], groups, _takers(config, name))
    for parent in config.roles:
        rows = np.flatnonzero(roles == names.index(parent))
        own = _hashes(table.take(pa.array(rows)), seed, "part")
        ranked = np.argsort(own, kind="stable")
        _assign(parts, names, rows[ranked], own[ranked], labels[rows[ranked]], groups, _takers(config, parent))
    if groups is not None:
        _check_groups(table, names, roles, groups)
    chosen = pa.array(np.flatnonzero(roles))
    texts = pa.array(names)
    table = table.append_column("role", texts.take(pa.array(roles))).append_column("part", texts.take(pa.array(parts)))
    table = table.take(chosen).sort_by([("source", "ascending"), ("key", "ascending")])
    drawn = Splits(table, tuple(config.roles), found.rejected, duplicates, near)
    _check_filled(config, drawn)
    drawn.check()
    return drawn


def check_sizes(config: DataConfig) -> None:
    """List every source, and compare role sizes with what can be counted without reading images.

    Raises:
        UserError: a path matches nothing, or a source is too small for its roles.
    """
    for name, source in config.sources.items():
        sizes = [item.count for item in Source(source).items()]
        if None not in sizes:
            check_size(config, name, sum(size or 0 for size in sizes))


def check_size(config: DataConfig, source: str, available: int) -> None:
    """Raise UserError unless a source with ``available`` usable images can fill its roles' counts."""
    asked = {name: role.count for name, role in config.roles.items() if role.source_name == source and role.count}
    if sum(asked.values()) > available:
        sizes = " + ".join(f"{name} {count}" for name, count in asked.items())
        raise UserError(
            f"data.roles: {sizes} = {sum(asked.values())} images asked of {source}, which has {available} "
            "distinct usable ones; lower the counts or give more data"
        )


def _hashes(table: pa.Table, seed: int, purpose: str) -> npt.NDArray[np.uint64]:
    """A hash of (seed, purpose, source, key) for every row, or of (seed, purpose, group) where samples are grouped."""
    found = np.empty(len(table), dtype=np.uint64)
    start = 0
    for batch in table.select([GROUP] if GROUP in table.column_names else ["source", "key"]).to_batches(
        max_chunksize=BATCH
    ):
        names = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        found[start : start + len(batch)] = [digest64(seed, purpose, *name) for name in names]
        start += len(batch)
    return found


def _takers(config: DataConfig, origin: str) -> dict[str, Role]:
    """The roles drawn from a source or role, by name: the order in a config file decides nothing."""
    return {name: role for name, role in sorted(config.roles.items()) if role.source_name == origin and role.drawn}


def _assign(
    found: npt.NDArray[np.int16],
    names: list[str],
    rows: npt.NDArray[np.intp],
    ranks: npt.NDArray[np.uint64],
    labels: npt.NDArray[np.int64],
    groups: npt.NDArray[np.int32] | None,
    takers: dict[str, Role],
) -> None:
    """Give ranked rows to roles: the first ranks left for counts, consecutive ranges of the hash for fractions."""
    low = 0.0
    for name, role in takers.items():
        free = found[rows] == 0
        if groups is not None:
            free &= ~np.isin(groups[rows], np.unique(groups[found != 0]))
        if role.classes is not None:
            free &= np.isin(labels, role.classes)
        if role.count is not None:
            found[rows[np.flatnonzero(free)[: role.count]]] = names.index(name)
        elif role.fraction is not None:
            high = low + role.fraction
            share = ranks / _HASH_RANGE
            found[rows[free & (share >= low) & (share < high)]] = names.index(name)
            low = high


def _check_groups(
    table: pa.Table, names: list[str], roles: npt.NDArray[np.int16], groups: npt.NDArray[np.int32]
) -> None:
    """Raise UserError if two roles that the user gave share a group."""
    rows = np.flatnonzero(roles)
    rows = rows[np.argsort(groups[rows], kind="stable")]
    torn = np.flatnonzero((np.diff(groups[rows]) == 0) & (np.diff(roles[rows]) != 0))
    if len(torn):
        one, two = rows[torn[0]], rows[torn[0] + 1]
        group = table[GROUP][int(one)].as_py()
        raise UserError(
            f"roles {names[roles[one]]} and {names[roles[two]]} share the group {group!r} of data.group_by; "
            "remove it from one of them"
        )


def _check_filled(config: DataConfig, drawn: Splits) -> None:
    counts = drawn.counts()
    for name, role in config.roles.items():
        have = counts[name]
        if have == 0 or (role.count is not None and have != role.count):
            whole = " in groups that no other role has" if config.group_by else ""
            raise UserError(
                f"data.roles.{name}: {role.count or 'some'} images asked of {role.source_name}"
                f"{'' if role.classes is None else f' in classes {list(role.classes)}'}, {have} are there{whole}; "
                "lower the count or give more data"
            )


@dataclass(frozen=True)
class Splits:
    """The roles of one seed.

    Args:
        table: one row per sample with a role: source, item, key, label, sha256, role, part (empty: none), and what
            `Scan.samples` holds besides; sorted by source and key.
        roles: all roles and parts, in the order of the config.
        rejected: what was unusable.
        duplicates_removed: copies of images that were dropped.
        near_copies: near-copies that were dropped: id, copy_of; None where none were looked for.
    """

    table: pa.Table
    roles: tuple[str, ...]
    rejected: tuple[Rejection, ...]
    duplicates_removed: int
    near_copies: pa.Table | None = None

    def check(self) -> None:
        """Raise RuntimeError if two roles share a key or an image."""
        keys = codes_of(self.table["key"])
        ids = codes_of(self.table["source"]).astype(np.int64) * (1 + keys.max(initial=0)) + keys
        for what, numbers in (("key", ids), ("image", codes_of(self.table["sha256"]))):
            _, first = np.unique(numbers, return_index=True)
            if len(first) < len(numbers):
                twice = np.ones(len(numbers), dtype=bool)
                twice[first] = False
                name = self._ids(np.flatnonzero(twice)[:1])[0]
                raise RuntimeError(f"the splits hold {twice.sum()} {what}s twice, first {name}")

    def save(self, folder: str) -> None:
        """Write the splits of a seed's folder; the summary comes last and says that they are whole."""
        storage.write_table(f"{folder}/splits/{SAMPLES}", self.table)
        columns = {
            "source": pa.array([bad.source for bad in self.rejected], pa.string()),
            "shard": pa.array([bad.shard for bad in self.rejected], pa.string()),
            "key": pa.array([bad.key for bad in self.rejected], pa.string()),
            "reason": pa.array([bad.reason for bad in self.rejected], pa.string()),
            "lost": pa.array([bad.lost for bad in self.rejected], pa.int64()),
            "basis": pa.array([bad.basis for bad in self.rejected], pa.string()),
        }
        storage.write_table(f"{folder}/splits/{REJECTED}", pa.table(columns))
        if self.near_copies is not None:
            storage.write_table(f"{folder}/splits/{NEAR}", self.near_copies)
        storage.write_json(
            f"{folder}/splits/{SUMMARY}",
            {
                "counts": self.counts(),
                "duplicates_removed": self.duplicates_removed,
                "near_duplicates": self.near_copies is not None,
            },
        )

    @classmethod
    def load(cls, folder: str) -> Splits:
        """The splits of a seed's folder, read once per process.

        Raises:
            UserError: they are not drawn yet.
        """
        if not exists(folder):
            raise UserError(f"{folder}/splits is missing; run the stages from the start")
        return cls._read(folder, storage.stamp(f"{folder}/splits/{SUMMARY}"))

    @classmethod
    @lru_cache(maxsize=2)
    def _read(cls, folder: str, _written: str) -> Splits:
        rejected = storage.read_table(f"{folder}/splits/{REJECTED}").to_pylist()
        summary = storage.read_json(f"{folder}/splits/{SUMMARY}")
        return cls(
            storage.read_table(f"{folder}/splits/{SAMPLES}"),
            tuple(summary["counts"]),
            tuple(Rejection(**row) for row in rejected),
            summary["duplicates_removed"],
            storage.read_table(f"{folder}/splits/{NEAR}") if summary.get("near_duplicates") else None,
        )

    @property
    def near_removed(self) -> int | None:
        """Near-copies that were dropped; None where none were looked for."""
        return None if self.near_copies is None else len(self.near_copies)

    @cached_property
    def _roles(self) -> tuple[Coded, Coded]:
        """Role and part of every row."""
        return Coded.of(self.table["role"]), Coded.of(self.table["part"])

    @cached_property
    def _places(self) -> tuple[npt.NDArray[np.intp], dict[tuple[str, str], tuple[int, int]]]:
        """Rows in the order of their items, and where in it an item begins and ends."""
        source, item = Coded.of(self.table["source"]), Coded.of(self.table["item"])
        place = source.codes.astype(np.int64) * len(item.values) + item.codes
        order = np.argsort(place, kind="stable")
        found, starts = np.unique(place[order], return_index=True)
        names = [
            (source.values[number // len(item.values)], item.values[number % len(item.values)]) for number in found
        ]
        ends = [*starts[1:].tolist(), len(order)]
        return order, dict(zip(names, zip(starts.tolist(), ends, strict=True), strict=True))

    def _ids(self, rows: npt.NDArray[np.intp] | None = None) -> list[str]:
        """``source/key`` of some rows, or of all."""
        return ids_of(self.table, rows)

    def _units(self, rows: npt.NDArray[np.intp]) -> list[str]:
        """What is drawn as one: the group of some rows, or the ``source/key`` of each."""
        if GROUP in self.table.column_names:
            groups: list[str] = self.table[GROUP].take(pa.array(rows)).to_pylist()
            return groups
        return self._ids(rows)

    def _having(self, roles: Iterable[str], rows: npt.NDArray[np.intp] | slice) -> npt.NDArray[np.bool_]:
        """Which of some rows are in some roles or parts."""
        wanted = list(roles)
        role, part = self._roles
        found: npt.NDArray[np.bool_] = role.among(wanted)[role.codes[rows]] | part.among(wanted)[part.codes[rows]]
        return found

    def rows(self, roles: Iterable[str]) -> npt.NDArray[np.intp]:
        """Row numbers of the samples in some roles or parts, ascending."""
        return np.flatnonzero(self._having(roles, slice(None)))

    def ids(self, roles: Iterable[str]) -> list[str]:
        """``source/key`` of the samples in some roles or parts, in a fixed order."""
        return self._ids(self.rows(roles))

    def first(self, roles: Iterable[str], count: int, seed: int) -> list[str]:
        """Ids of ``count`` samples of each of some roles, the same for every count up to that many."""
        found = []
        for role in roles:
            rows = self.rows([role])
            ranks = np.empty(len(rows), dtype=np.uint64)
            for start in range(0, len(rows), BATCH):
                names = self._ids(rows[start : start + BATCH])
                ranks[start : start + len(names)] = [digest64(seed, "first", name) for name in names]
            found += self._ids(rows[np.argsort(ranks, kind="stable")[:count]])
        return found

    def half(self, roles: Iterable[str], index: int, seed: int) -> Splits:
        """Half of the samples of some roles, drawn by a seeded hash; halves 2k and 2k + 1 make up the whole.

        With one shadow encoder per half every sample is in the data of exactly half of the encoders. Groups stay whole,
        but the one in the middle.
        """
        rows = self.rows(roles)
        ranks = np.array([digest64(seed, "half", index // 2, name) for name in self._units(rows)], dtype=np.uint64)
        order, middle = np.argsort(ranks, kind="stable"), (len(rows) + 1) // 2
        chosen = order[middle:] if index % 2 else order[:middle]
        return replace(self, table=self.table.take(pa.array(np.sort(rows[chosen]))))

    def fold(self, roles: Iterable[str], name: str, seed: int) -> set[str]:
        """Ids of one fold of each role: ``search`` and ``final`` are halves by a seeded hash, ``all`` is both."""
        found: set[str] = set()
        for role in roles:
            rows = self.rows([role])
            units = zip(self._units(rows), self._ids(rows), strict=True)
            ids = [one for _, one in sorted((digest64(seed, "fold", unit), one) for unit, one in units)]
            middle = (len(ids) + 1) // 2
            found.update({"all": ids, "search": ids[:middle], "final": ids[middle:]}[name])
        return found

    def groups(self, ids: Sequence[str]) -> npt.NDArray[np.int64] | None:
        """What some samples belong to, as a number (N,) for each; None where samples are not grouped."""
        if GROUP not in self.table.column_names:
            return None
        of_name = self._group_of
        return np.array([of_name[name] for name in ids], dtype=np.int64)

    @cached_property
    def _group_of(self) -> dict[str, int]:
        """The number of every sample's group, by id."""
        return dict(zip(self._ids(), codes_of(self.table[GROUP]).tolist(), strict=True))

    def classes(self, source: str, item: str, roles: Iterable[str]) -> dict[str, int | None]:
        """The samples of one item in some roles or parts, ascending: key to class, None where there is none."""
        order, places = self._places
        start, end = places.get((source, item), (0, 0))
        rows = order[start:end]
        here = self.table.select(["key", "label"]).take(pa.array(rows[self._having(roles, rows)], pa.int64()))
        return dict(zip(here["key"].to_pylist(), here["label"].to_pylist(), strict=True))

    def keys(self, source: str, item: str, roles: Iterable[str]) -> list[str]:
        """Keys of the samples of one item in some roles or parts, ascending."""
        return list(self.classes(source, item, roles))

    def counts(self) -> dict[str, int]:
        """Number of samples per role and part."""
        return {role: int(self._having([role], slice(None)).sum()) for role in self.roles}

    def labels(self) -> dict[str, int | None]:
        """Class of every sample by id; None where the source has no classes."""
        return dict(zip(self._ids(), self.table["label"].to_pylist(), strict=True))

    def attribute(self, name: str) -> dict[str, int | None]:
        """Value of an attribute of every sample by id; None where the source has it not.

        Raises:
            UserError: the splits were drawn before the attribute was declared.
        """
        if f"{ATTRIBUTE}{name}" not in self.table.column_names:
            raise UserError(f"the splits have no attribute {name}; redo with --force data")
        return dict(zip(self._ids(), self.table[f"{ATTRIBUTE}{name}"].to_pylist(), strict=True))

    def role_digest(self, role: str) -> str:
        """Sha256 of the ids and pixels of a role: what a registration binds."""
        rows = self.rows([role])
        digest = hashlib.sha256(b"[[")
        for start in range(0, len(rows), BATCH):
            some = rows[start : start + BATCH]
            pairs = zip(self._ids(some), self.table["sha256"].take(pa.array(some)).to_pylist(), strict=True)
            digest.update(((", " if start else "") + ", ".join(json.dumps(pair) for pair in pairs)).encode())
        digest.update(b"]]")
        return digest.hexdigest()


def exists(folder: str) -> bool:
    """Whether the splits of a seed's folder are drawn."""
    return storage.exists(f"{folder}/splits/{SUMMARY}")
