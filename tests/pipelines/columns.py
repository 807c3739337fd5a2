"""Read committed columns back as an attack does, by words that a test has at hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mi_core.features import Measure
from mi_core.records import Features
from pipelines.config.run_config import RunConfig
from pipelines.data.plans import plan_of
from pipelines.extract.division.passes import recorded_passes
from pipelines.extract.features import read
from pipelines.files import storage
from pipelines.plan.items import Query, Reading, Samples, items_in
from pipelines.run.folder import RunFolder, SeedFolder


def seed_0(folder: Path) -> SeedFolder:
    """The folder of the first seed of a run."""
    return RunFolder(str(folder)).seed(0)


def feature_files(folder: Path, encoder: str) -> list[str]:
    """The files of features of an encoder, committed by any start of a run."""
    records = [record for record in recorded_passes(f"{folder}/features") if record.content["encoder"] == encoder]
    paths = [path for record in records for path in storage.list_files(record.folder)]
    return [path for path in paths if path.endswith(".parquet")]


def queries(
    config: RunConfig, place: SeedFolder, encoder: str, epoch: int, output: str, measures: Sequence[Measure | str]
) -> list[Query]:
    """The queries of a run with a checkpoint, an output and some measures, of all roles."""
    names = set(map(str, measures))
    return [
        query
        for query in items_in(plan_of(config, place).plan, Query)
        if (query.encoder.name, query.epoch, query.output) == (encoder, epoch, output) and query.measure.name in names
    ]


def columns(
    config: RunConfig,
    place: SeedFolder,
    encoder: str,
    epoch: int,
    output: str,
    measures: Sequence[Measure | str],
    roles: Sequence[str],
) -> Features:
    """The committed columns of some roles, each read in the role itself or in the one that it is a part of."""
    known = {role.name: role for role in plan_of(config, place).plan.roles}
    wanted = [known[name] for name in roles]
    held = {role.name for role in wanted} | {role.part_of for role in wanted}
    found = [
        query
        for query in queries(config, place, encoder, epoch, output, measures)
        if query.samples.roles[0].name in held and query.samples.count is None
    ]
    return read(place, Reading(tuple(found), Samples(tuple(wanted), place.seed)))
