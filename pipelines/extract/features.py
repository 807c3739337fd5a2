"""Read committed features back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mi_core.features import Measure
from mi_core.records import Features, FloatArray
from pipelines.config.demands import Asking, demands_of
from pipelines.config.run_config import RunConfig
from pipelines.data.columns import ids_of
from pipelines.data.draw.first import Firsts
from pipelines.data.draw.splits import Splits, having
from pipelines.errors import UserError
from pipelines.extract.passes import FeatureFile, QueryPass, passes_of
from pipelines.files import many, storage
from pipelines.run.folder import SeedFolder


class NothingAsked(UserError):
    """No sample of the given shards was asked for."""


def load_features(
    config: RunConfig,
    folder: SeedFolder,
    asking: Asking,
    epoch: int,
    output: str,
    needs: Sequence[Measure],
    roles: Sequence[str],
    among: Splits | None = None,
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
        among: splits of the seed, whole or of some shards alone; None: the whole.

    Raises:
        UserError: features are missing (extraction has not finished).
        NothingAsked: none of the samples of ``among`` was asked for.
    """
    whole = Splits.load(folder.path)
    splits = whole if among is None else among
    first = None if asking.count is None else Firsts.of(whole, roles, asking.count, folder.seed)
    reader = _Reader(folder, asking, epoch, output, needs, list(_sources_of(config, folder, asking, output, needs)))
    parts = []
    for source, item in splits.sums.shards:
        if not splits.size(source, item, roles, asking.without):
            continue
        rows = splits.shard(source, item)
        wanted = having(rows, roles) & ~having(rows, asking.without)
        if first is not None:
            wanted &= first.among(rows)
        if wanted.any():
            parts.append(reader.read(source, item, rows["key"].filter(pa.array(wanted))))
    parts = [part for part in parts if len(part.keys)]
    if not parts:
        raise (UserError if among is None else NothingAsked)(f"no sample of {', '.join(roles)} was queried")
    return _in_order(parts)


class _Part(NamedTuple):
    """Features of some samples of one source."""

    source: str
    keys: pa.ChunkedArray
    values: dict[str, FloatArray]


class _File(NamedTuple):
    """Where the features of one shard from one pass stand, and which of them are wanted."""

    file: FeatureFile
    needs: list[Measure]


def _sources_of(
    config: RunConfig, folder: SeedFolder, asking: Asking, output: str, needs: Sequence[Measure]
) -> Iterator[_File]:
    """The files of the passes that computed some features."""
    for query in _passes(config, folder, asking.encoder):
        present = [need for need in needs if need in query.needs and _same(need, query, asking)]
        if present and output in query.asking.outputs:
            for file in query.files(folder):
                yield _File(file, present)


class _Reader:
    """Reads the features of one shard after the other."""

    def __init__(
        self,
        folder: SeedFolder,
        asking: Asking,
        epoch: int,
        output: str,
        needs: Sequence[Measure],
        files: Sequence[_File],
    ) -> None:
        self.folder, self.asking, self.epoch, self.output, self.needs = folder, asking, epoch, output, needs
        self.files: dict[tuple[str, str], list[_File]] = {}
        for one in files:
            self.files.setdefault((one.file.source, one.file.shard), []).append(one)

    def read(self, source: str, item: str, keys: pa.ChunkedArray) -> _Part:
        """The features of some samples of a shard, without rejected ones.

        Raises:
            UserError: some are missing.
        """
        values: dict[str, FloatArray] = {}
        measured = {need.name: np.zeros(len(keys), dtype=bool) for need in self.needs}
        rejected = np.zeros(len(keys), dtype=bool)
        for present, table in self._tables(source, item):
            place = pc.index_in(table["key"].cast(keys.type), value_set=keys.combine_chunks())
            rows = np.asarray(pc.fill_null(place, -1))
            ok = np.asarray(pc.equal(table["status"], "ok"))
            rejected[rows[~ok & (rows >= 0)]] = True
            rows = rows[ok]
            kept = rows >= 0
            for need in present if len(rows) else ():  # a file whose samples were all rejected has no features
                column = matrix(table[f"{self.output}.{need}"])
                whole = values.setdefault(need.name, np.zeros((len(keys), *column.shape[1:]), dtype=column.dtype))
                whole[rows[kept]] = column[kept]
                measured[need.name][rows[kept]] = True
        lost = np.flatnonzero(~rejected & ~np.all(list(measured.values()), axis=0))
        if len(lost):
            raise UserError(
                f"features of {self.asking.encoder} miss {len(lost)} samples of {source}, shard {item}, first "
                f"{source}/{keys[int(lost[0])]}; run the extract stage"
            )
        return _Part(
            source, keys.filter(pa.array(~rejected)), {need: array[~rejected] for need, array in values.items()}
        )

    def _tables(self, source: str, item: str) -> Iterator[tuple[list[Measure], pa.Table]]:
        """What is wanted of each file of a shard, and its content."""
        wanted = {
            path: needs
            for file, needs in self.files.get((source, item), [])
            for path in file.paths(self.folder, self.asking.encoder, self.epoch)
        }
        yield from zip(wanted.values(), many.streamed(_read, list(wanted)), strict=True)


def _read(path: str) -> pa.Table:
    try:
        return storage.read_table(path)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; run the extract stage first") from error


def _in_order(parts: Sequence[_Part]) -> Features:
    """The features of all parts, sorted by source and key."""
    names = pa.chunked_array([pa.array([part.source] * len(part.keys), pa.string()) for part in parts])
    keys = pa.chunked_array([chunk for part in parts for chunk in part.keys.cast(pa.large_string()).chunks])
    ids = pa.table({"source": names, "key": keys})
    order = np.asarray(pc.sort_indices(ids, [("source", "ascending"), ("key", "ascending")]))
    ids = ids.take(pa.array(order))
    needs = parts[0].values
    return Features(
        np.array(ids_of(ids), dtype=np.str_),
        {need: np.concatenate([part.values[need] for part in parts])[order] for need in needs},
    )


def _passes(config: RunConfig, folder: SeedFolder, encoder: str | None = None) -> Iterator[QueryPass]:
    """Passes recorded for the demands of a run, for all encoders or for one."""
    for demand in demands_of(config, encoder):
        yield from passes_of(demand, config, folder)


def _same(need: Measure, query: QueryPass, asking: Asking) -> bool:
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


def matrix(column: pa.ChunkedArray) -> np.ndarray:
    """Measurements of the samples that have them: (N,) or (N, width) float32."""
    present = column.drop_null().combine_chunks()
    if pa.types.is_fixed_size_list(column.type):
        return np.asarray(present.flatten(), dtype=np.float32).reshape(len(present), column.type.list_size)
    return np.asarray(present, dtype=np.float32)
