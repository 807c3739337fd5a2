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

from mi_core.costs import Range, total
from mi_core.encoders.checkpoint import weights_bytes
from mi_core.encoders.foreign import CODE
from mi_core.objectives import OBJECTIVES
from mi_core.training.loop import audited_encoder
from pipelines.config.checks import check_outputs
from pipelines.config.data import DataConfig
from pipelines.config.encoders import DefendedConfig, EndpointConfig, TrainedConfig
from pipelines.data.scan import ATTRIBUTE
from pipelines.data.sources import Source
from pipelines.data.splits import Splits
from pipelines.encoders.adopt import Adoption, adopt_untried, adoptions
from pipelines.encoders.probes import PROBED
from pipelines.encoders.record import EncoderRecord
from pipelines.encoders.stored import describe, share, weights_path, write_record
from pipelines.estimate.shards import RoleSizes
from pipelines.extract import run as extract
from pipelines.extract.jobs import ShardJob
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.pretrain import run as pretrain
from pipelines.pretrain.worker import TrainingJob
from pipelines.run.folder import RunFolder, SeedFolder
from pipelines.run.points import Run


@dataclass(frozen=True)
class Pass:
    """The queries of one encoder, at all its checkpoints, for the images of one source; ``kind``: `query_kind`."""

    job: ShardJob
    images: Range
    kind: str

    @property
    def queries(self) -> Range:
        """Over all checkpoints."""
        return self.images * self.job.query.queries_per_image


@dataclass(frozen=True)
class Training:
    """One encoder to train; trainings of one ``kind`` take the same time per image."""

    job: TrainingJob
    images: Range

    @property
    def kind(self) -> str:
        """A hash of the settings that matter."""
        parameters = asdict(replace(self.job.config.pretraining(), epochs=1))
        return digest(parameters, self.job.config.augmentation, self.job.data.channels, self.job.data.image_size)


@dataclass(frozen=True)
class Outline:
    """The work of some runs, each piece once.

    Args:
        passes: queries to ask.
        stored: queries whose features some run keeps; runs keep copies of what they share.
        trainings: encoders to train.
        probes: encoder and queries of every first look at an encoder from elsewhere.
    """

    passes: Sequence[Pass]
    stored: Sequence[Pass]
    trainings: Sequence[Training]
    probes: Sequence[tuple[str, int]]


def outline(runs: Sequence[Run], folder: str, sizes: Mapping[SeedFolder, RoleSizes]) -> Outline:
    """Plan some runs in a folder of its own.

    Args:
        runs: a run and the points of its sweeps.
        folder: where the outline is written.
        sizes: images of the roles of every seed of every run.

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
        for adoption in adoptions(config, place):
            images = total(counts[adoption.folder][role] for role in adoption.roles).at_most(PROBED)
            first, _ = adopted.setdefault(adoption.inputs, (adoption, adoption.queries_on(round(images.value))))
            if isinstance(adoption.config, EndpointConfig):
                _describe_endpoint(adoption, adoption.config)
            elif first is adoption:
                adopt_untried(adoption, adoption.config, round(images.value))
            else:
                share(first.folder, adoption.folder, adoption.name)
            check_outputs(config, adoption.name, describe(adoption.folder, adoption.name).record.outputs)
        for job in pretrain.training_jobs(config, place):
            _describe(job)
            if not isinstance(job.config, DefendedConfig):
                images = total(counts[job.folder][role] for role in job.config.train_on)
                trainings[job.inputs] = Training(job, images if job.config.half is None else images * 0.5)
    jobs, firsts = extract.plan(places)
    passes, stored = (
        [Pass(job, _images(job, counts[job.folder]), query_kind(job)) for job in some]
        for some in (firsts.values(), jobs)
    )
    return Outline(
        passes,
        stored,
        list(trainings.values()),
        [(adoption.name, queries) for adoption, queries in adopted.values()],
    )


def query_kind(job: ShardJob) -> str:
    """The architecture, queries and views of a job: two jobs that share them take the same time per image."""
    fields = ["backbone", "objective", "parameters", "load", "size", "interpolation"]
    kinds: list[Any] = []
    for name in filter(None, (job.encoder, job.query.asking.crafter)):
        record = describe(job.folder, name).record
        code = ["weights"] if str(record.config.get("load")).partition(":")[0] in CODE else []
        kinds.append([record.channels, record.image_size, *(record.config.get(field) for field in fields + code)])
    return digest(asdict(job.query.plan()), asdict(job.query.recipe), kinds)


def lay_weights(job: ShardJob) -> None:
    """Store fresh weights of the encoders of a job that are still to be trained."""
    for name in filter(None, (job.encoder, job.query.asking.crafter)):
        place, record = job.folder.encoder(name), describe(job.folder, name).record
        if isinstance(record.settings, TrainedConfig):
            encoder = audited_encoder(record.settings.pretraining(), record.channels, record.image_size)
            for epoch in {job.query.epochs[-1], record.settings.kept_epochs[-1]}:
                storage.write_atomic(weights_path(place, epoch), weights_bytes(encoder))


def _describe_endpoint(adoption: Adoption, config: EndpointConfig) -> None:
    """Describe a small network with the outputs of an encoder behind an API, to time the work around its answers."""
    heads = {name: {"backbone", *objective.heads} for name, objective in OBJECTIVES.items()}
    objective = next(name for name, outputs in heads.items() if outputs.issuperset(config.outputs))
    network = TrainedConfig(objective=objective, backbone="conv4", train_on=adoption.roles, epochs=1, batch_size=2)
    job = TrainingJob(adoption.name, network, adoption.data, adoption.folder, adoption.inputs, resident_bytes=0)
    _describe(job, config.outputs, epochs=(0,))


def _describe(job: TrainingJob, outputs: tuple[str, ...] = (), epochs: tuple[int, ...] = ()) -> None:
    """Describe an encoder as if it were trained. One with a defense is described as the encoder that it defends."""
    plain = TrainedConfig(**{name: getattr(job.config, name) for name in TrainedConfig.model_fields})
    record = EncoderRecord(
        name=job.name,
        inputs=job.inputs,
        config=plain.model_dump(mode="json"),
        seed=job.folder.seed,
        channels=job.data.channels,
        image_size=job.data.image_size,
        outputs=outputs or job.config.outputs,
        fingerprints={str(epoch): digest(job.inputs, epoch) for epoch in epochs or job.config.kept_epochs},
    )
    write_record(job.folder, record)


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
    columns: dict[str, list[Any]] = {
        "source": sources,
        "item": [first[name] for name in sources],
        "key": keys,
        "label": [next(iter(data.captions), 0)] * len(rows),
        "sha256": keys,
        **{f"{ATTRIBUTE}{name}": [0] * len(rows) for name in data.attributes},
        "role": roles,
        "part": parts,
    }
    return Splits(pa.table(columns), tuple(data.roles), (), 0)


def _draws(data: DataConfig, origin: str, last: str) -> list[list[Any]]:
    """How the roles of a source, or the parts of a role, are drawn: in order of their names, up to one or all."""
    names = sorted(name for name, role in data.roles.items() if role.source_name == origin)
    drawn = [data.roles[name] for name in names if not last or name <= last]
    return [[role.count, role.fraction, role.classes] for role in drawn]


def _images(job: ShardJob, sizes: RoleSizes) -> Range:
    """Images of a job: those of the roles that its rows stand for."""
    table = Splits.load(job.folder.path).table
    places = zip(*(table[name].to_pylist() for name in ("key", "role", "part")), strict=True)
    chosen = [(role, part) for key, role, part in places if key in job.wanted]
    if job.query.asking.count is not None:
        here = {name for pair in chosen for name in pair} & set(job.query.roles)
        return total(sizes[role].at_most(job.query.asking.count) for role in sorted(here))
    whole = [role for role, part in chosen if not part]
    return total([sizes[role] for role in whole] + [sizes[part] for role, part in chosen if part and role not in whole])
