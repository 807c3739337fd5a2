"""Commit features: one Parquet file per chunk and checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from mi_core.checks import NumericError
from pipelines.extract.division.jobs import ShardJob
from pipelines.files import storage

OK = "ok"


def commit(
    job: ShardJob,
    chunk: int,
    keys: Sequence[str],
    status: Sequence[str],
    columns: Mapping[int, Mapping[str, np.ndarray]],
) -> None:
    """Write the features of a chunk, which are its feature files for good.

    Args:
        job, chunk: what was asked.
        keys, status: of its N samples.
        columns: by epoch and name, the values of the samples whose status is ``ok``.
    """
    rejected = [
        {"source": job.source, "shard": job.item.name, "key": key, "reason": state}
        for key, state in zip(keys, status, strict=True)
        if state != OK
    ]
    if rejected:
        storage.write_json(job.rejected_path(chunk), rejected)
    for epoch, values in columns.items():
        kept = {name: column for name, column in values.items() if name in job.query.columns}
        storage.write_table(job.path(epoch, chunk), sample_table(keys, status, kept, job.query.feature_precision))


def sample_table(
    keys: Sequence[str], status: Sequence[str], columns: Mapping[str, np.ndarray], precision: str
) -> pa.Table:
    """One row per sample, in order; rejected samples have a status and null measurements.

    Raises:
        NumericError: a number is beyond the precision.
    """
    rows = np.flatnonzero([state == OK for state in status])
    arrays: dict[str, pa.Array] = {
        "key": pa.array(keys, pa.string()),
        "status": pa.array(status, pa.string()),
    }
    take = np.full(len(keys), -1)
    take[rows] = np.arange(len(rows))
    indices = pa.array(take, mask=take < 0)
    for name, values in columns.items():
        with np.errstate(over="ignore"):
            numbers = np.ascontiguousarray(values, dtype=precision).reshape(-1)
        if not np.array_equal(np.isinf(numbers), np.isinf(values).reshape(-1)):
            raise NumericError(
                f"{name} has a value of {np.abs(values).max():.3g}, which float16 cannot hold; set "
                "queries.feature_precision: float32"
            )
        flat = pa.array(numbers)
        whole = flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, math.prod(values.shape[1:]))
        arrays[name] = whole.take(indices)
    return pa.table(arrays)
