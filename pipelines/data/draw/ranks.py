"""The hashes of all samples of a seed, one file a shard: what thresholds and copies are found from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mi_core.hashing import PART, digests128
from pipelines.data.columns import GROUP, PHASH
from pipelines.data.draw.rules import Rules, labels_of
from pipelines.data.scan.scan import ScannedShard
from pipelines.files import storage


@dataclass(frozen=True)
class Numbered:
    """A shard, and its number in the order of the scan."""

    number: int
    shard: ScannedShard

    def ranks(self, folder: str) -> str:
        """Its file of hashes."""
        return f"{folder}/{self.number}.parquet"


def hashes_of_keys(keys: Iterable[str]) -> npt.NDArray[np.uint64]:
    """Hashes of N keys, of 128 bits, which chance makes equal once in 1e21 for two lists of 4e8 keys: (N, 2)."""
    return digests128(("key",), keys)


def rank(shards: Sequence[Numbered], rules: Rules, folder: str, parts: bool, near: bool, listed: bool) -> None:
    """Write the hashes of some shards.

    Columns: shard, row; role, a hash, and part, another, if ``parts``; label; high and low,
    the first 128 bits of the hash of the pixels; key_high and key_low, a hash of the key, if ``listed``;
    phash if ``near``.

    Args:
        shards: to read.
        rules: hold the seed.
        folder: of the files.
        parts: whether roles have parts.
        near: whether near-copies are looked for.
        listed: whether lists of keys give roles.
    """
    columns = ["label", "sha256", *([GROUP] if rules.grouped else []), *([PHASH] if near else [])]
    columns += ["key"] if listed or not rules.grouped else []
    for one in shards:
        samples = storage.read_table(one.shard.path, columns)
        # A hash of 32 bytes is four numbers; two of them tell images apart: 1e-22 for a chance pair among 4e8.
        pixels = samples["sha256"].combine_chunks().cast(pa.binary())
        words = np.frombuffer(b"".join(pixels.to_pylist()), dtype="<u8").reshape(-1, 4)
        hashes = {
            "shard": np.full(len(samples), one.number, np.uint32),
            "row": np.arange(len(samples), dtype=np.uint32),
            "role": rules.hashes(samples, one.shard.source, "role"),
            "label": labels_of(samples),
            "high": words[:, 0],
            "low": words[:, 1],
        }
        if parts:
            hashes[PART] = rules.hashes(samples, one.shard.source, PART)
        if listed:
            hashes["key_high"], hashes["key_low"] = hashes_of_keys(samples["key"].to_pylist()).T
        if near:
            hashes[PHASH] = np.asarray(samples[PHASH].combine_chunks())
        storage.write_table(one.ranks(folder), pa.table(hashes))
