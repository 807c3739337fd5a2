"""Numbers that a scan keeps of some samples, so that no image is read again to look for differences of groups.

A shard keeps the samples with the lowest hashes of its source and key: as many as give a source some ten thousand. Of
each it keeps the numbers of its file and of its pixels, and its pixels shrunken. The samples of all shards below the
lowest hash that a shard left out are drawn uniformly from all samples.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mi_core.hashing import digest64
from mi_core.images import Pixels
from mi_core.validity.file_features import shrunken, summary
from pipelines.files import storage

OF_SOURCE, OF_SHARD = 40_000, 20  # samples of a source in all, and of a shard at least
_FIRST_LEFT = b"first_left"  # the lowest hash that was left out, in the file's metadata
_END = 2**64
_Seen = tuple[npt.NDArray[np.float64], npt.NDArray[np.float32]]  # numbers of the file and pixels, and pixels shrunken


def most_of_shard(shards: int) -> int:
    """How many samples each shard of a source keeps.

    Example:
        >>> most_of_shard(5), most_of_shard(40_000)
        (8000, 20)
    """
    return max(OF_SHARD, -(-OF_SOURCE // shards))


def glimpses_path(scanned: str) -> str:
    """The file beside that of a scanned shard."""
    return f"{scanned.removesuffix('.parquet')}.glimpses.parquet"


def glimpse(data: bytes, pixels: Pixels) -> _Seen:
    """The numbers of an image's file and pixels, and its pixels shrunken.

    Args:
        data: the encoded image.
        pixels: (C, S, S) as it is decoded.
    """
    return summary(data, pixels), shrunken(pixels)


@dataclass
class Keeping:
    """Keeps the samples with the lowest hashes of one shard.

    Args:
        source: its name.
        most: samples to keep.
    """

    source: str
    most: int
    _kept: list[tuple[int, str, npt.NDArray[np.float64], npt.NDArray[np.float32]]] = field(default_factory=list)
    _first_left: int = _END

    def see(self, key: str, data: bytes, pixels: Pixels) -> None:
        """Keep a sample, or leave it out.

        Args:
            key: of the sample.
            data: the encoded image.
            pixels: (C, S, S) as it is decoded.
        """
        rank = digest64("glimpse", self.source, key)
        highest = -self._kept[0][0] if len(self._kept) == self.most else _END
        if rank >= highest:
            self._first_left = min(self._first_left, rank)
            return
        entry = (-rank, key, *glimpse(data, pixels))
        if highest == _END:
            heapq.heappush(self._kept, entry)
        else:
            left, *_ = heapq.heapreplace(self._kept, entry)
            self._first_left = min(self._first_left, -left)

    def write(self, path: str) -> None:
        """Write what was kept, the lowest hash first."""
        kept = sorted(self._kept, key=lambda one: -one[0])
        columns = {
            "key": pa.array([key for _, key, *_ in kept], pa.string()),
            "rank": pa.array([-rank for rank, *_ in kept], pa.uint64()),
            "numbers": pa.array([numbers for *_, numbers, _ in kept], pa.list_(pa.float64())),
            "pixels": pa.array([pixels for *_, pixels in kept], pa.list_(pa.float32())),
        }
        table = pa.table(columns).replace_schema_metadata({_FIRST_LEFT: str(self._first_left).encode()})
        storage.write_table(path, table)


@dataclass(frozen=True)
class Glimpses:
    """The kept numbers of one shard.

    Args:
        table: key, rank, numbers and pixels.
        first_left: the lowest hash of a sample that was left out.
    """

    table: pa.Table
    first_left: int

    @classmethod
    def read(cls, path: str) -> Glimpses:
        """Read the result of `Keeping.write`."""
        table = storage.read_table(path)
        return cls(table, int(table.schema.metadata[_FIRST_LEFT]))

    @classmethod
    def nothing(cls) -> Glimpses:
        """Nothing was kept."""
        return cls(pa.table({"key": pa.array([], pa.string()), "rank": pa.array([], pa.uint64())}), 0)

    def keys(self, wanted: Iterable[str]) -> dict[str, int]:
        """The hash of those of some keys that were kept."""
        keys = set(wanted)
        pairs = zip(self.table["key"].to_pylist(), self.table["rank"].to_pylist(), strict=True)
        return {key: rank for key, rank in pairs if key in keys}

    def look_up(self, keys: Container[str]) -> Iterator[tuple[str, _Seen]]:
        """The kept numbers of some samples, by key."""
        for row, key in enumerate(self.table["key"].to_pylist()):
            if key in keys:
                numbers, pixels = (np.asarray(self.table[name][row].values) for name in ("numbers", "pixels"))
                yield key, (numbers, pixels)
