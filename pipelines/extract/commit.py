"""Commit features: one Parquet file per chunk, later one per shard, and copies for runs that share them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.extract.jobs import ShardJob
from pipelines.files import storage


@dataclass(frozen=True)
class Compaction:
    """The files of one finished shard.

    Args:
        source, shard: where its samples came from.
        files: (file to write, its chunk files) for each checkpoint.
        rejected: file to write if samples were rejected, with their source, shard, key and reason.
        wanted: the keys that must be present, sorted.
    """

    source: str
    shard: str
    files: tuple[tuple[str, tuple[str, ...]], ...]
    rejected: str
    wanted: tuple[str, ...]


def compaction_of(job: ShardJob) -> Compaction:
    """The files of the shard of a job."""
    numbers = range(job.chunks)
    files = tuple((job.path(epoch), tuple(job.path(epoch, chunk) for chunk in numbers)) for epoch in job.query.epochs)
    return Compaction(job.source, job.item.name, files, job.rejected_path, job.wanted)


def compact(work: Sequence[Compaction]) -> None:
    """Join the chunk files of finished shards into one per checkpoint, then delete them.

    Raises:
        RuntimeError: the chunks do not hold exactly the wanted samples.
    """
    for shard in work:
        for target, chunks in shard.files:
            table = pa.concat_tables([storage.read_table(path) for path in chunks], promote_options="default")
            if sorted(table["key"].to_pylist()) != list(shard.wanted):
                raise RuntimeError(f"{target}: its chunks do not hold the {len(shard.wanted)} samples asked for")
            rejected = [
                {"source": shard.source, "shard": shard.shard, "key": key, "reason": status}
                for key, status in zip(table["key"].to_pylist(), table["status"].to_pylist(), strict=True)
                if status != "ok"
            ]
            if rejected:
                storage.write_json(shard.rejected, rejected)
            storage.write_table(target, table)
        for path in (chunk for _, chunks in shard.files for chunk in chunks):
            storage.remove(path)


def share_features(done: ShardJob, job: ShardJob) -> None:
    """Copy the features of a shard to another run that needs the same ones."""
    pairs = [(done.path(epoch), job.path(epoch)) for epoch in job.query.epochs]
    for source, target in [(done.rejected_path, job.rejected_path), *pairs]:
        if source != target and storage.exists(source) and not storage.exists(target):
            storage.copy(source, target)


def sample_table(keys: list[str], status: list[str], columns: dict[str, np.ndarray]) -> pa.Table:
    """One row per sample, in order; rejected samples have a status and null measurements."""
    rows = np.flatnonzero([state == "ok" for state in status])
    arrays: dict[str, pa.Array] = {
        "key": pa.array(keys, pa.string()),
        "status": pa.array(status, pa.string()),
    }
    take = np.full(len(keys), -1)
    take[rows] = np.arange(len(rows))
    indices = pa.array(take, mask=take < 0)
    for name, values in columns.items():
        flat = pa.array(np.ascontiguousarray(values, dtype=np.float32).reshape(-1), pa.float32())
        whole = flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, math.prod(values.shape[1:]))
        arrays[name] = whole.take(indices)
    return pa.table(arrays)
