"""Parts of the samples that roles have: what recurs in other seeds, halves, and the first by rank of a hash.

A mean over seeds must know how many of the samples that one seed draws another seed draws too. A role that the user
gives holds the same samples in every seed. A drawn role takes a share of its pool, of what it can be drawn from, anew
in every seed: that share of its samples is expected in any other seed too. Shares are read off the rules of a seed, so
that no sample is read, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from mi_core.hashing import FIRST
from mi_core.records import BoolArray
from pipelines.config.sections.data import DataConfig
from pipelines.data.columns import ids_of, pixel_ranks
from pipelines.data.draw.rules import HIGHEST, Taker
from pipelines.data.draw.splits import Splits, in_roles
from pipelines.data.draw.sums import SUMS, Sums, sums_of
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.run.folder import SeedFolder


def overlap_of(data: DataConfig, seeds: Sequence[int], folder: SeedFolder, roles: Sequence[str]) -> float:
    """Share, in [0, 1], of the samples of some roles together that another seed has in them too; 0 for a single seed.

    Args:
        data: how roles are drawn.
        seeds: of the run.
        folder: of one seed, with its splits.
        roles: or parts of roles.
    """
    return 0.0 if len(seeds) == 1 else recurring(data, Splits.load(folder.path), roles)


def audited_overlap(data: DataConfig, seeds: Sequence[int], folder: SeedFolder, roles: Sequence[str]) -> float:
    """The same for what compares the two audited sides: the larger share, or 0 if samples change sides.

    Where both sides are drawn from one pool, a sample that recurs is as likely to stand on the other side. Its error
    then has the other sign as often, and seeds are as good as independent.
    """
    first, second = roles
    if len(seeds) == 1 or pool_of(data, first) == pool_of(data, second):
        return 0.0
    splits = Splits.load(folder.path)
    return max(recurring(data, splits, [role]) for role in roles)


def recurring(data: DataConfig, splits: Splits, roles: Sequence[str]) -> float:
    """As `overlap_of`, of some splits."""
    share: dict[tuple[str, ...], float] = {}
    counts = {role: splits.count([role]) for role in roles}
    for role in counts:
        pool = pool_of(data, role)
        share[pool] = share.get(pool, 0.0) + _share(data, splits, role)
    again = sum(count * min(1.0, share[pool_of(data, role)]) for role, count in counts.items())
    return again / max(1, sum(counts.values()))


def pool_of(data: DataConfig, role: str) -> tuple[str, ...]:
    """The pool of a role: a source or a role that the user gives, and the classes; such a role is its own."""
    chosen = data.roles[role]
    if not chosen.is_drawn:
        return (role,)
    origin = chosen.source_name
    whole = pool_of(data, origin) if origin in data.roles else (origin,)
    return whole if chosen.classes is None else (*whole, str(sorted(chosen.classes)))


def _share(data: DataConfig, splits: Splits, role: str) -> float:
    """The share of its pool that a role takes; 1 where samples count by shard, which are those of every seed."""
    chosen = data.roles[role]
    if not chosen.is_drawn or splits.rules is None or splits.rules.by_shard:
        return 1.0
    origin = chosen.source_name
    of_pool = _share(data, splits, origin) if origin in data.roles else 1.0
    return of_pool * _range(splits.rules.takers[origin], role)


def _range(takers: Sequence[Taker], role: str) -> float:
    """The share of the range of hashes that a drawn role has for itself, at the most.

    Hashes below the end of a role that drew before it, from all its classes, were not free.
    """
    place = next(number for number, taker in enumerate(takers) if taker.role == role)
    mine, before = takers[place], takers[:place]
    own = None if mine.classes is None else set(mine.classes)
    ends = [one.last + 1 for one in before if one.classes is None or (own is not None and own <= set(one.classes))]
    return max(0, mine.last + 1 - max([mine.first, *ends])) / (HIGHEST + 1)


if TYPE_CHECKING:  # readers of shards evaluate roles without PyTorch, which the config of an encoder imports
    from pipelines.config.sections.encoders import EncoderConfig, TrainedConfig


def members_of(splits: Splits, config: TrainedConfig, seed: int, nonce: str | None) -> Splits:
    """The splits, narrowed to a half where an encoder is trained on a half of its roles; ``nonce``: of the queries."""
    return splits if config.half is None else splits.half(config.train_on, config.half, seed, nonce)


def seen_by(splits: Splits, config: EncoderConfig, seed: int, nonce: str | None, ids: Sequence[str]) -> BoolArray:
    """Mark the samples among N that an encoder was trained on, where that was on a half of them: (N,) bool."""
    half: TrainedConfig | None = config if getattr(config, "half", None) is not None else None  # type: ignore[assignment]
    if half is None:
        return np.zeros(len(ids), dtype=bool)
    return members_of(splits, half, seed, nonce).among(ids, half.train_on)


def recounted(splits: Splits) -> dict[str, dict[str, Any]]:
    """Number (``n``) and digest (``sha256``) of every role and part, from the samples of every shard.

    Raises:
        UserError: the samples of a shard are gone or changed, as `Splits.shard`.
    """
    fresh = splits.at(splits.sums.shards)  # it remembers no shard that was read before
    shards = [sums_of(fresh.shard(*place), *place) for place in splits.sums.shards]
    sums = Sums(pa.concat_tables([SUMS.empty_table(), *shards]))
    rows = {role: sums.rows([role]) for role in splits.roles}
    return {role: {"n": sums.count(mine), "sha256": sums.digest(mine)} for role, mine in rows.items()}


_Last = tuple[int, str]
"""Rank and id of a sample."""


def number_of(splits: Splits, roles: Iterable[str], count: int | None) -> int:
    """Number of samples of some roles if the first ``count`` of each are asked for, at most; None: all."""
    wanted = list(roles)
    return splits.count(wanted) if count is None else sum(min(count, splits.count([role])) for role in wanted)


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
    path = f"{splits.folder}/splits/first-{digest(splits.role_digest(role), role, count, seed)[:12]}.json"
    if splits.folder and storage.exists(path):
        rank, of = storage.read_json(path)
        return int(rank), str(of)
    rank, of = splits.first_ranked(role, count, seed)[-1]
    if splits.folder:
        storage.write_json(path, [rank, of])
    return rank, of
