"""Draw the roles of one seed by a seeded hash, so that no two roles share an image.

Usable samples (`pipelines.data.scan.scan`) are ordered by a hash of (seed, source, key). A role with a list of keys
takes its samples first. A role with a count takes the next ranks of that order, role after role by name. A role
with a fraction takes a range of the hash. Exact copies of an image count once. Grouped samples are ordered by a
hash of their group, and no group is in two roles. A count takes whole groups; of the last group it takes only the
samples still missing, and no other role gets the rest.

No process holds a sample of every shard. Tasks hash the samples of some shards each; one task finds copies and
thresholds in a database; then tasks apply the rules to their shards and count.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, islice, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config.roles import CANARY_ROLE
from pipelines.config.sections.data import DataConfig
from pipelines.data.database import database, memory_for, one_by_one, parts
from pipelines.data.draw.duplicates import ORDER, check_distinct, drop_copies, drop_near_copies, find_listed, keeping
from pipelines.data.draw.rules import NO_CLASS, Numbered, Rules, Taker, rank
from pipelines.data.draw.splits import NEAR, Splits
from pipelines.data.draw.sums import SUMS, Sums, dropped_path, sums_of
from pipelines.data.draw.thresholds import Thresholds, check_size, takers_of
from pipelines.data.read.key_lists import ListedKeys
from pipelines.data.read.sources import Source
from pipelines.data.scan.near_pairs import NearPairs
from pipelines.data.scan.scan import REPEATED, Scan
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.run.parts import TaskMap

_WRITTEN = 1024  # files of dropped rows held and written together


def draw(
    config: DataConfig,
    scanned: Scan,
    seed: int,
    folder: str | None = None,
    task_map: TaskMap = one_by_one,
    check: Callable[[Mapping[str, int]], None] | None = None,
) -> Splits:
    """Assign a role to every sample, for one seed.

    Args:
        config: the roles.
        scanned: the samples.
        seed: of the hashes.
        folder: of the seed, where the splits are written; None: a temporary one, which goes with the splits.
        task_map: runs the tasks.
        check: raises if the sizes of the roles will not do; then no splits are drawn.

    Raises:
        UserError: roles that the user gave share an image or a key, a list of keys cannot be read, or a source is too
            small for its roles.
    """
    held = tempfile.TemporaryDirectory(prefix="encoder-audit-") if folder is None else None
    place = folder or str(held and held.name)
    storage.remove(f"{place}/splits")
    used = {role.source_name for role in config.roles.values()}
    shards = [Numbered(*one) for one in enumerate(one for one in scanned.shards if one.source in used)]
    pieces = list(parts(shards, lambda one: one.shard.rows))
    rules = Rules(seed, config.group_by is not None, tuple(config.attributes))
    near = config.near_duplicates is not None
    parted = any(takers_of(config, role) for role in config.roles)
    with _scratch(f"{scanned.folder}/{storage.UNFINISHED}ranks-{seed}") as ranks:
        listed = any(role.is_listed for role in config.roles.values())
        task_map(rank, [(part, rules, ranks, parted, near, listed) for part in pieces], title=f"seed {seed}: hashing")
        takes = memory_for(sum(one.shard.rows for one in shards))
        asked = (config, f"{scanned.folder}/{REPEATED}" if scanned.repeated else "", shards, ranks)
        pairs = None
        if near:
            title = f"seed {seed}: looking for near-copies"
            (pairs,) = task_map(list_hashes, [(*asked, f"{ranks}/near")], title=title, memory=takes)
            pairs.find(task_map, title)
        title = f"drawing the roles of seed {seed}"
        (found,) = task_map(decide, [(*asked, place, pairs)], title=title, memory=takes)
    given = {role.source_name: name for name, role in config.roles.items() if role.whole}
    read = {name: numbers for name, numbers in scanned.read.items() if numbers[0] < numbers[1]}
    by_shard = config.by_shard and bool(read)
    noise = config.roles[CANARY_ROLE].noise if CANARY_ROLE in config.roles else None
    own = rules.grouped, rules.attributes, given, found.takers, read, by_shard, found.wrong, noise, found.lists
    rules = Rules(seed, *own)
    counting = [(scanned.folder, part, rules, place, found.dropped) for part in pieces]
    sums = pa.concat_tables([SUMS.empty_table(), *task_map(count, counting, title=f"seed {seed}: counting")])
    held_both = (held, scanned.held)
    dropped = found.copies, found.near, found.among
    drawn = Splits(tuple(config.roles), Sums(sums), place, rules, scanned.folder, *dropped, held_both)
    _check_filled(config, drawn)
    if check is not None:
        check(drawn.counts())
    drawn.save(place, scanned.rejected)
    return drawn


@dataclass(frozen=True)
class Decision:
    """The outcome of `decide`.

    Args:
        takers: by the source or role that they draw from.
        copies: exact copies that were dropped.
        near: near-copies that were dropped; None where none were looked for.
        among: of so many images.
        dropped: numbers of the shards of which rows are dropped, or have the role of a list.
        lists: how the lists of keys fit, by role.
        wrong: classes of mislabelled canaries, see `Rules`.
    """

    takers: Mapping[str, tuple[Taker, ...]]
    copies: int
    near: int | None
    among: int
    dropped: frozenset[int]
    lists: Mapping[str, ListedKeys]
    wrong: tuple[int, ...]


def list_hashes(config: DataConfig, repeated: str, shards: Sequence[Numbered], ranks: str, folder: str) -> NearPairs:
    """Write the perceptual hashes of all samples that are no exact copies; arguments as `decide`.

    Raises:
        UserError: as `draw`.
    """
    assert config.near_duplicates is not None
    with _kept(config, repeated, shards, ranks) as (connection, *_):
        return NearPairs.listed(connection, ORDER, folder, config.near_duplicates.distance)


def decide(
    config: DataConfig, repeated: str, shards: Sequence[Numbered], ranks: str, folder: str, pairs: NearPairs | None
) -> Decision:
    """Find copies, listed samples and the thresholds of the roles; writes the rows of each shard that are exceptions.

    Args:
        config: the roles.
        repeated: the table of samples whose key an earlier shard has; empty if there are none.
        shards: of all sources that are used.
        ranks: the folder of their hashes.
        folder: of the seed.
        pairs: of close hashes; None: near-copies are not looked for.

    Raises:
        UserError: as `draw`.
    """
    with _kept(config, repeated, shards, ranks) as (connection, numbers, copies, lists):
        of_shard = {one.number: one for one in shards}
        check_distinct(connection, of_shard)
        near, among = None, 0
        if config.near_duplicates is not None and pairs is not None:
            ((among,),) = connection.execute("SELECT count(*) FROM kept").fetchall()
            table = drop_near_copies(connection, of_shard, config.near_duplicates, pairs)
            storage.write_table(f"{folder}/splits/{NEAR}", table)
            near = len(table)
        takers = Thresholds(config, connection, of_shard, numbers).find()
        dropped = frozenset(_write_dropped(connection, of_shard, folder, list(config.roles)))
        wrong = _wrong_classes(config, connection, numbers)
    return Decision(takers, copies, near, among, dropped, lists, wrong)


def _wrong_classes(config: DataConfig, connection: Any, numbers: Mapping[str, int]) -> tuple[int, ...]:
    """The classes of the source of mislabelled canaries, ascending; empty where there are no such canaries.

    Raises:
        UserError: there are fewer than two classes.
    """
    role = config.roles.get(CANARY_ROLE)
    if role is None or role.kind != "mislabelled":
        return ()
    source = numbers[role.source_name]
    query = f"SELECT DISTINCT label FROM kept WHERE source = {source} AND label <> {NO_CLASS} ORDER BY label"
    classes = tuple(int(label) for (label,) in connection.execute(query).fetchall())
    if len(classes) < 2:
        raise UserError(
            f"data.roles.{CANARY_ROLE}.kind = mislabelled needs two classes, {role.source_name} has {len(classes)}; "
            "give labelled images, or kind: plain"
        )
    return classes


@contextmanager
def _kept(
    config: DataConfig, repeated: str, shards: Sequence[Numbered], ranks: str
) -> Iterator[tuple[Any, dict[str, int], int, dict[str, ListedKeys]]]:
    """A database of ``kept``: all samples but exact copies; numbers of the sources, number of copies, lists of keys.

    Raises:
        UserError: as `draw`.
    """
    owner = {role.source_name: number for number, role in enumerate(config.roles.values()) if role.whole}
    used = {role.source_name for role in config.roles.values()}
    names = [name for name in config.sources if name in used]
    numbers = {name: number for number, name in enumerate(names)}
    priority = dict(zip(names, keeping(config.roles, names).tolist(), strict=True))
    places = [
        {
            "shard": one.number,
            "source": numbers[one.shard.source],
            "priority": priority[one.shard.source],
            "owner": owner.get(one.shard.source),
        }
        for one in shards
    ]
    of_shard = {one.number: one for one in shards}
    with database(sum(one.shard.rows for one in shards)) as connection:
        columns = pa.schema([(name, pa.uint32()) for name in ("shard", "source", "priority", "owner")])
        connection.register("places", pa.Table.from_pylist(places, columns))
        connection.register("ranked", storage.data_set([one.ranks(ranks) for one in shards]))
        connection.execute(
            """
            CREATE TABLE gone (shard UINTEGER, row UINTEGER);
            CREATE TABLE barred (shard UINTEGER, row UINTEGER);
            """
        )
        if repeated:
            named = [{"shard": one.number, "source": one.shard.source, "item": one.shard.item} for one in shards]
            connection.register("named", pa.Table.from_pylist(named))
            connection.register("repeated", storage.data_set([repeated]))
            connection.execute("INSERT INTO gone SELECT shard, row FROM repeated JOIN named USING (source, item)")
        lists = find_listed(connection, of_shard, config.roles, numbers)
        connection.execute(
            """
            CREATE TEMP VIEW kept AS
                SELECT ranked.*, source, listed,
                    coalesce(of_list, priority) AS priority, coalesce(listed, owner) AS owner
                FROM ranked JOIN places USING (shard) LEFT JOIN listed USING (shard, row)
                ANTI JOIN gone USING (shard, row)
            """
        )
        yield connection, numbers, drop_copies(connection, of_shard, list(config.roles)), lists


def _write_dropped(connection: Any, shards: Mapping[int, Numbered], folder: str, roles: Sequence[str]) -> Iterator[int]:
    """Write the rows of each shard that are exceptions, in the order of the shards; yields the shards' numbers."""
    lost = connection.sql(
        """
        SELECT shard, row, part, listed FROM (
            SELECT shard, row, false AS part, NULL AS listed FROM gone
            UNION ALL SELECT shard, row, true, NULL FROM barred
            UNION ALL SELECT shard, row, false, listed FROM listed ANTI JOIN gone USING (shard, row)
        ) ORDER BY shard, row, part
        """
    ).to_arrow_reader()
    names = pa.array(roles, pa.string())

    def write(of: tuple[int, pa.Table]) -> int:
        number, rows = of
        one = shards[number].shard
        columns = {"row": rows["row"].cast(pa.uint32()), "part": rows["part"]}
        if rows["listed"].null_count < len(rows):
            columns["role"] = pc.fill_null(names.take(rows["listed"].combine_chunks()), "")
        storage.write_table(dropped_path(folder, one.source, one.item), pa.table(columns))
        return number

    tables = _by_shard(pa.Table.from_batches([batch]) for batch in lost)
    while some := list(islice(tables, _WRITTEN)):
        yield from storage.at_once(write, some)


def _by_shard(parts: Iterable[pa.Table]) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each shard, from parts in the order of the shards."""

    def pieces() -> Iterator[tuple[int, pa.Table]]:
        for part in parts:
            shard = np.asarray(part["shard"]).astype(np.int64)
            starts = np.flatnonzero(np.diff(shard, prepend=-1)).tolist()
            yield from ((int(shard[one]), part.slice(one, end - one)) for one, end in pairwise([*starts, len(shard)]))

    for number, some in groupby(pieces(), key=itemgetter(0)):
        yield number, pa.concat_tables([piece for _, piece in some])


def count(scan_folder: str, shards: Sequence[Numbered], rules: Rules, folder: str, dropped: frozenset[int]) -> pa.Table:
    """Apply the rules to some shards; their `SUMS`."""
    counted = [SUMS.empty_table()]
    for one in shards:
        of = one.shard
        lost = storage.read_table(dropped_path(folder, of.source, of.item)) if one.number in dropped else None
        rows = rules.draw_shard(storage.read_table(of.path), of.source, of.item, lost)
        path = of.path.removeprefix(f"{scan_folder}/")
        counted.append(sums_of(rows, of.source, of.item, path, 0 if lost is None else len(lost)))
    return pa.concat_tables(counted)


@contextmanager
def _scratch(folder: str) -> Iterator[str]:
    """A folder that is empty before the block and gone after it."""
    storage.remove(folder)
    try:
        yield folder
    finally:
        storage.remove(folder)


def check_sizes(config: DataConfig) -> None:
    """Check the counts of the roles against the sources whose size is known without reading images.

    Raises:
        UserError: a path matches nothing, or a source is too small for its roles.
    """
    for name, source in config.sources.items():
        sizes = [item.count for item in Source(source).items()]
        if None not in sizes:
            check_size(config, name, sum(size or 0 for size in sizes))


def _check_filled(config: DataConfig, drawn: Splits) -> None:
    counts = drawn.counts()
    for name, role in config.roles.items():
        have = counts[name]
        if have == 0 or (role.count is not None and have != role.count):
            whole = " in groups that no other role has" if config.group_by else ""
            if role.keys is not None:
                raise UserError(f"data.roles.{name}: no usable sample of {role.source_name} has a key of {role.keys}")
            raise UserError(
                f"data.roles.{name}: {role.count or 'some'} images are wanted from {role.source_name}"
                f"{'' if role.classes is None else f' in classes {list(role.classes)}'}, which has {have}{whole}; "
                "lower the count or give more data"
            )
