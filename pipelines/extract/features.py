"""Read committed features back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from mi_core.records import Features
from pipelines.config.demands import Asking, demands_of
from pipelines.config.run_config import RunConfig
from pipelines.data.splits import Splits
from pipelines.errors import UserError
from pipelines.extract.jobs import listed, shard_jobs
from pipelines.extract.passes import QueryPass
from pipelines.files import storage
from pipelines.run.folder import SeedFolder


def load_features(
    config: RunConfig,
    folder: SeedFolder,
    asking: Asking,
    epoch: int,
    output: str,
    needs: Sequence[str],
    roles: Sequence[str],
) -> Features:
    """Committed features of some roles, in the order of the splits; rejected samples are left out and counted.

    Args:
        config: of the run.
        folder: of a seed.
        asking: which encoder was asked, and how; its outputs do not matter.
        epoch: of the checkpoint.
        output: whose features are wanted.
        needs: membership features.
        roles: whose samples are wanted.

    Raises:
        UserError: features are missing (extraction has not finished).
    """
    splits = Splits.load(folder.path)
    wanted = splits.ids(roles)
    if asking.count is not None:
        chosen = set(splits.first(roles, asking.count, folder.seed))
        wanted = [name for name in wanted if name in chosen]
    left_out = set(splits.ids(asking.without))
    wanted = [name for name in wanted if name not in left_out]
    asked = set(wanted)
    columns: dict[str, dict[str, Any]] = {need: {} for need in needs}
    rejected: set[str] = set()
    asked_of = [
        demand
        for demand in demands_of(config)
        if demand.asking.encoder == asking.encoder and output in demand.asking.outputs
    ]
    for job in (job for demand in asked_of for job in shard_jobs(demand, config, folder)):
        present = [need for need in needs if need in job.query.needs and _same(need, job.query, asking)]
        if not present or asked.isdisjoint(f"{job.source}/{key}" for key in job.wanted):
            continue
        path = job.path(epoch)
        if not storage.exists(path):
            raise UserError(f"{path} is missing; run the extract stage first")
        table = storage.read_table(path)
        ids = [f"{job.source}/{key}" for key in table["key"].to_pylist()]
        good = [name for name, status in zip(ids, table["status"].to_pylist(), strict=True) if status == "ok"]
        rejected |= set(ids) - set(good)
        for need in present:
            columns[need].update(zip(good, _matrix(table[f"{output}.{need}"]), strict=True))
    kept = [name for name in wanted if name not in rejected]
    lost = [name for need in needs for name in kept if name not in columns[need]]
    if lost:
        raise UserError(
            f"features of {asking.encoder} miss {len(lost)} samples, first {lost[0]}; run the extract stage"
        )
    return Features(
        np.array(kept, dtype=np.str_),
        {need: np.stack([rows[name] for name in kept]) for need, rows in columns.items()},
    )


def _same(need: str, query: QueryPass, asking: Asking) -> bool:
    """Whether a pass has asked for a feature in the way that is wanted; who is left out, the samples tell."""
    done = replace(query.asking, recipe=query.recipe).narrowed(need)
    return replace(done, without=()) == replace(asking.narrowed(need), without=())


def rejected_samples(config: RunConfig, folder: SeedFolder) -> list[dict[str, str]]:
    """Samples of one seed that could not be queried: source, shard, key and reason, each once."""
    paths = [job.rejected_path for demand in demands_of(config) for job in shard_jobs(demand, config, folder)]
    there = listed(paths)
    entries = [entry for path in dict.fromkeys(paths) if path in there for entry in storage.read_json(path)]
    return list({tuple(entry.values()): entry for entry in entries}.values())


def _matrix(column: pa.ChunkedArray) -> np.ndarray:
    """Measurements of the samples that have them: (N,) or (N, width) float32."""
    present = column.drop_null().combine_chunks()
    if pa.types.is_fixed_size_list(column.type):
        return np.asarray(present.flatten()).reshape(len(present), column.type.list_size)
    return np.asarray(present)
