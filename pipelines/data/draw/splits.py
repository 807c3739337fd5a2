"""The roles of one seed: which samples are members, non-members and the rest.

What is loaded is of fixed size: the rules, and the sums of every shard. The samples of a shard are found when it is
asked for, from the scan's file and the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from heapq import nsmallest
from itertools import chain, compress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mi_core.hashing import FIRST, digests64, half_of, half_purpose
from mi_core.records import BoolArray, among
from pipelines.config.roles import CANARY_ROLE, COINS
from pipelines.data.columns import ATTRIBUTE, GROUP, Coded, group_numbers, ids_of, joined, pixel_ranks
from pipelines.data.draw.rules import Rules
from pipelines.data.draw.sums import SUMS, Sums, dropped_path, sums_of
from pipelines.data.scan.losses import Rejection
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.files.walk import follow, way

ROLES, SUMMED, REJECTED = "roles.json", "shards.parquet", "rejected.parquet"
NEAR = "near-copies.parquet"
GIVEN = "given.parquet"
_REDO = "redo with --force data, or choose another --out"
_HELD = 8  # shards that stay in memory


@dataclass(frozen=True)
class Splits:
    """The roles of one seed.

    Args:
        roles: all roles and parts, in the order of the config.
        sums: sizes and digests of all shards.
        folder: of the seed; empty for splits that stand in no folder.
        rules: for samples; None for splits that were not drawn.
        scan_folder: of the scan's files.
        duplicates_removed: copies of images that were dropped.
        near_removed: near-copies that were dropped; None where none were looked for.
        near_among: of so many images.
        held: what goes with the splits: temporary folders.
        given: all samples of splits that were not drawn, or that are a half, as `table`.
    """

    roles: tuple[str, ...]
    sums: Sums
    folder: str = ""
    rules: Rules | None = None
    scan_folder: str = ""
    duplicates_removed: int = 0
    near_removed: int | None = None
    near_among: int = 0
    held: Any = field(default=None, repr=False, compare=False)
    given: pa.Table | None = field(default=None, repr=False, compare=False)

    @classmethod
    def from_table(cls, table: pa.Table, roles: Sequence[str], folder: str = "") -> Splits:
        """The splits of some samples. ``table``: as `table`, sorted by source and key."""
        shards = [SUMS.empty_table()]
        for source in pc.unique(table["source"]).to_pylist():
            here = table.filter(pc.equal(table["source"], source))
            for item in pc.unique(here["item"]).to_pylist():
                shards.append(sums_of(here.filter(pc.equal(here["item"], item)), source, item))
        return cls(tuple(roles), Sums(pa.concat_tables(shards)), folder, given=table)

    def save(self, folder: str, rejected: Sequence[Rejection] = ()) -> None:
        """Write the splits of a seed's folder; the rules come last and say that they are whole."""
        place = f"{folder}/splits"
        columns = pa.schema([(name, pa.string()) for name in ("source", "shard", "key", "reason")])
        columns = columns.append(pa.field("lost", pa.int64())).append(pa.field("basis", pa.string()))
        storage.write_table(f"{place}/{REJECTED}", pa.Table.from_pylist([asdict(bad) for bad in rejected], columns))
        storage.write_table(f"{place}/{SUMMED}", self.sums.table)
        if self.given is not None:
            storage.write_table(f"{place}/{GIVEN}", self.given)
        counts = self.counts()
        known = {
            "counts": counts,
            "digests": {role: self.role_digest(role) for role in counts},
            "duplicates_removed": self.duplicates_removed,
            "near_removed": self.near_removed,
            "near_among": self.near_among,
            "scan": way(folder, self.scan_folder) if self.scan_folder else None,
            "rules": None if self.rules is None else self.rules.as_json(),
        }
        storage.write_json(f"{place}/{ROLES}", known)

    def lend(self, folder: str) -> None:
        """Let another seed's folder of the same run have these splits."""
        storage.write_json(f"{folder}/splits/{ROLES}", {"of": way(folder, self.folder)})

    @classmethod
    def load(cls, folder: str) -> Splits:
        """The splits of a seed's folder, read once per process.

        Raises:
            UserError: they are not drawn yet.
        """
        if not are_drawn(folder):
            raise UserError(f"{folder}/splits is missing; run the stages from the start")
        return cls._read(folder, storage.stamp(f"{folder}/splits/{ROLES}"))

    @classmethod
    @lru_cache(maxsize=2)
    def _read(cls, folder: str, _written: str) -> Splits:
        known = storage.read_json(f"{folder}/splits/{ROLES}")
        if "of" in known:
            return cls.load(follow(folder, known["of"]))
        if known["rules"] is None:
            return cls.from_table(storage.read_table(f"{folder}/splits/{GIVEN}"), list(known["counts"]), folder)
        return cls(
            tuple(known["counts"]),
            Sums(storage.read_table(f"{folder}/splits/{SUMMED}")),
            folder,
            Rules.read(known["rules"]),
            follow(folder, known["scan"]),
            known["duplicates_removed"],
            known["near_removed"],
            known["near_among"],
        )

    @property
    def rejected(self) -> tuple[Rejection, ...]:
        """The unusable samples."""
        return tuple(Rejection(**row) for row in storage.read_table(f"{self.folder}/splits/{REJECTED}").to_pylist())

    @property
    def near_copies(self) -> pa.Table | None:
        """Near-copies that were dropped: id, copy_of; None where none were looked for."""
        return None if self.near_removed is None else storage.read_table(f"{self.folder}/splits/{NEAR}")

    @cached_property
    def shard(self) -> Callable[[str, str], pa.Table]:
        """The samples of one shard that have a role, by source and item, sorted by key; columns as in `table`.

        Raises:
            UserError: the shard was read again since, and holds something else.
        """
        return lru_cache(maxsize=_HELD)(self._shard_now)

    def _shard_now(self, source: str, item: str) -> pa.Table:
        if self.given is not None:
            here = pc.and_(pc.equal(self.given["source"], source), pc.equal(self.given["item"], item))
            return self.given.filter(here)
        path = self.sums.path(source, item)
        if path is None:
            return self._empty
        assert self.rules is not None
        dropped = dropped_path(self.folder, source, item)
        lost = storage.read_table(dropped) if self.sums.dropped(source, item) else None
        try:
            samples = storage.read_table(f"{self.scan_folder}/{path}")
        except FileNotFoundError as error:
            raise UserError(f"{self.scan_folder}/{path} is gone, which roles are found from; {_REDO}") from error
        rows = self.rules.draw_shard(samples, source, item, lost)
        if len(rows) != self.sums.count(self.sums.rows(self.roles, shard=(source, item))):
            raise UserError(
                f"{source}, shard {item}: it was read again and changed since the roles were drawn; {_REDO}"
            )
        return rows

    @cached_property
    def _empty(self) -> pa.Table:
        first = next(iter(self.sums.shards), None)
        return pa.table({}) if first is None else self.shard(*first).slice(0, 0)

    @cached_property
    def table(self) -> pa.Table:
        """All samples that have a role, in this process: for consumers that hold their samples anyway.

        Columns: source, item, key, label, sha256, attribute.*; group where samples are grouped; role and part (empty:
        none). Sorted by source and key.
        """
        if self.given is not None:
            return self.given
        return _together(self._shard_now(*place) for place in self.sums.shards)

    def at(self, shards: Iterable[tuple[str, str]]) -> Splits:
        """The same roles, of the samples of some shards alone; at least one."""
        places = list(shards)
        given = None if self.given is None else _together(self._shard_now(*place) for place in places)
        return replace(self, sums=self.sums.at(places), given=given)

    def sampled(self, roles: Iterable[str], most: int, seed: int) -> Splits:
        """As `at`, of shards drawn by a seeded hash of their name: as many as give ``most`` samples of the roles.

        Each role has its share of them, so that roles of other sources are not left out. With no more samples than
        that, it is the whole.
        """
        wanted = list(roles)
        whole = self.count(wanted)
        if whole <= most:
            return self
        drawn: set[tuple[str, str]] = set()
        every = list(self.sums.shards)
        order = np.argsort(digests64((seed, "shards"), ["/".join(place) for place in every]), kind="stable")
        for role in wanted:
            missing = self.count([role]) * most / whole
            for place in (every[row] for row in order.tolist()):
                if missing <= 0:
                    break
                held = self.size(place[0], place[1], [role])
                missing -= held
                drawn.update([place] * (held > 0))
        return self.at(place for place in every if place in drawn)

    def size(self, source: str, item: str, roles: Iterable[str], without: Iterable[str] = ()) -> int:
        """Number of samples of one shard in some roles or parts, less those in others; no sample is read."""
        return self.sums.count(self.sums.rows(roles, without, (source, item)))

    def digest(self, source: str, item: str, roles: Iterable[str]) -> str:
        """A digest of the samples of one shard in some roles, by ids and pixels: 64 hex digits; no sample is read."""
        return self.sums.digest(self.sums.rows(roles, shard=(source, item)))

    def count(self, roles: Iterable[str], without: Iterable[str] = ()) -> int:
        """Number of samples in some roles or parts, less those in others."""
        return self.sums.count(self.sums.rows(roles, without))

    def counts(self) -> dict[str, int]:
        """Number of samples per role and part."""
        return {role: self.count([role]) for role in self.roles}

    def role_digest(self, role: str) -> str:
        """A digest of the samples of a role, by ids, pixels and wrong classes, for the registration: 64 hex digits."""
        samples = self.sums.digest(self.sums.rows([role]))
        wrong = self.rules.wrong if self.rules is not None and role in (CANARY_ROLE, *COINS) else ()
        return digest(samples, wrong) if wrong else samples

    def _units(self, rows: npt.NDArray[np.intp]) -> list[str]:
        """The unit that is drawn as one: the group of some rows, or the ``source/key`` of each."""
        if GROUP in self.table.column_names:
            return list(self.table[GROUP].take(pa.array(rows)).to_pylist())
        return ids_of(self.table, rows)

    def rows(self, roles: Iterable[str]) -> npt.NDArray[np.intp]:
        """Row numbers of the samples in some roles or parts, in `table`, ascending."""
        return np.flatnonzero(in_roles(self.table, list(roles)))

    def ids(self, roles: Iterable[str]) -> list[str]:
        """``source/key`` of the samples in some roles or parts, in a fixed order."""
        return ids_of(self.table, self.rows(roles))

    def among(self, ids: Iterable[str], roles: Iterable[str]) -> BoolArray:
        """Mark the ids among N that are in some roles or parts: (N,) bool."""
        return among(ids, set(self.ids(roles)))

    def first(self, roles: Iterable[str], count: int, seed: int) -> list[str]:
        """Ids of ``count`` samples of each of some roles by ascending rank, the same for every count up to that many.

        Ranks are hashes of the pixels, so that no name decides which samples are taken.
        """
        return [name for role in roles for _, name in self.first_ranked(role, count, seed)]

    def first_ranked(self, role: str, count: int, seed: int) -> list[tuple[int, str]]:
        """The same of one role, each with its rank; one shard is in memory at a time."""
        best: list[tuple[int, str]] = []
        for place in self.sums.shards:
            if self.size(*place, [role]):
                whole = self.shard(*place)
                rows = whole.filter(pa.array(in_roles(whole, [role])))
                ranks = pixel_ranks(seed, FIRST, rows["sha256"]).tolist()
                best = nsmallest(count, chain(best, zip(ranks, ids_of(rows), strict=True)))
        return best

    def half(self, roles: Iterable[str], index: int, seed: int, nonce: str | None = None) -> Splits:
        """Half of the samples of some roles, drawn by a seeded hash; halves 2k and 2k + 1 make up the whole.

        With one shadow encoder per half every sample is in the data of exactly half of the encoders. Groups stay whole.
        With the nonce of an audit nobody can foresee the halves, and pixels stand for the names.
        """
        rows = self.rows(roles)
        if nonce is None or GROUP in self.table.column_names:
            ranks = digests64((*([] if nonce is None else [nonce]), seed, "half", index // 2), self._units(rows))
        else:
            ranks = pixel_ranks(seed, half_purpose(index, nonce), self.table["sha256"].take(pa.array(rows)))
        chosen = rows[half_of(ranks, index, ", ".join(roles))]
        return replace(Splits.from_table(self.table.take(pa.array(chosen)), self.roles, self.folder), rules=self.rules)

    def fold(self, roles: Iterable[str], name: str, seed: int) -> set[str]:
        """Ids of one fold of each role: ``search`` and ``final`` are halves by a seeded hash, ``all`` is both."""
        chosen: set[str] = set()
        for role in roles:
            rows = self.rows([role])
            ids, first = ids_of(self.table, rows), half_of(digests64((seed, "fold"), self._units(rows)), 0, role)
            chosen.update({"all": ids, "search": compress(ids, first), "final": compress(ids, ~first)}[name])
        return chosen

    def samples(self, ids: Sequence[str]) -> pa.Table:
        """The rows of some samples (N,), in their order; columns as in `table`."""
        names = joined(self.table["source"], self.table["key"])
        return self.table.take(pc.index_in(pa.array(ids, names.type), value_set=names.combine_chunks()))

    def groups(self, ids: Sequence[str]) -> npt.NDArray[np.int64] | None:
        """The group of each of some samples as a number (N,), a hash; None where samples are not grouped."""
        return self.groups_of(self.samples(ids)) if len(ids) else None

    def groups_of(self, rows: pa.Table) -> npt.NDArray[np.int64] | None:
        """The same for rows of `table`: their group, or their shard where shards were drawn."""
        if GROUP in rows.column_names:
            return group_numbers(rows[GROUP])
        by_shard = self.rules is not None and self.rules.by_shard
        return group_numbers(joined(rows["source"], rows["item"])) if by_shard else None

    def classes(self, source: str, item: str, roles: Iterable[str], of: str = "label") -> dict[str, int | None]:
        """The samples of one item in some roles or parts, ascending: key to class (or ``of``), None if it has none."""
        wanted = list(roles)
        if not self.size(source, item, wanted):
            return {}
        rows = self.shard(source, item)
        here = rows.filter(pa.array(in_roles(rows, wanted)))
        return dict(zip(here["key"].to_pylist(), here[of].to_pylist(), strict=True))

    def keys(self, source: str, item: str, roles: Iterable[str]) -> list[str]:
        """Keys of the samples of one item in some roles or parts, ascending."""
        return list(self.classes(source, item, roles))

    def item_ids(self, source: str, item: str, roles: Iterable[str]) -> list[str]:
        """``source/key`` of the samples of one item in some roles or parts, ascending."""
        return [f"{source}/{key}" for key in self.keys(source, item, roles)]

    def labels(self) -> dict[str, int | None]:
        """Class of every sample by id; None where the source has no classes."""
        return dict(zip(ids_of(self.table), self.table["label"].to_pylist(), strict=True))

    def attribute(self, name: str) -> dict[str, int | None]:
        """Value of an attribute of every sample by id; None where the source has it not.

        Raises:
            UserError: the splits were drawn before the attribute was declared.
        """
        if f"{ATTRIBUTE}{name}" not in self.table.column_names:
            raise UserError(f"the splits have no attribute {name}; redo with --force data")
        return dict(zip(ids_of(self.table), self.table[f"{ATTRIBUTE}{name}"].to_pylist(), strict=True))


def in_roles(rows: pa.Table, roles: Iterable[str]) -> npt.NDArray[np.bool_]:
    """Mark the samples that are in some roles or parts."""
    wanted = list(roles)
    role, part = Coded.from_column(rows["role"]), Coded.from_column(rows["part"])
    return np.asarray(role.among(wanted)[role.codes] | part.among(wanted)[part.codes])


def _together(shards: Iterable[pa.Table]) -> pa.Table:
    """The samples of some shards, sorted by source and key."""
    large = ("source", "item", "key", GROUP)  # their texts may be of more than 2 GiB in all

    def cast(rows: pa.Table) -> pa.Table:
        kinds = [pa.field(one.name, pa.large_string()) if one.name in large else one for one in rows.schema]
        return rows.cast(pa.schema(kinds))

    return pa.concat_tables(map(cast, shards)).sort_by([("source", "ascending"), ("key", "ascending")])


def are_drawn(folder: str) -> bool:
    """Tell whether the splits of a seed's folder are drawn."""
    return storage.exists(f"{folder}/splits/{ROLES}")
