"""Tell which samples are among the first of their role, by rank of a hash, shard by shard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mi_core.hashing import FIRST
from mi_core.records import BoolArray
from pipelines.data.columns import ids_of, pixel_ranks
from pipelines.data.draw.splits import Splits, in_roles
from pipelines.files import storage
from pipelines.files.digest import digest

_Last = tuple[int, str]
"""Rank and id of a sample."""


def number_of(splits: Splits, roles: Iterable[str], count: int | None) -> int:
    """Number of samples of some roles if the first ``count`` of each are asked for, at most; None: all."""
    wanted = list(roles)
    if count is None:
        return splits.count(wanted)
    return sum(min(count, splits.count([role])) for role in wanted)


@dataclass(frozen=True)
class Firsts:
    """The samples that `Splits.first` gives, by the last of each role.

    Args:
        lasts: of each role, the last of its samples; None: all samples of the role are among them.
        seed: of the ranks.
    """

    lasts: Mapping[str, _Last | None]
    seed: int

    @classmethod
    def from_splits(cls, splits: Splits, roles: Iterable[str], count: int, seed: int) -> Firsts:
        """The first ``count`` samples of each role of whole splits; a pass over the samples of a role is kept."""
        return cls({role: _last(splits, role, count, seed) for role in roles}, seed)

    def among(self, rows: pa.Table) -> BoolArray:
        """Mark the samples among N that are: (N,) bool. ``rows``: as `Splits.table`."""
        names, ranks = ids_of(rows), pixel_ranks(self.seed, FIRST, rows["sha256"])
        found = np.zeros(len(rows), dtype=bool)
        for role, last in self.lasts.items():
            here = in_roles(rows, [role])
            if last is not None:
                here &= ranks <= np.uint64(last[0])
                for row in np.flatnonzero(here & (ranks == np.uint64(last[0]))):
                    here[row] = names[row] <= last[1]
            found |= here
        return found


def _last(splits: Splits, role: str, count: int, seed: int) -> _Last | None:
    if count >= splits.count([role]):
        return None
    name = digest(splits.role_digest(role), role, count, seed)[:12]
    path = f"{splits.folder}/splits/first-{name}.json"
    if splits.folder and storage.exists(path):
        rank, of = storage.read_json(path)
        return int(rank), str(of)
    rank, of = splits.first_ranked(role, count, seed)[-1]
    if splits.folder:
        storage.write_json(path, [rank, of])
    return rank, of
