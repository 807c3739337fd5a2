"""Parquet files that hold the bytes of images, such as data sets on the Hub: a row group is an item.

A row group is read in small batches, so that memory depends on its pages and not on its size. Footers are read once per
process and state of a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.config.sections.sources import ColumnsConfig
from pipelines.data.read.parquet_columns import Columns
from pipelines.data.read.samples import Damage, Item, Problem, Sample
from pipelines.data.read.shard_paths import PARQUET, expand, names_of
from pipelines.errors import UserError
from pipelines.files import storage

BATCH = 16  # rows in memory at once
_BUFFER = 4 * 2**20  # bytes of a column in one request
_LISTED = 2**17  # files whose row groups are remembered
_FAULTS = (OSError, pa.ArrowException)


def items_of(patterns: Sequence[str], columns: ColumnsConfig) -> list[Item]:
    """The row groups of the files that some patterns name, in order; ``start`` and ``stop`` are rows of the file.

    A file without a readable footer is an item of unknown size; reading it tells the damage.

    Raises:
        UserError: nothing matches, no file has a row, or the first one lacks a column.
    """
    paths = [path for pattern in patterns for path in expand(pattern, PARQUET)]
    folders = dict.fromkeys(path.rpartition("/")[0] for path in paths)
    written = {path: stamp for folder in folders for path, stamp in storage.stamps(folder).items()}

    def rows_of(path: str) -> tuple[int, ...] | None:
        try:
            return _rows(path, written.get(path, ""))
        except _FAULTS:
            return None

    items: list[Item] = []
    checked = False
    for path, name, rows in zip(paths, names_of(paths, ".parquet"), storage.at_once(rows_of, paths), strict=True):
        if rows is None:
            items.append(Item(_name(name, 0), path=path))
            continue
        if not checked:
            _check(path, written.get(path, ""), columns)
            checked = True
        start = 0
        for group, count in enumerate(rows):
            items += [Item(_name(name, group), path=path, start=start, stop=start + count)] if count else []
            start += count
    if not items:
        raise UserError(f"{', '.join(patterns)} holds no row")
    return items


def scan_row_group(item: Item, given: ColumnsConfig) -> Iterator[Sample | Problem]:
    """All rows of a row group in order: usable samples, a problem for each other row, and the damage that ends it."""
    found = 0
    file_name = file_of(item)
    seen: set[str] = set()
    try:
        footer = _footer(item.path, storage.stamp(item.path))
        with storage.open_seekable(item.path) as stream:
            settings = {"pre_buffer": False, "buffer_size": _BUFFER, "page_checksum_verification": True}
            file = pq.ParquetFile(stream, metadata=footer, **settings)
            columns = Columns.from_schema(file.schema_arrow, given)
            group = _number_of(footer, item)
            for batch in file.iter_batches(BATCH, row_groups=[group], columns=columns.read, use_threads=False):
                cells = columns.cells(batch)
                for row in range(len(batch)):
                    sample = columns.sample(cells, row, f"{file_name}/{item.start + found:07d}")
                    found += 1
                    twice = sample.key in seen and not isinstance(sample, Problem)
                    yield Problem(sample.key, "the row group has this key twice") if twice else sample
                    seen.add(sample.key)
    except _FAULTS as error:
        yield Damage("", f"unreadable: {' '.join(str(error).split())}", found, left=_rows_left(item))
    except ValueError as error:  # a column is missing, or the file was written again
        yield Damage("", f"{item.path.rpartition('/')[2]}: {error}", found)


def file_of(item: Item) -> str:
    """The name of the file that a row group is of, without its ending."""
    return item.name.rpartition("-")[0]


def _name(file: str, group: int) -> str:
    return f"{file}-{group:05d}"


@lru_cache(maxsize=8)
def _footer(path: str, _written: str) -> pq.FileMetaData:
    """The footer of a file in one state. Raises OSError, or ArrowException: it is no Parquet file."""
    with storage.open_seekable(path) as stream:
        return pq.read_metadata(stream)


@lru_cache(maxsize=_LISTED)
def _rows(path: str, written: str) -> tuple[int, ...]:
    """Rows of the row groups of a file in one state. Raises as `_footer`."""
    footer = _footer(path, written)
    return tuple(footer.row_group(group).num_rows for group in range(footer.num_row_groups))


def _check(path: str, written: str, columns: ColumnsConfig) -> None:
    try:
        Columns.from_schema(_footer(path, written).schema.to_arrow_schema(), columns)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def _rows_left(item: Item) -> int:
    """Bytes of a file whose rows are not known: they tell about how many are lost."""
    if item.count is not None:
        return 0
    folder = item.path.rpartition("/")[0]
    return storage.sizes(folder).get(item.path, 0)


def _number_of(footer: pq.FileMetaData, item: Item) -> int:
    """The number of an item's row group. Raises ValueError: the file was written again since it was listed."""
    start = 0
    for group in range(footer.num_row_groups):
        rows = footer.row_group(group).num_rows
        if rows and (start, start + rows) == (item.start, item.stop):
            return group
        start += rows
    raise ValueError("it was written again since its row groups were listed; run the same command again")
