"""Drop exact copies and near-copies of images; one copy stays, the others are listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mi_core.validity.near_duplicates import first_copies
from pipelines.config.roles import CANDIDATE_ROLES, are_nonmembers
from pipelines.config.sections.data import NearDuplicatesConfig, RoleConfig
from pipelines.data.columns import DESCRIPTOR
from pipelines.data.draw.rules import Numbered, hashes_of_keys
from pipelines.data.read.key_lists import SHOWN, ListedKeys, keys_in, texts_at
from pipelines.data.scan.near_pairs import NearPairs
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.many import streamed

ORDER = "priority, role, shard, row"  # the first copy in this order stays
_Rows = npt.NDArray[np.int64]


def drop_copies(connection: Any, shards: Mapping[int, Numbered], roles: Sequence[str]) -> int:
    """Add all exact copies of an image but the first to ``gone``; their number.

    Args:
        connection: to a database of ``kept``, ``gone`` and ``places``; see `pipelines.data.draw.draw`.
        shards: by number.
        roles: names of all roles, by number.

    Raises:
        UserError: two roles that the user gave share an image.
    """
    connection.execute(
        f"""
        CREATE TABLE copied AS SELECT high, low FROM kept GROUP BY high, low HAVING count(*) > 1;
        CREATE TABLE copies AS
            SELECT shard, row, role, priority, owner, row_number() OVER same AS place,
                first_value(shard) OVER same AS of_shard, first_value(row) OVER same AS of_row,
                first_value(owner) OVER same AS of_owner
            FROM kept JOIN copied USING (high, low)
            WINDOW same AS (PARTITION BY high, low ORDER BY {ORDER})
        """
    )
    shared = connection.execute(
        "SELECT of_owner, of_shard, of_row, owner, shard, row, count(*) OVER () FROM copies "
        f"WHERE place > 1 AND owner <> of_owner ORDER BY {ORDER} LIMIT 1"
    ).fetchall()
    for one_owner, one_shard, one_row, two_owner, two_shard, two_row, several in shared:
        (one, first), (two, second) = _named(shards, one_shard, one_row), _named(shards, two_shard, two_row)
        what, them = ("an image", "it") if several == 1 else (f"{several:,} images", "them")
        raise UserError(
            f"roles {roles[one_owner]} and {roles[two_owner]} share {what}: {one}/{first} and {two}/{second} have the "
            f"same pixels; remove {them} from one of them (of whole sources, fraction: 1.0 on one does)"
        )
    connection.execute("INSERT INTO gone SELECT shard, row FROM copies WHERE place > 1")
    return int(connection.execute("SELECT count(*) FROM copies WHERE place > 1").fetchall()[0][0])


def check_distinct(connection: Any, shards: Mapping[int, Numbered]) -> None:
    """Raise RuntimeError if two samples of ``kept`` are one image."""
    twice = "SELECT high, low, min(shard) AS shard FROM kept GROUP BY high, low HAVING count(*) > 1"
    ((count, first),) = connection.execute(f"SELECT count(*), min(shard) FROM ({twice})").fetchall()
    if count:
        shard = shards[first].shard
        raise RuntimeError(f"the splits hold {count} images twice, the first in {shard.source}, shard {shard.item}")


def keeping(roles: Mapping[str, RoleConfig], sources: Sequence[str]) -> npt.NDArray[np.int64]:
    """Priority of each source when images are copies: (S,); the lowest number keeps its copy.

    A sample that a list gives has the priority of its role: see `priority_of`.

    Members that the user gives come first. A non-member that the user gives loses a copy of any image that members are
    drawn from, since it may have been trained on; otherwise given roles come before what is drawn.
    """
    given = {role.source_name: name for name, role in roles.items() if role.whole}
    feeding = {role.source_name for name, role in roles.items() if not _nonmember(name) and role.is_drawn}
    spoilt = any(_nonmember(name) for name, role in roles.items() if not role.is_drawn)
    priority = np.full(len(sources), 3, dtype=np.int64)
    for number, name in enumerate(sources):
        if name in given:
            priority[number] = priority_of(given[name])
        elif spoilt and name in feeding:
            priority[number] = 1
    return priority


def priority_of(role: str) -> int:
    """Priority of the samples of a role that the user gives."""
    return 2 if _nonmember(role) else 0


def drop_near_copies(
    connection: Any, shards: Mapping[int, Numbered], config: NearDuplicatesConfig, near: NearPairs
) -> pa.Table:
    """Add all near-copies but the first to ``gone``; a table of them: id, copy_of.

    Args:
        connection: as for `drop_copies`.
        shards: by number.
        config: the definition of a near-copy.
        near: pairs of samples with close hashes.
    """
    pairs = near.pairs()
    rows, alike = np.unique(pairs, return_inverse=True)
    shard, row = near.places(rows)
    levels = np.frombuffer(b"".join(_columns(shards, shard, row, DESCRIPTOR)), dtype=np.uint8).reshape(-1, 64)
    owner = first_copies(alike.reshape(pairs.shape), levels, least=config.least)
    lost = np.flatnonzero(owner != np.arange(len(rows)))
    gone = pa.table({"shard": pa.array(shard[lost], pa.uint32()), "row": pa.array(row[lost], pa.uint32())})
    connection.register("near_copies", gone)
    connection.execute("INSERT INTO gone SELECT shard, row FROM near_copies")
    ids = [
        [f"{shards[number].shard.source}/{key}" for number, key in zip(shard[some].tolist(), keys, strict=True)]
        for some in (lost, owner[lost])
        for keys in [_columns(shards, shard[some], row[some], "key")]
    ]
    return pa.table({name: pa.array(column, pa.string()) for name, column in zip(("id", "copy_of"), ids, strict=True)})


def _columns(shards: Mapping[int, Numbered], shard: _Rows, row: _Rows, column: str) -> list[Any]:
    """A column of some samples, in their order; every shard is read once."""
    values: list[Any] = [None] * len(shard)
    order = np.argsort(shard, kind="stable")
    numbers, starts = np.unique(shard[order], return_index=True)
    paths = [shards[number].shard.path for number in numbers.tolist()]
    columns = streamed(lambda path: storage.read_table(path, [column])[column], paths)
    for read, places in zip(columns, np.split(order, starts)[1:], strict=True):
        for place, value in zip(places.tolist(), read.take(pa.array(row[places])).to_pylist(), strict=True):
            values[place] = value
    return values


def _named(shards: Mapping[int, Numbered], shard: int, row: int) -> tuple[str, str]:
    """Source and key of a sample."""
    return shards[shard].shard.source, storage.read_table(shards[shard].shard.path, ["key"])["key"][row].as_py()


def _nonmember(role: str) -> bool:
    return are_nonmembers(role) or role == CANDIDATE_ROLES[1]


def find_listed(
    connection: Any, shards: Mapping[int, Numbered], roles: Mapping[str, RoleConfig], sources: Mapping[str, int]
) -> dict[str, ListedKeys]:
    """Make ``listed``: shard, row, listed (number of a role), of_list (its priority among copies).

    Args:
        connection: to a database of ``ranked``, ``places`` and ``gone``; see `pipelines.data.draw.draw`.
        shards: by number.
        roles: all roles; their numbers are their places.
        sources: numbers of the sources.

    Returns:
        How each list fits, by role.

    Raises:
        UserError: a list cannot be read, or two lists of a source name the same sample.
    """
    connection.execute("CREATE TABLE listed (shard UINTEGER, row UINTEGER, listed UINTEGER, of_list UINTEGER)")
    found = {}
    for number, (name, role) in enumerate(roles.items()):
        if role.keys is not None:
            _read(connection, role.keys, role.key_column)
            connection.execute(
                f"""
                CREATE OR REPLACE TABLE hits AS
                    SELECT shard, row, place FROM ranked JOIN places USING (shard)
                        JOIN wanted USING (key_high, key_low)
                        ANTI JOIN gone USING (shard, row)
                    WHERE source = {sources[role.source_name]};
                INSERT INTO listed SELECT shard, row, {number}, {priority_of(name)} FROM hits
                """
            )
            found[name] = _fit(connection, role.keys, role.key_column)
    torn = connection.execute(
        "SELECT shard, row, min(listed), max(listed) FROM listed GROUP BY shard, row HAVING count(*) > 1 "
        "ORDER BY shard, row LIMIT 1"
    ).fetchall()
    for shard, row, one, two in torn:
        names = list(roles)
        name = "/".join(_named(shards, shard, row))
        raise UserError(f"the lists of {names[one]} and {names[two]} both name {name}; remove it from one")
    return found


def _read(connection: Any, path: str, column: str | None) -> None:
    """Make ``wanted``: the hash, the first place and the number of places of each key of a list."""
    connection.execute("CREATE OR REPLACE TABLE every_key (key_high UBIGINT, key_low UBIGINT, place UBIGINT)")
    start = 0
    for keys in keys_in(path, column):
        high, low = hashes_of_keys(keys).T
        place = np.arange(start, start + len(keys), dtype=np.uint64)
        connection.register("part", pa.table({"key_high": high, "key_low": low, "place": place}))
        connection.execute("INSERT INTO every_key SELECT * FROM part")
        connection.unregister("part")
        start += len(keys)
    connection.execute(
        """
        CREATE OR REPLACE TABLE wanted AS
            SELECT key_high, key_low, min(place) AS place, count(*) AS times FROM every_key GROUP BY key_high, key_low;
        DROP TABLE every_key
        """
    )


def _fit(connection: Any, path: str, column: str | None) -> ListedKeys:
    def number(query: str) -> int:
        return int(connection.execute(f"SELECT count(*) FROM {query}").fetchall()[0][0])

    missing = "wanted ANTI JOIN hits USING (place)"
    first = connection.execute(f"SELECT place FROM {missing} ORDER BY place LIMIT {SHOWN}").fetchall()
    texts = texts_at(path, column, [place for (place,) in first])
    return ListedKeys(path, number("wanted"), number("wanted WHERE times > 1"), number(missing), tuple(texts))
