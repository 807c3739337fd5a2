"""Find keys that stand in several shards of a source: the first shard keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from pipelines.data.database import database
from pipelines.files import storage
from pipelines.files.many import streamed

_READ = pa.schema([("shard", pa.uint32()), ("row", pa.uint32()), ("key", pa.string())])


def repeated_keys(paths: Sequence[str], rows: int) -> pa.Table:
    """The samples whose key an earlier file has.

    Args:
        paths: of Parquet files with a column ``key``; none holds a key twice.
        rows: of all files.

    Returns:
        shard (number of the file), row, key, and earlier (number of the file that has the key first), in order.
    """
    with database(rows) as connection:
        connection.register("every", storage.data_set(paths))
        connection.execute("CREATE TABLE again AS SELECT hash(key) AS h FROM every GROUP BY h HAVING count(*) > 1")
        if not connection.execute("SELECT count(*) FROM again").fetchall()[0][0]:
            return pa.table({name: pa.array([], pa.uint32()) for name in ("shard", "row", "key", "earlier")})
        connection.register("read", pa.RecordBatchReader.from_batches(_READ, _batches(paths)))
        connection.execute(
            "CREATE TABLE suspects AS SELECT shard, row, key FROM read WHERE hash(key) IN (SELECT h FROM again)"
        )
        return connection.sql(
            """
            SELECT shard, row, key, earlier FROM (
                SELECT *, first_value(shard) OVER (PARTITION BY key ORDER BY shard) AS earlier FROM suspects
            ) WHERE shard <> earlier ORDER BY shard, row
            """
        ).to_arrow_table()


def _keys(path: str) -> pa.Array:
    return storage.read_table(path, ["key"])["key"].combine_chunks()


def _batches(paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for number, keys in enumerate(streamed(_keys, paths)):
        columns = [np.full(len(keys), number, np.uint32), np.arange(len(keys), dtype=np.uint32), keys]
        yield pa.record_batch([pa.array(column) for column in columns], schema=_READ)
