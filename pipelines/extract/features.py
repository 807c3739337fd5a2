"""Read committed features back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from mi_core.records import Features, FloatArray
from pipelines.config.demands import Asking, demands_of
from pipelines.config.run_config import RunConfig
from pipelines.data.splits import Splits
from pipelines.errors import UserError
from pipelines.extract.passes import FeatureFile, QueryPass, passes_of
from pipelines.files import many, storage
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
    """Load the committed features of some roles, in the order of the splits, without rejected samples.

    Args:
        config: of the run.
        folder: of a seed.
        asking: the encoder and how it was queried; the outputs in it are ignored.
        epoch: of the checkpoint.
        output: whose features are wanted.
        needs: membership features.
        roles: whose samples are wanted.

    Raises:
        UserError: features are missing (extraction has not finished).
    """
    splits = Splits.load(folder.path)
    ids = _asked_ids(splits, folder, asking, roles)
    row_of = {name: row for row, name in enumerate(ids)}
    values: dict[str, FloatArray] = {}
    measured = {need: np.zeros(len(ids), dtype=bool) for need in needs}
    rejected = np.zeros(len(ids), dtype=bool)
    for query in _passes(config, folder, asking.encoder):
        present = [need for need in needs if need in query.needs and _same(need, query, asking)]
        if not present or output not in query.asking.outputs:
            continue
        files = [
            file
            for file in query.files(folder)
            if not row_of.keys().isdisjoint(splits.named(file.source, file.shard, query.roles))
        ]
        for file, table in _tables(files, folder, asking.encoder, epoch):
            ok = np.array([status == "ok" for status in table["status"].to_pylist()])
            rows = np.array([row_of.get(f"{file.source}/{key}", -1) for key in table["key"].to_pylist()])
            rejected[rows[~ok & (rows >= 0)]] = True
            kept = rows[ok] >= 0
            for need in present if ok.any() else ():
                column = _matrix(table[f"{output}.{need}"])
                whole = values.setdefault(need, np.zeros((len(ids), *column.shape[1:]), dtype=column.dtype))
                whole[rows[ok][kept]] = column[kept]
                measured[need][rows[ok][kept]] = True
    lost = np.flatnonzero(~rejected & ~np.all([measured[need] for need in needs], axis=0))
    if len(lost):
        raise UserError(
            f"features of {asking.encoder} miss {len(lost)} samples, first {ids[lost[0]]}; run the extract stage"
        )
    return Features(np.array(ids, dtype=np.str_)[~rejected], {need: values[need][~rejected] for need in needs})


def _tables(
    files: Sequence[FeatureFile], folder: SeedFolder, encoder: str, epoch: int
) -> Iterator[tuple[FeatureFile, pa.Table]]:
    """The content of feature files, chunk by chunk; one whose samples were all rejected has no features.

    Raises:
        UserError: one is missing.
    """
    of_path = {path: file for file in files for path in file.paths(folder, encoder, epoch)}
    there = storage.existing(of_path)
    for path in of_path:
        if path not in there:
            raise UserError(f"{path} is missing; run the extract stage first")
    yield from zip(of_path.values(), many.streamed(storage.read_table, list(of_path)), strict=True)


def _asked_ids(splits: Splits, folder: SeedFolder, asking: Asking, roles: Sequence[str]) -> list[str]:
    """Ids of the samples that were queried, in the order of the splits."""
    ids = splits.ids(roles)
    if asking.count is not None:
        first = set(splits.first(roles, asking.count, folder.seed))
        ids = [name for name in ids if name in first]
    without = set(splits.ids(asking.without))
    return [name for name in ids if name not in without]


def _passes(config: RunConfig, folder: SeedFolder, encoder: str | None = None) -> Iterator[QueryPass]:
    """Passes recorded for the demands of a run, for all encoders or for one."""
    for demand in demands_of(config):
        if encoder in (None, demand.asking.encoder):
            yield from passes_of(demand, config, folder)


def _same(need: str, query: QueryPass, asking: Asking) -> bool:
    """Whether a pass computed a feature in the given way; the samples it left out do not matter here."""
    done = replace(query.asking, recipe=query.recipe).narrowed(need)
    return replace(done, without=()) == replace(asking.narrowed(need), without=())


def rejected_samples(config: RunConfig, folder: SeedFolder) -> list[dict[str, str]]:
    """Samples of one seed that could not be queried: source, shard, key and reason, each once."""
    paths = [
        file.rejected_path(folder, query.asking.encoder, query.epochs[0], chunk)
        for query in _passes(config, folder)
        for file in query.files(folder)
        for chunk in range(file.chunks)
    ]
    there = storage.existing(paths)
    entries = [entry for path in dict.fromkeys(paths) if path in there for entry in storage.read_json(path)]
    return list({tuple(entry.values()): entry for entry in entries}.values())


def _matrix(column: pa.ChunkedArray) -> np.ndarray:
    """Measurements of the samples that have them: (N,) or (N, width) float32."""
    present = column.drop_null().combine_chunks()
    if pa.types.is_fixed_size_list(column.type):
        return np.asarray(present.flatten()).reshape(len(present), column.type.list_size)
    return np.asarray(present)
