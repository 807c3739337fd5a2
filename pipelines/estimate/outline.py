"""An outline of some runs: run folders that hold only what planning reads.

Each group of samples that is drawn together is replaced by one row, whose key two runs share if they draw the same
samples. Encoders are described but not trained. So the stages' own code plans which encoders are trained and which
queries are asked, each once however many runs share them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from mi_core.adoption.builders import CODE
from mi_core.costs import Range, total
from mi_core.objectives import OBJECTIVES
from pipelines.config.checks import check_adopted
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import DefendedConfig, EndpointConfig, TrainedConfig
from pipelines.data.columns import ATTRIBUTE
from pipelines.data.draw.splits import Splits
from pipelines.data.read.sources import Source
from pipelines.encoders.adopt import Adoption, adopt_untried, adoptions
from pipelines.encoders.probes import PROBED
from pipelines.encoders.stored import describe, share
from pipelines.extract import plan as extract
from pipelines.extract.jobs import ShardJob
from pipelines.files.digest import digest
from pipelines.pretrain import run as pretrain
from pipelines.pretrain.worker import TrainingJob
from pipelines.run.folder import RunFolder, SeedFolder
from pipelines.run.points import Run

RoleSizes = Mapping[str, Range]
"""Images of every role and part of a seed."""


@dataclass(frozen=True)
class Pass:
    """Queries of one encoder for images of one source; passes of one ``kind`` take the same time per image."""

    job: ShardJob
    images: Range
    kind: str


@dataclass(frozen=True)
class Training:
    """One encoder to train; trainings of one ``kind`` take the same time per image."""

    job: TrainingJob
    images: Range

    @property
    def kind(self) -> str:
        """A hash of what an optimiser step computes."""
        config, data = self.job.config, self.job.data
        return digest(
            asdict(replace(config.pretraining(), epochs=1)), config.augmentation, data.channels, data.image_size
        )


@dataclass(frozen=True)
class Outline:
    """Passes, passes whose features some run keeps, trainings, and the queries of first looks by encoder."""

    passes: Sequence[Pass]
    stored: Sequence[Pass]
    trainings: Sequence[Training]
    probes: Sequence[tuple[str, int]]


def outline(runs: Sequence[Run], folder: str, sizes: Mapping[SeedFolder, RoleSizes]) -> Outline:
    """Plan some runs with roles of some sizes, in a folder of its own.

    Raises:
        UserError, ConfigError: weights from elsewhere cannot be read, or lack an output that is asked for.
    """
    places = [Run(config, RunFolder(folder + of_run.path.removeprefix(runs[0][1].path))) for config, of_run in runs]
    counts: dict[SeedFolder, RoleSizes] = {}
    for (config, of_run), (_, place) in zip(runs, places, strict=True):
        for seed in config.seeds:
            counts[place.seed(seed)] = sizes[of_run.seed(seed)]
            _stand_ins(config.data).save(place.seed(seed).path)
    adopted: dict[str, tuple[Adoption, int]] = {}
    trainings: dict[str, Training] = {}
    for config, place in places:
        for one in adoptions(config, place):
            probed = round(total(counts[one.folder][role] for role in one.roles).at_most(PROBED).value)
            first, _ = adopted.setdefault(one.inputs, (one, one.queries_on(probed)))
            _adopt(one, first, probed)
            described = describe(one.folder, one.name)
            check_adopted(config, one.name, described.record.outputs, copied=described.copied)
        for job in pretrain.training_jobs(config, place):
            _describe(job)
            if not isinstance(job.config, DefendedConfig):
                images = total(counts[job.folder][role] for role in job.config.train_on)
                whole = job.config.half is None
                trainings[job.inputs] = Training(job, images if whole else images * 0.5)
    jobs, distinct = extract.plan(places)
    passes, stored = (
        [Pass(job, _images(job, counts[job.folder]), _query_kind(job)) for job in some]
        for some in (distinct.values(), jobs)
    )
    return Outline(passes, stored, list(trainings.values()), [(one.name, asked) for one, asked in adopted.values()])


def _adopt(adoption: Adoption, first: Adoption, probed: int) -> None:
    """Describe an encoder from elsewhere. For one behind an API, which is not asked, a small network stands in."""
    config = adoption.config
    if isinstance(config, EndpointConfig):
        heads = {name: {"backbone", *objective.heads} for name, objective in OBJECTIVES.items()}
        objective = next(name for name, outputs in heads.items() if outputs.issuperset(config.outputs))
        network = TrainedConfig(objective=objective, backbone="conv4", train_on=adoption.roles, epochs=1, batch_size=2)
        job = TrainingJob(adoption.name, network, adoption.data, adoption.folder, adoption.inputs, resident_bytes=0)
        _describe(job, config.outputs, epochs=(0,))
    elif first is adoption:
        adopt_untried(adoption, config, probed)
    else:
        share(first.folder, adoption.folder, adoption.name)


def _describe(job: TrainingJob, outputs: tuple[str, ...] = (), epochs: tuple[int, ...] = ()) -> None:
    """Describe an encoder as if it were trained. One with a defense is described as the encoder that it defends."""
    plain = TrainedConfig(**{name: getattr(job.config, name) for name in TrainedConfig.model_fields})
    fingerprints = {str(epoch): digest(job.inputs, epoch) for epoch in epochs or job.config.kept_epochs}
    replace(job, config=plain).write(
        fingerprints=fingerprints, outputs=outputs or job.config.outputs, momentum=plain.keeps_momentum
    )


def _query_kind(job: ShardJob) -> str:
    """A hash of architecture, queries and views, but not of weights."""
    fields = ["backbone", "objective", "parameters", "load", "size", "interpolation"]
    kinds: list[Any] = []
    for name in filter(None, (job.encoder, job.query.asking.crafter)):
        record = describe(job.folder, name).record
        code = ["weights"] if str(record.config.get("load")).partition(":")[0] in CODE else []
        kinds.append([record.channels, record.image_size, *(record.config.get(field) for field in fields + code)])
    return digest(asdict(job.query.plan()), asdict(job.query.recipe), kinds)


def _stand_ins(data: DataConfig) -> Splits:
    """Splits with one row for each role without its parts, and for each part, in the first shard of their source.

    The key hashes all that decides which samples the row stands for, besides the run's seed.
    """
    rows: list[tuple[str, str, str, str]] = []
    for name, role in data.roles.items():
        if role.source_name in data.sources:
            source = data.sources[role.source_name].model_dump(mode="json")
            drawn = digest(role.source_name, source, data.label, _draws(data, role.source_name, name))
            parts = ["", *(part for part, of in data.roles.items() if of.source_name == name)]
            rows += [(role.source_name, digest(drawn, part, _draws(data, name, part)), name, part) for part in parts]
    sources, keys, roles, parts = (list(column) for column in zip(*sorted(rows), strict=True))
    first = {name: Source(data.sources[name]).items()[0].name for name in set(sources)}
    columns: dict[str, list[Any]] = {"source": sources, "item": [first[name] for name in sources], "key": keys}
    columns |= {"label": [next(iter(data.captions), 0)] * len(rows), "sha256": [bytes.fromhex(key) for key in keys]}
    columns |= {"role": roles, "part": parts} | {f"{ATTRIBUTE}{name}": [0] * len(rows) for name in data.attributes}
    return Splits.of(pa.table(columns), tuple(data.roles))


def _draws(data: DataConfig, origin: str, last: str) -> list[list[Any]]:
    """How the roles of a source, or the parts of a role, are drawn: lists first, then by name, up to one or all."""
    names = sorted(name for name, role in data.roles.items() if role.source_name == origin)
    drawn = [data.roles[name] for name in names if not last or name <= last or data.roles[name].listed]
    return [[role.count, role.fraction, role.classes, role.keys, role.key_column] for role in drawn]


def _images(job: ShardJob, sizes: RoleSizes) -> Range:
    """Images of a job: those of the roles that its rows stand for."""
    rows = Splits.load(job.folder.path).table.select(["key", "role", "part"]).to_pylist()
    wanted = job.selection.classes(job.source, job.item.name)
    chosen = [(row["role"], row["part"]) for row in rows if row["key"] in wanted]
    if job.query.asking.count is not None:
        here = {name for pair in chosen for name in pair} & set(job.query.roles)
        return total(sizes[role].at_most(job.query.asking.count) for role in sorted(here))
    whole = [role for role, part in chosen if not part]
    return total([sizes[role] for role in whole] + [sizes[part] for role, part in chosen if part and role not in whole])
