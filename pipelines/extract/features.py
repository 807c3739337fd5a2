"""Read committed features back: a query is opened by its key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mi_core.features import Measure
from mi_core.records import Features, FloatArray, among
from pipelines.data.columns import ids_of, known_label
from pipelines.data.draw.parts import Firsts
from pipelines.data.draw.splits import Splits, in_roles
from pipelines.errors import UserError
from pipelines.extract.division.passes import Recorded, column_of, recorded_passes
from pipelines.files import many, storage
from pipelines.plan.items import Plan, Query, Reading, items_in
from pipelines.run.folder import SeedFolder


class NothingAsked(UserError):
    """No sample of the given shards was asked for."""


def read(folder: SeedFolder, reading: Reading, among_shards: Splits | None = None) -> Features:
    """Read the features of one checkpoint and some samples, in the order of the splits, without rejected samples.

    Args:
        folder: of the seed.
        reading: with its anchors, its population, the classes and the earlier version, where it has them.
        among_shards: splits of some shards alone; None: the whole.

    Raises:
        UserError: features are missing (extraction has not finished).
        NothingAsked: none of the samples of ``among_shards`` was asked for.
    """
    whole = Splits.load(folder.path)
    features = _measured(folder, reading, among_shards or whole, whole)
    population = None if reading.population is None else _measured(folder, reading.population, whole, whole)
    anchors = None
    if reading.anchors:
        further = Reading(reading.anchors, reading.anchors[0].samples)
        (anchors,) = _measured(folder, further, whole, whole).values.values()
    labels = None
    if reading.labelled:
        known = (among_shards or whole).labels()
        labels = np.array([known_label(name, known[name]) for name in features.ids], dtype=np.int64)
    before = None
    if reading.before is not None:
        before = _measured(folder, reading.before, among_shards or whole, whole).at(features.ids.tolist())
    return Features(features.ids, features.values, anchors, labels, population, before)


def _measured(folder: SeedFolder, reading: Reading, splits: Splits, whole: Splits) -> Features:
    """The columns of a reading, of the views that count."""
    samples, names = reading.samples, [role.name for role in reading.samples.roles]
    without = [role.name for role in samples.without]
    first = None if samples.count is None else Firsts.from_splits(whole, names, samples.count, samples.seed)
    reader = _Reader(folder, reading.queries)
    parts = []
    for source, item in splits.sums.shards:
        if not splits.size(source, item, names, without):
            continue
        rows = splits.shard(source, item)
        wanted = in_roles(rows, names) & ~in_roles(rows, without)
        if first is not None:
            wanted &= first.among(rows)
        if wanted.any():
            parts.append(reader.read(source, item, rows["key"].filter(pa.array(wanted))))
    parts = [part for part in parts if len(part.keys)]
    if not parts:
        raise (UserError if splits is whole else NothingAsked)(f"no sample of {', '.join(names)} was queried")
    named = pa.chunked_array([pa.array([part.source] * len(part.keys), pa.string()) for part in parts])
    keys = pa.chunked_array([chunk for part in parts for chunk in part.keys.cast(pa.large_string()).chunks])
    ids = pa.table({"source": named, "key": keys})
    order = np.asarray(pc.sort_indices(ids, [("source", "ascending"), ("key", "ascending")]))
    measures = {query.measure.name: query.measure for query in reading.queries}
    values = {name: np.concatenate([part.values[name] for part in parts])[order] for name in parts[0].values}
    if reading.drawn:
        values = {name: measures[name].first_views(values[name], reading.drawn, reading.used) for name in values}
    features = Features(np.array(ids_of(ids.take(pa.array(order))), dtype=np.str_), values)
    if samples.fold == "all":
        return features
    return features.take(among(features.ids, whole.fold(names, samples.fold, samples.seed)))


class _Part(NamedTuple):
    """Features of some samples of one source."""

    source: str
    keys: pa.ChunkedArray
    values: dict[str, FloatArray]


class _Reader:
    """Reads the columns of some queries of one checkpoint, one shard after the other."""

    def __init__(self, folder: SeedFolder, queries: Sequence[Query]) -> None:
        self.encoder, self.epoch = queries[0].encoder.name, queries[0].epoch
        self.measures = list(dict.fromkeys(query.measure for query in queries))
        self.files: dict[tuple[str, str], dict[str, dict[str, Measure]]] = {}
        for record, mine in found_in(recorded_passes(folder.store, [folder.trial]), queries):
            columns = {column_of(query): query.measure for query in mine}
            for file in record.files:
                paths = self.files.setdefault((file.source, file.shard), {})
                for path in file.paths(record.folder, self.epoch):
                    paths.setdefault(path, {}).update(columns)

    def read(self, source: str, item: str, keys: pa.ChunkedArray) -> _Part:
        """The features of some samples of a shard, without rejected ones.

        Raises:
            UserError: some are missing.
        """
        values: dict[str, FloatArray] = {}
        measured = {measure: np.zeros(len(keys), dtype=bool) for measure in self.measures}
        rejected = np.zeros(len(keys), dtype=bool)
        wanted = self.files.get((source, item), {})
        for columns, table in zip(wanted.values(), many.streamed(_read, list(wanted)), strict=True):
            place = pc.index_in(table["key"].cast(keys.type), value_set=keys.combine_chunks())
            rows = np.asarray(pc.fill_null(place, -1))
            ok = np.asarray(pc.equal(table["status"], "ok"))
            rejected[rows[~ok & (rows >= 0)]] = True
            rows = rows[ok]
            kept = rows >= 0
            for name, measure in columns.items() if len(rows) else ():  # a file of rejected samples has no features
                column = matrix(table[name])
                whole = values.setdefault(measure.name, np.zeros((len(keys), *column.shape[1:]), dtype=column.dtype))
                whole[rows[kept]] = column[kept]
                measured[measure][rows[kept]] = True
        lost = np.flatnonzero(~rejected & ~np.all(list(measured.values()), axis=0))
        if len(lost):
            raise UserError(
                f"features of {self.encoder} miss {len(lost)} samples of {source}, shard {item}, first "
                f"{source}/{keys[int(lost[0])]}; run the extract stage"
            )
        return _Part(
            source, keys.filter(pa.array(~rejected)), {name: array[~rejected] for name, array in values.items()}
        )


def found_in(recorded: Sequence[Recorded], queries: Iterable[Query]) -> list[tuple[Recorded, list[Query]]]:
    """The passes that have some queries, each with those that it has.

    Raises:
        UserError: none has one of them.
    """
    by_key = {key: record for record in recorded for key in record.keys if record.finished}
    found: dict[str, tuple[Recorded, list[Query]]] = {}
    for query in queries:
        record = by_key.get(query.key)
        if record is None:
            roles = ", ".join(role.name for role in query.samples.roles)
            raise UserError(
                f"features of {query.encoder.name} at epoch {query.epoch} are missing ({column_of(query)} of {roles}); "
                "run the extract stage first"
            )
        found.setdefault(record.folder, (record, []))[1].append(query)
    return list(found.values())


def _read(path: str) -> pa.Table:
    try:
        return storage.read_table(path)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; run the extract stage first") from error


def rejected_samples(plan: Plan, folder: SeedFolder) -> list[dict[str, str]]:
    """Samples of one seed that could not be queried: source, shard, key and reason, each once."""
    paths = [
        file.rejected_path(record.folder, record.content["epochs"][0], chunk)
        for record, _ in found_in(recorded_passes(folder.store, [folder.trial]), items_in(plan, Query))
        for file in record.files
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
