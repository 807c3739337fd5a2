"""An outline of some runs: run folders that hold what planning reads and nothing that costs.

For every set of samples that is drawn together one row stands in, in the splits, with a key that two runs share if they
draw the same samples; encoders are described but not trained. So the stages' own code plans on an outline what it would
plan on the run itself: which encoders are trained, which queries are asked, each once however many runs read them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from mi_core.costs import Quantity, total
from mi_core.encoders.checkpoint import weights_bytes
from mi_core.objectives import OBJECTIVES
from mi_core.training.loop import audited_encoder
from pipelines.config.checks import check_outputs
from pipelines.config.data import DataConfig, Role
from pipelines.config.encoders import DefendedConfig, EndpointConfig, TrainedConfig
from pipelines.data.scan import ATTRIBUTE
from pipelines.data.sources import Source
from pipelines.data.splits import Splits
from pipelines.encoders import preprocessing
from pipelines.encoders.adopt import REPEATED, Adoption, adopt_untried, adoptions
from pipelines.encoders.probes import PROBED
from pipelines.encoders.record import EncoderRecord
from pipelines.encoders.stored import describe, weights_path, write_record
from pipelines.extract import run as extract
from pipelines.extract.jobs import ShardJob
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.pretrain import run as pretrain
from pipelines.pretrain.worker import TrainingJob
from pipelines.run.folder import RunFolder, SeedFolder
from pipelines.run.points import Run

RoleSizes = Mapping[str, Quantity]
"""Images of every role and part of a seed."""


@dataclass(frozen=True)
class Pass:
    """What one encoder is asked for the images of one source in one go, however many runs read the answers."""

    job: ShardJob
    images: Quantity

    @property
    def queries(self) -> Quantity:
        """Over all its checkpoints."""
        return self.images * self.job.query.queries_per_image


@dataclass(frozen=True)
class Training:
    """One encoder to train."""

    job: TrainingJob
    images: Quantity


@dataclass(frozen=True)
class Outline:
    """What some runs do, each thing once.

    Args:
        passes: over images, to query an encoder.
        stored: the same for what every run keeps: each has a copy of features that it shares.
        trainings: of encoders.
        probes: encoder and queries of every first look at one from elsewhere.
    """

    passes: tuple[Pass, ...]
    stored: tuple[Pass, ...]
    trainings: tuple[Training, ...]
    probes: tuple[tuple[str, Quantity], ...]


def outline(runs: Sequence[Run], folder: str, sizes: Mapping[SeedFolder, RoleSizes]) -> Outline:
    """Plan some runs in a folder of its own.

    Args:
        runs: a run and the points of its sweeps.
        folder: where the outline is written.
        sizes: images of the roles of every seed of every run.

    Raises:
        UserError, ConfigError: weights from elsewhere cannot be read, or lack an output that is asked for.
    """
    root = runs[0][1].path
    places = [Run(config, RunFolder(folder + of_run.path.removeprefix(root))) for config, of_run in runs]
    counts: dict[SeedFolder, RoleSizes] = {}
    for (config, of_run), (_, place) in zip(runs, places, strict=True):
        for seed in config.seeds:
            counts[place.seed(seed)] = sizes[of_run.seed(seed)]
            _stand_ins(config.data).save(place.seed(seed).path)
    adopted: dict[str, str] = {}
    trainings: dict[str, TrainingJob] = {}
    probes = {}
    for config, place in places:
        for adoption in adoptions(config, place):
            images = total(counts[adoption.folder][role] for role in adoption.roles).at_most(PROBED)
            path = adoption.folder.encoder(adoption.name)
            origin = adopted.setdefault(adoption.inputs, path)
            if isinstance(adoption.config, EndpointConfig):
                _stand_in(adoption, adoption.config)
            elif origin == path:
                adopt_untried(adoption, adoption.config, round(images.value))
            else:
                there = EncoderRecord.from_json(storage.read_json(f"{origin}/encoder.json"))
                write_record(adoption.folder, replace(there, origin=origin))
            check_outputs(config, adoption.name, describe(adoption.folder, adoption.name).record.outputs)
            if isinstance(adoption.config, EndpointConfig):
                again = REPEATED
            else:
                again = preprocessing.compared(adoption.config, adoption.data)
            twice = total(counts[adoption.folder][role] for role in adoption.roles).at_most(again) * 2
            probes[adoption.inputs] = (adoption.name, total([images * 2, twice]))
        for job in pretrain.training_jobs(config, place):
            _describe(job)
            if not isinstance(job.config, DefendedConfig):
                trainings[job.inputs] = job
    jobs, first = extract.plan(places)
    return Outline(
        tuple(Pass(job, _images(job, counts[job.folder])) for job in first.values()),
        tuple(Pass(job, _images(job, counts[job.folder])) for job in jobs),
        tuple(Training(job, _members(job, counts[job.folder])) for job in trainings.values()),
        tuple(probes.values()),
    )


def lay_weights(job: ShardJob) -> None:
    """Give the encoder of a job, and the one that it crafts images on, the weights they are timed with."""
    for name in (job.encoder, job.query.asking.crafter):
        if name is None:
            continue
        place = job.folder.encoder(name)
        record = describe(job.folder, name).record
        config = record.settings
        if not isinstance(config, TrainedConfig):
            if record.origin:
                storage.copy(weights_path(record.origin, 0), weights_path(place, 0))
            continue
        encoder = audited_encoder(config.pretraining(), record.channels, record.image_size)
        for epoch in {job.query.epochs[-1], config.kept_epochs[-1]}:
            storage.write_atomic(weights_path(place, epoch), weights_bytes(encoder))


def _describe(job: TrainingJob) -> None:
    """An encoder as it will be described, its fingerprints a function of what it will be trained from.

    One with a defense is described, and timed, as the one that it defends.
    """
    plain = {name: getattr(job.config, name) for name in TrainedConfig.model_fields}
    record = EncoderRecord(
        name=job.name,
        inputs=job.inputs,
        config=TrainedConfig(**plain).model_dump(mode="json"),
        seed=job.folder.seed,
        channels=job.data.channels,
        image_size=job.data.image_size,
        outputs=job.config.outputs,
        fingerprints={str(epoch): digest(job.inputs, epoch) for epoch in job.config.kept_epochs},
    )
    write_record(job.folder, record)


def _stand_in(adoption: Adoption, config: EndpointConfig) -> None:
    """A small network for one behind an API, which is not asked: with its outputs, for the work around its answers."""
    heads = {name: ("backbone", *objective.heads) for name, objective in OBJECTIVES.items()}
    network = TrainedConfig(
        objective=next(name for name, outputs in heads.items() if set(config.outputs) <= set(outputs)),
        backbone="conv4",
        train_on=adoption.roles,
        epochs=1,
        batch_size=2,
    )
    record = EncoderRecord(
        name=adoption.name,
        inputs=adoption.inputs,
        config=network.model_dump(mode="json"),
        seed=adoption.folder.seed,
        channels=adoption.data.channels,
        image_size=adoption.data.image_size,
        outputs=config.outputs,
        fingerprints={"0": digest(adoption.inputs)},
    )
    write_record(adoption.folder, record)


@dataclass(frozen=True)
class _Cell:
    """Samples that are drawn together: a role but for its parts, or a part."""

    source: str
    role: str
    part: str
    key: str


def _cells(data: DataConfig) -> Iterator[_Cell]:
    """The cells of a run. A key hashes all that decides which samples a cell holds, besides the run's seed."""
    for name, role in data.roles.items():
        if role.source_name not in data.sources:
            continue
        source = data.sources[role.source_name].model_dump(mode="json")
        drawn = digest(role.source_name, source, data.label, _draws(data, role.source_name, name))
        parts = [part for part, of in data.roles.items() if of.source_name == name]
        yield _Cell(role.source_name, name, "", digest(drawn, _draws(data, name, None)))
        for part in parts:
            yield _Cell(role.source_name, name, part, digest(drawn, "part", _draws(data, name, part)))


def _draws(data: DataConfig, origin: str, last: str | None) -> list[list[Any]]:
    """How the roles of a source, or the parts of a role, are drawn: in order of their names, up to one of them."""
    names = sorted(name for name, role in data.roles.items() if role.source_name == origin)
    drawn: list[Role] = [data.roles[name] for name in names if last is None or name <= last]
    return [[role.count, role.fraction, role.classes] for role in drawn]


def _stand_ins(data: DataConfig) -> Splits:
    """Splits with one row per cell, all in the first shard of their source."""
    cells = sorted(_cells(data), key=lambda cell: (cell.source, cell.key))
    first = {name: Source(data.sources[name]).items()[0].name for name in {cell.source for cell in cells}}
    label = next(iter(data.captions), 0)
    columns: dict[str, list[Any]] = {
        "source": [cell.source for cell in cells],
        "item": [first[cell.source] for cell in cells],
        "key": [cell.key for cell in cells],
        "label": [label] * len(cells),
        "sha256": [cell.key for cell in cells],
        **{f"{ATTRIBUTE}{name}": [0] * len(cells) for name in data.attributes},
        "role": [cell.role for cell in cells],
        "part": [cell.part for cell in cells],
    }
    return Splits(pa.table(columns), tuple(data.roles), (), 0)


def _images(job: ShardJob, sizes: RoleSizes) -> Quantity:
    """Images of a job: those of the roles that its stand-ins stand for."""
    data = Splits.load(job.folder.path)
    rows = {key: (role, part) for key, role, part in zip(*_columns(data), strict=True)}
    if job.query.asking.count is not None:
        here = {role for key in job.wanted for role in rows[key]} & set(job.query.roles)
        return total(sizes[role].at_most(job.query.asking.count) for role in sorted(here))
    chosen = [rows[key] for key in job.wanted]
    whole = [role for role, part in chosen if not part]
    return total([sizes[role] for role in whole] + [sizes[part] for role, part in chosen if part and role not in whole])


def _columns(splits: Splits) -> tuple[list[str], list[str], list[str]]:
    key, role, part = (splits.table[name].to_pylist() for name in ("key", "role", "part"))
    return key, role, part


def _members(job: TrainingJob, sizes: RoleSizes) -> Quantity:
    """Images that an encoder is trained on; a half, where it is one of two, is the larger one."""
    images = total(sizes[role] for role in job.config.train_on)
    return images if job.config.half is None else Quantity(math.ceil(images.value / 2), images.variance / 4)
