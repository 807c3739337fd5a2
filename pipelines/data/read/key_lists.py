"""Lists of keys that say which samples a role holds: text, CSV, Parquet, or DataComp's subsets.

A list is read in parts of `BATCH` keys. Where roles are drawn, a key takes 32 bytes: a hash of 128 bits, its place in
the list and how often it is there. They stand in a database that takes 2 GiB of memory at most; the rest goes to a
disk. A list of 400 million keys takes about 13 GB of that disk.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.config.paths import shortened
from pipelines.console import count_of
from pipelines.data.read.parquet_columns import KEYS, key_column
from pipelines.errors import UserError
from pipelines.files import storage

BATCH = 100_000  # keys at once
SHOWN = 3  # keys named in a message
_GIVE = {True: "set key_column", False: "give --column"}  # of roles, and of others
_UID = np.dtype([("f0", "<u8"), ("f1", "<u8")])  # of DataComp: the halves of a hash of 128 bits


@dataclass(frozen=True)
class ListedKeys:
    """How the list of a role fits its source.

    Args:
        path: of the list.
        keys: distinct keys in it.
        twice: keys that stand in it more than once.
        missing: keys that no usable sample has.
        first: some of the missing ones.
    """

    path: str
    keys: int
    twice: int
    missing: int
    first: tuple[str, ...] = ()

    def line(self, role: str) -> str:
        """The faults of the list in a line; empty if there are none."""
        wrong = []
        if self.missing:
            wrong.append(
                f"{self.missing:,} of {count_of(self.keys, 'key', 'keys')} belong to no usable sample, "
                f"such as {', '.join(map(shortened, self.first))}"
            )
        if self.twice:
            wrong.append(f"{count_of(self.twice, 'key stands', 'keys stand')} there more than once")
        return f"the list of {role}, {self.path}: {'; '.join(wrong)}" if wrong else ""


def keys_in(path: str, column: str | None = None, usual: tuple[str, ...] = KEYS) -> Iterator[list[str]]:
    """The keys of a list in order, in parts; empty ones are left out.

    Args:
        path: ``.txt`` (one key a line), ``.csv`` with a header, ``.parquet``, or ``.npy`` of pairs of 64-bit numbers,
            which are DataComp's uids. Text and CSV may be packed, such as ``.txt.gz``.
        column: of a CSV or Parquet file; None: the first of the usual ones.
        usual: names of columns.

    Raises:
        UserError: the file cannot be read, is of another kind, or lacks the column.
    """
    ending = path.removesuffix(".gz").removesuffix(".zst").rpartition(".")[2]
    if ending not in _READERS:
        raise UserError(f"{path} is no list of keys; give one of {', '.join(f'.{name}' for name in _READERS)}")
    keys = filter(None, _READERS[ending](path, column, usual))
    try:
        while part := list(islice(keys, BATCH)):
            if any("\0" in key for key in part):
                raise ValueError("a key has a zero byte: the text is UTF-16 or no text; save it as UTF-8")
            yield part
    except UserError:
        raise
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} cannot be read as a list of keys: it is not UTF-8 ({error.reason}); save it so"
        ) from error
    except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read as a list of keys: {' '.join(str(error).split())}") from error


def texts_at(path: str, column: str | None, places: Iterable[int]) -> list[str]:
    """The keys at some places of a list, ascending; it is read as far as needed."""
    wanted, found, start = sorted(places), [], 0
    for part in keys_in(path, column):
        found += [part[place - start] for place in wanted if start <= place < start + len(part)]
        start += len(part)
        if len(found) == len(wanted):
            break
    return found


def _lines(path: str, _column: str | None, _usual: tuple[str, ...]) -> Iterator[str]:
    with storage.open_input(path) as stream:
        yield from (line.strip() for line in io.TextIOWrapper(stream, "utf-8-sig"))


def _rows(path: str, column: str | None, usual: tuple[str, ...]) -> Iterator[str]:
    with storage.open_input(path) as stream:
        rows = csv.reader(io.TextIOWrapper(stream, "utf-8-sig", newline=""))
        header = next(rows, [])
        names = usual if column is None else (column,)
        place = next((header.index(name) for name in names if name in header), None)
        if place is None:
            raise UserError(
                f"{path} has no column {' or '.join(names)}, but {shortened(', '.join(header))}: {_GIVE[usual is KEYS]}"
            )
        if header.count(header[place]) > 1:
            raise UserError(f"{path} has the column {header[place]} twice; rename one of them")
        for row in rows:
            if row and len(row) <= place:
                raise UserError(f"{path}, line {rows.line_num} has no column {header[place]}")
            yield row[place].strip() if row else ""


def _cells(path: str, column: str | None, usual: tuple[str, ...]) -> Iterator[str]:
    with storage.open_seekable(path) as stream:
        file = pq.ParquetFile(stream, pre_buffer=False, buffer_size=2**20)
        try:
            name = key_column(file.schema_arrow, column, usual)
        except ValueError as error:
            raise UserError(f"{path}: {error}") from error
        if name is None:
            names = shortened(", ".join(file.schema_arrow.names))
            raise UserError(f"{path} has no column {' or '.join(usual)}, but {names}: {_GIVE[usual is KEYS]}")
        for batch in file.iter_batches(BATCH, columns=[name], use_threads=False):
            for value in batch.column(0).to_pylist():
                yield "" if value is None else str(value)


def _uids(path: str, _column: str | None, _usual: tuple[str, ...]) -> Iterator[str]:
    with storage.open_input(path) as stream:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = header(stream)
        if len(shape) != 1 or kind.newbyteorder("<") != _UID:
            raise UserError(f"{path} holds {kind} of shape {shape}; DataComp's lists are one row of pairs 'u8,u8'")
        left = shape[0]
        if left < 0:
            raise ValueError(f"its shape is {shape}")
        while left:
            count = min(left, BATCH)
            data = stream.read(count * _UID.itemsize)
            if len(data) < count * _UID.itemsize:
                raise ValueError("it is cut short")
            pairs = np.frombuffer(data, kind)
            digits = np.stack([pairs["f0"], pairs["f1"]], axis=1).astype(">u8").tobytes().hex()
            yield from (digits[start : start + 32] for start in range(0, len(digits), 32))
            left -= count


_READERS = {"txt": _lines, "csv": _rows, "parquet": _cells, "npy": _uids}


def size_of(path: str, column: str | None) -> int:
    """Number of keys in a list. Raises UserError as `keys_in`."""
    return sum(map(len, keys_in(path, column)))
