"""The roles of one seed: which samples are members, non-members and the rest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mi_core.hashing import digest64
from mi_core.records import BoolArray, among
from pipelines.config.encoders import TrainedConfig
from pipelines.data.columns import BATCH, Coded, codes_of, hex_of, ids_of
from pipelines.data.losses import Rejection
from pipelines.data.scan import ATTRIBUTE, GROUP
from pipelines.errors import UserError
from pipelines.files import storage

SAMPLES, REJECTED, SUMMARY = "samples.parquet", "rejected.parquet", "summary.json"
NEAR = "near-copies.parquet"


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
        if not are_drawn(folder):
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
        having: npt.NDArray[np.bool_] = role.among(wanted)[role.codes[rows]] | part.among(wanted)[part.codes[rows]]
        return having

    def rows(self, roles: Iterable[str]) -> npt.NDArray[np.intp]:
        """Row numbers of the samples in some roles or parts, ascending."""
        return np.flatnonzero(self._having(roles, slice(None)))

    def ids(self, roles: Iterable[str]) -> list[str]:
        """``source/key`` of the samples in some roles or parts, in a fixed order."""
        return self._ids(self.rows(roles))

    def among(self, ids: Iterable[str], roles: Iterable[str]) -> BoolArray:
        """Which of N ids are in some roles or parts: (N,) bool."""
        return among(ids, set(self.ids(roles)))

    def first(self, roles: Iterable[str], count: int, seed: int) -> list[str]:
        """Ids of ``count`` samples of each of some roles, the same for every count up to that many."""
        ids = []
        for role in roles:
            rows = self.rows([role])
            ranks = np.empty(len(rows), dtype=np.uint64)
            for start in range(0, len(rows), BATCH):
                names = self._ids(rows[start : start + BATCH])
                ranks[start : start + len(names)] = [digest64(seed, "first", name) for name in names]
            ids += self._ids(rows[np.argsort(ranks, kind="stable")[:count]])
        return ids

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
        chosen: set[str] = set()
        for role in roles:
            rows = self.rows([role])
            units = zip(self._units(rows), self._ids(rows), strict=True)
            ids = [one for _, one in sorted((digest64(seed, "fold", unit), one) for unit, one in units)]
            middle = (len(ids) + 1) // 2
            chosen.update({"all": ids, "search": ids[:middle], "final": ids[middle:]}[name])
        return chosen

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

    def named(self, source: str, item: str, roles: Iterable[str]) -> list[str]:
        """``source/key`` of the samples of one item in some roles or parts, ascending."""
        return [f"{source}/{key}" for key in self.keys(source, item, roles)]

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
            pairs = zip(self._ids(some), hex_of(self.table["sha256"].take(pa.array(some))), strict=True)
            digest.update(((", " if start else "") + ", ".join(json.dumps(pair) for pair in pairs)).encode())
        digest.update(b"]]")
        return digest.hexdigest()


def are_drawn(folder: str) -> bool:
    """Whether the splits of a seed's folder are drawn."""
    return storage.exists(f"{folder}/splits/{SUMMARY}")


def members_of(splits: Splits, config: TrainedConfig, seed: int) -> Splits:
    """The splits, narrowed to a half where an encoder is trained on a half of its roles."""
    return splits if config.half is None else splits.half(config.train_on, config.half, seed)


def known_label(name: str, label: int | None) -> int:
    """A label. Raises UserError: there is none; the sample is named."""
    if label is None:
        raise UserError(f"{name} has no class, which attacks on classifiers need; give labelled data, or data.label")
    return label
