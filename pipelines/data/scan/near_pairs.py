"""Find the pairs of samples with close perceptual hashes: a task for each table of the search and each part of it.

The hashes of all samples stand in files, in the order in which copies are kept; a sample is known by its place in that
order. A task holds the hashes of its part alone.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mi_core.validity.hash_tables import MOST_PARTS, Pairs, distinct_hashes, near_tables, union_of_pairs
from mi_core.validity.near_duplicates import usual_distance
from pipelines.data.columns import PHASH
from pipelines.files import storage
from pipelines.run.parts import TaskMap

HELD = 10_000_000  # hashes that a task holds
FILE = 4_000_000  # hashes of a file
_EACH = 80  # bytes of a hash in a task
_Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class NearPairs:
    """Files of hashes, and of the pairs that were found among them.

    Args:
        folder: of the files.
        sizes: hashes of each file.
        distance: bits in which the hashes of a pair may differ.
    """

    folder: str
    sizes: tuple[int, ...]
    distance: int

    @classmethod
    def listed(cls, connection: Any, order: str, folder: str, distance: int | None) -> NearPairs:
        """Write the hashes of all samples of ``kept``.

        Args:
            connection: to a database, see `pipelines.data.draw.draw`.
            order: of the samples, in SQL.
            folder: of the files.
            distance: in bits; None: the usual one for so many.
        """
        reader = connection.sql(f"SELECT {PHASH}, shard, row FROM kept ORDER BY {order}").to_arrow_reader(FILE)
        sizes = []
        for number in count():
            batches = list(_until(reader, FILE))
            if not batches:
                break
            storage.write_table(_hashes(folder, number), pa.Table.from_batches(batches))
            sizes.append(sum(len(batch) for batch in batches))
        return cls(folder, tuple(sizes), usual_distance(sum(sizes)) if distance is None else distance)

    def find(self, task_map: TaskMap, title: str) -> None:
        """Find the pairs of every table and part."""
        parts = min(MOST_PARTS, max(1, -(-sum(self.sizes) // HELD)))
        tables = max(1, len(near_tables(sum(self.sizes), self.distance)))
        work = [(self, table, part, parts) for table in range(tables) for part in range(parts)]
        task_map(find_part, work, title=title, memory=2**29 + _EACH * min(sum(self.sizes), 2 * HELD))

    def pairs(self) -> Pairs:
        """All pairs: places i < j (P, 2), in order."""
        files = [path for path in storage.list_files(self.folder) if path.endswith(".npy")]
        return union_of_pairs(np.load(io.BytesIO(storage.read_bytes(path))) for path in files)

    def places(self, rows: _Rows) -> tuple[_Rows, _Rows]:
        """Shard and row of the samples at some places, ascending."""
        found = [np.empty((2, 0), dtype=np.int64)]
        for number, (end, size) in enumerate(zip(np.cumsum(self.sizes).tolist(), self.sizes, strict=True)):
            mine = rows[(rows >= end - size) & (rows < end)] - (end - size)
            if len(mine):
                table = storage.read_table(_hashes(self.folder, number), ["shard", "row"]).take(pa.array(mine))
                found.append(np.stack([np.asarray(table[name]).astype(np.int64) for name in ("shard", "row")]))
        shard, row = np.concatenate(found, axis=1)
        return shard, row


def find_part(near: NearPairs, number: int, part: int, parts: int) -> None:
    """Find the pairs of one part of one table; the first table also has the rows of one hash."""
    tables = near_tables(sum(near.sizes), near.distance)
    table = tables[number] if tables else None
    hashes, places, start = [], [], 0
    for file, size in enumerate(near.sizes):
        every = np.asarray(storage.read_table(_hashes(near.folder, file), [PHASH])[PHASH])
        mine = np.arange(size)
        if parts > 1:
            own = every % np.uint64(parts) if table is None else table.part_of(every, parts)
            mine = np.flatnonzero(own == part)
        hashes.append(every[mine])
        places.append(start + mine)
        start += size
    distinct = distinct_hashes(np.concatenate([np.empty(0, dtype=np.uint64), *hashes]))
    found = [distinct.copies] if number == 0 else []
    found += [table.pairs(distinct)] if table is not None else []
    of_all = np.concatenate([np.empty(0, dtype=np.int64), *places])
    buffer = io.BytesIO()
    np.save(buffer, of_all[union_of_pairs(found)])
    storage.write_atomic(f"{near.folder}/{number:03d}-{part:05d}.npy", buffer.getvalue())


def _hashes(folder: str, number: int) -> str:
    return f"{folder}/hashes-{number:05d}.parquet"


def _until(reader: Any, rows: int) -> Iterator[pa.RecordBatch]:
    """Batches until they hold as many rows, or all that are left."""
    held = 0
    for batch in reader:
        yield batch
        held += len(batch)
        if held >= rows:
            return
