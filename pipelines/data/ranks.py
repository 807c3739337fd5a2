"""The hashes of all samples of a seed, one file a shard: what thresholds and copies are found from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.data.columns import GROUP, PHASH
from pipelines.data.rules import Rules, labels_of
from pipelines.data.scan import ScannedShard
from pipelines.files import storage


@dataclass(frozen=True)
class Numbered:
    """A shard, and its number in the order of the scan."""

    number: int
    shard: ScannedShard

    def ranks(self, folder: str) -> str:
        """Its file of hashes."""
        return f"{folder}/{self.number}.parquet"


def rank(shards: Sequence[Numbered], rules: Rules, folder: str, parts: bool, near: bool) -> None:
    """Write the hashes of some shards.

    Columns: shard, row; role, a hash, and part, another, if ``parts``; label; high and low,
    the first 128 bits of the hash of the pixels; phash if ``near``.

    Args:
        shards: to read.
        rules: hold the seed.
        folder: of the files.
        parts: whether roles have parts.
        near: whether near-copies are looked for.
    """
    columns = [GROUP if rules.grouped else "key", "label", "sha256", *([PHASH] if near else [])]
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
            hashes["part"] = rules.hashes(samples, one.shard.source, "part")
        if near:
            hashes[PHASH] = np.asarray(samples[PHASH].combine_chunks())
        storage.write_table(one.ranks(folder), pa.table(hashes))
