"""Sums of every shard, known without reading its samples: how many have which role, and a digest of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mi_core.hashing import as_words, sample_digests, sum_of_digests
from pipelines.data.columns import Coded, ids_of

DROPPED = "dropped"
_TEXTS = [(name, pa.string()) for name in ("source", "item", "path", "role", "part")]
SUMS = pa.schema([*_TEXTS, ("count", pa.int64()), ("digest", pa.binary(32))])
"""One row for each shard, role and part that has samples. With an empty role: the number of rows that are dropped."""


def sums_of(rows: pa.Table, source: str, item: str, path: str = "", dropped: int = 0) -> pa.Table:
    """The sums of the samples of one shard; see `SUMS`.

    A digest is that of all its samples together, as `mi_core.hashing.sum_of_digests`.

    Args:
        rows: source, key, sha256, role and part.
        source, item: where the shard stands.
        path: of the scan's file, in the scan's folder.
        dropped: rows of the scan's file that have no role or no part for another reason than their hash.
    """
    role, part = Coded.from_column(rows["role"]), Coded.from_column(rows["part"])
    digests = sample_digests(rows["sha256"].to_pylist(), ids_of(rows))
    kind = role.codes.astype(np.int64) * (len(part.values) + 1) + part.codes
    entries = []
    place = {"source": source, "item": item, "path": path}
    for one in np.unique(kind).tolist():
        number, of = divmod(one, len(part.values) + 1)
        mine = kind == one
        named = {"role": role.values[number], "part": part.values[of]}
        entries.append(place | named | {"count": int(mine.sum()), "digest": sum_of_digests(digests[mine])})
    if dropped:
        entries.append(place | {"role": "", "part": "", "count": dropped, "digest": bytes(32)})
    return pa.Table.from_pylist(entries, schema=SUMS)


def dropped_path(folder: str, source: str, item: str) -> str:
    """The rows of a shard that have no role, or no part, though their hash would give them one.

    Columns: row, and part (it has a role, but no part).
    """
    return f"{folder}/splits/{DROPPED}/{source}/{item}.parquet"


@dataclass(frozen=True)
class Sums:
    """The sums of all shards.

    Args:
        table: see `SUMS`; the rows of a shard stand together, sources and shards in the order of the scan.
    """

    table: pa.Table

    @cached_property
    def _of(self) -> dict[tuple[str, str], tuple[int, int]]:
        """First row and end of every shard."""
        source, item = Coded.from_column(self.table["source"]), Coded.from_column(self.table["item"])
        place = source.codes.astype(np.int64) * (len(item.values) + 1) + item.codes
        starts = [0, *(np.flatnonzero(np.diff(place)) + 1).tolist()] if len(place) else []
        names = [(source.values[source.codes[start]], item.values[item.codes[start]]) for start in starts]
        return dict(zip(names, zip(starts, [*starts[1:], len(place)], strict=True), strict=True))

    @cached_property
    def _columns(self) -> tuple[Coded, Coded, npt.NDArray[np.int64]]:
        role, part = (Coded.from_column(self.table[name]) for name in ("role", "part"))
        return role, part, np.asarray(self.table["count"])

    @property
    def shards(self) -> Iterator[tuple[str, str]]:
        """Source and item of every shard that has samples with a role."""
        return iter(self._of)

    def at(self, shards: Iterable[tuple[str, str]]) -> Sums:
        """The sums of some shards."""
        parts = [self.table.slice(start, stop - start) for start, stop in (self._of[shard] for shard in shards)]
        return Sums(pa.concat_tables([self.table.slice(0, 0), *parts]))

    def path(self, source: str, item: str) -> str | None:
        """The scan's file of a shard, in the scan's folder; None if none of its samples has a role."""
        rows = self._of.get((source, item))
        return None if rows is None else str(self.table["path"][rows[0]].as_py())

    def rows(
        self, roles: Iterable[str], without: Iterable[str] = (), shard: tuple[str, str] | None = None
    ) -> npt.NDArray[np.intp]:
        """Rows of the table of some roles or parts, less those of others; of one shard, or of all."""
        some = slice(*(self._of.get(shard, (0, 0)) if shard else (0, len(self.table))))
        role, part, _ = self._columns
        wanted, not_wanted = (
            role.among(names)[role.codes[some]] | part.among(names)[part.codes[some]]
            for names in ({*filter(None, roles)}, {*filter(None, without)})
        )
        return np.flatnonzero(wanted & ~not_wanted) + int(some.start)

    def count(self, rows: npt.NDArray[np.intp]) -> int:
        """Samples of some rows of the table."""
        return int(self._columns[2][rows].sum())

    def digest(self, rows: npt.NDArray[np.intp]) -> str:
        """A digest of the samples that some rows of the table stand for: 64 hex digits."""
        return sum_of_digests(as_words(self.table["digest"].take(pa.array(rows)).to_pylist())).hex()

    def dropped(self, source: str, item: str) -> bool:
        """Tell whether rows of a shard are dropped."""
        start, stop = self._of.get((source, item), (0, 0))
        role, _, _ = self._columns
        return bool(role.among([""])[role.codes[start:stop]].any())
