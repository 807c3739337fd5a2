"""Code text columns as numbers, so that roles are drawn without a Python object per sample."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BATCH = 100_000  # samples whose texts are Python's at once


@dataclass(frozen=True)
class Coded:
    """A column of few distinct texts: the texts, and the code of each row."""

    values: list[str]
    codes: npt.NDArray[np.int32]

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> Coded:
        """Code a column; texts are numbered in order of first appearance."""
        coded = column.combine_chunks().dictionary_encode()
        return cls(coded.dictionary.to_pylist(), np.asarray(coded.indices))

    def among(self, wanted: Collection[str]) -> npt.NDArray[np.bool_]:
        """Which of the texts are wanted."""
        return np.array([value in wanted for value in self.values], dtype=bool)


def codes_of(column: pa.ChunkedArray) -> npt.NDArray[np.int32]:
    """One code per row; equal texts have equal codes."""
    return np.asarray(column.combine_chunks().dictionary_encode().indices)


def hex_of(column: pa.ChunkedArray) -> list[str]:
    """Hashes as hexadecimal text; run folders of earlier versions hold text already."""
    return [value.hex() if isinstance(value, bytes) else value for value in column.to_pylist()]


def ids_of(table: pa.Table, rows: npt.NDArray[np.intp] | None = None) -> list[str]:
    """``source/key`` of some rows of a table of samples, or of all."""
    names = table.select(["source", "key"])
    some = names if rows is None else names.take(pa.array(rows))
    return [f"{source}/{key}" for source, key in zip(*(column.to_pylist() for column in some.columns), strict=True)]
