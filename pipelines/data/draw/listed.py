"""Find the samples that lists of keys name, in a database of all samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.config.sections.data import Role
from pipelines.data.draw.duplicates import priority_of
from pipelines.data.draw.ranks import Numbered, hashes_of_keys
from pipelines.data.read.key_lists import SHOWN, ListedKeys, keys_in, texts_at
from pipelines.errors import UserError
from pipelines.files import storage


def find_listed(
    connection: Any, shards: Mapping[int, Numbered], roles: Mapping[str, Role], sources: Mapping[str, int]
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
    _check_once(connection, shards, list(roles))
    return found


def _read(connection: Any, path: str, column: str | None) -> None:
    """Make ``wanted``: the hash, the first place and the number of places of each key of a list."""
    connection.execute("CREATE OR REPLACE TABLE every_key (key_high UBIGINT, key_low UBIGINT, place UBIGINT)")
    start = 0
    for keys in keys_in(path, column):
        high, low = hashes_of_keys(keys).T
        place = np.arange(start, start + len(keys), dtype=np.uint64)
        part = pa.table({"key_high": high, "key_low": low, "place": place})
        connection.register("part", part)
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


def _check_once(connection: Any, shards: Mapping[int, Numbered], roles: list[str]) -> None:
    """Raise UserError if two lists name the same sample."""
    torn = connection.execute(
        "SELECT shard, row, min(listed), max(listed) FROM listed GROUP BY shard, row HAVING count(*) > 1 "
        "ORDER BY shard, row LIMIT 1"
    ).fetchall()
    for shard, row, one, two in torn:
        of = shards[shard].shard
        key = storage.read_table(of.path, ["key"])["key"][row].as_py()
        raise UserError(f"the lists of {roles[one]} and {roles[two]} both name {of.source}/{key}; remove it from one")
