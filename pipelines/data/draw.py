"""Draw the roles of one seed by a seeded hash, so that no two roles share an image.

Usable samples (`pipelines.data.scan`) are ordered by a hash of (seed, source, key). A role with a count takes the next
ranks of that order, role after role by name. A role with a fraction takes a range of the hash. Exact copies of an image
count once. Grouped samples are ordered by a hash of their group, and no group is in two roles. A count takes whole
groups; of the last group it takes only the samples still missing, and no other role gets the rest.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mi_core.hashing import digest64
from pipelines.config.data import DataConfig, Role
from pipelines.data.columns import BATCH, Coded, codes_of
from pipelines.data.duplicates import distinct, keeping, without_near_copies
from pipelines.data.scan import DESCRIPTOR, GROUP, PHASH, Scan
from pipelines.data.sources import Source
from pipelines.data.splits import Splits
from pipelines.errors import UserError

_HASH_RANGE = 2.0**64
_NO_LABEL = np.iinfo(np.int64).min


def draw(config: DataConfig, scanned: Scan, seed: int) -> Splits:
    """Assign a role to every sample, for one seed.

    Raises:
        UserError: roles that the user gave share an image, or a source is too small for its roles.
    """
    table = scanned.samples
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
    drawn = Splits(table, tuple(config.roles), scanned.rejected, duplicates, near)
    _check_filled(config, drawn)
    drawn.check()
    return drawn


def check_sizes(config: DataConfig) -> None:
    """Check the counts of the roles against the sources whose size is known without reading images.

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
            f"data.roles: {sizes} = {sum(asked.values())} images are wanted from {source}, which has {available} "
            "distinct usable images; lower the counts or give more data"
        )


def _hashes(table: pa.Table, seed: int, purpose: str) -> npt.NDArray[np.uint64]:
    """A hash of (seed, purpose, source, key) for every row, or of (seed, purpose, group) where samples are grouped."""
    hashes = np.empty(len(table), dtype=np.uint64)
    start = 0
    for batch in table.select([GROUP] if GROUP in table.column_names else ["source", "key"]).to_batches(
        max_chunksize=BATCH
    ):
        names = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        hashes[start : start + len(batch)] = [digest64(seed, purpose, *name) for name in names]
        start += len(batch)
    return hashes


def _takers(config: DataConfig, origin: str) -> dict[str, Role]:
    """The roles drawn from a source or role, sorted by name: the order in a config file has no effect."""
    return {name: role for name, role in sorted(config.roles.items()) if role.source_name == origin and role.drawn}


def _assign(
    assigned: npt.NDArray[np.int16],
    names: list[str],
    rows: npt.NDArray[np.intp],
    ranks: npt.NDArray[np.uint64],
    labels: npt.NDArray[np.int64],
    groups: npt.NDArray[np.int32] | None,
    takers: dict[str, Role],
) -> None:
    """Assign ranked rows to roles: counts take the first free ranks, fractions take consecutive ranges of the hash."""
    low = 0.0
    for name, role in takers.items():
        free = assigned[rows] == 0
        if groups is not None:
            free &= ~np.isin(groups[rows], np.unique(groups[assigned != 0]))
        if role.classes is not None:
            free &= np.isin(labels, role.classes)
        if role.count is not None:
            assigned[rows[np.flatnonzero(free)[: role.count]]] = names.index(name)
        elif role.fraction is not None:
            high = low + role.fraction
            share = ranks / _HASH_RANGE
            assigned[rows[free & (share >= low) & (share < high)]] = names.index(name)
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
            "remove the group from one of them"
        )


def _check_filled(config: DataConfig, drawn: Splits) -> None:
    counts = drawn.counts()
    for name, role in config.roles.items():
        have = counts[name]
        if have == 0 or (role.count is not None and have != role.count):
            whole = " in groups that no other role has" if config.group_by else ""
            raise UserError(
                f"data.roles.{name}: {role.count or 'some'} images are wanted from {role.source_name}"
                f"{'' if role.classes is None else f' in classes {list(role.classes)}'}, which has {have}{whole}; "
                "lower the count or give more data"
            )
