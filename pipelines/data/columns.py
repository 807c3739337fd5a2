"""The columns of samples, and a compact form of those that repeat few texts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mi_core.hashing import digests64
from pipelines.errors import UserError

BATCH = 100_000  # samples whose texts are Python's at once
ATTRIBUTE = "attribute."  # before the name of an attribute: its column
GROUP = "group"  # the column of what samples belong to, where a config groups them
PHASH, DESCRIPTOR = "phash", "descriptor"  # columns of what finds near-copies, where a config looks for them


@dataclass(frozen=True)
class Coded:
    """A column of few distinct texts: the texts, and the code of each row."""

    values: list[str]
    codes: npt.NDArray[np.int32]

    @classmethod
    def from_column(cls, column: pa.ChunkedArray) -> Coded:
        """Code a column; texts are numbered in order of first appearance."""
        coded = column.combine_chunks().dictionary_encode()
        return cls(coded.dictionary.to_pylist(), np.asarray(coded.indices))

    def among(self, wanted: Collection[str]) -> npt.NDArray[np.bool_]:
        """Mark the texts that are wanted."""
        return np.array([value in wanted for value in self.values], dtype=bool)


def group_numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """A number for every row, a hash: equal groups have equal numbers, in whichever table they stand."""
    coded = column.combine_chunks().dictionary_encode()
    numbers = digests64(("group",), coded.dictionary.to_pylist()).view(np.int64)
    return np.asarray(numbers[np.asarray(coded.indices)], dtype=np.int64)


def pixel_ranks(seed: int, purpose: str, pixels: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    """The hash of (seed, purpose, pixels) of every sample: (N,). ``pixels``: their sha256, 32 bytes each."""
    return digests64((seed, purpose), (one.hex() for one in pixels.to_pylist()))


def joined(first: pa.ChunkedArray, second: pa.ChunkedArray) -> pa.ChunkedArray:
    """``first/second`` of every row, as large texts."""
    large = pa.large_string()
    return pc.binary_join_element_wise(first.cast(large), second.cast(large), pa.scalar("/", large))


def ids_of(table: pa.Table, rows: npt.NDArray[np.intp] | None = None) -> list[str]:
    """``source/key`` of some rows of a table of samples, or of all."""
    names = table.select(["source", "key"])
    some = names if rows is None else names.take(pa.array(rows))
    return [f"{source}/{key}" for source, key in zip(*(column.to_pylist() for column in some.columns), strict=True)]


def known_label(name: str, label: int | None) -> int:
    """A label. Raises UserError: there is none; the sample is named."""
    if label is None:
        raise UserError(f"{name} has no class, which attacks on classifiers need; give labelled data, or data.label")
    return label
