"""The outline of some runs: their plans with roles of estimated sizes, and the passes and trainings of these.

Nothing is drawn, trained or written for it: a role has the digest of all that decides how it is drawn, so that two
plans that draw the same images share the queries of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mi_core.adoption.builders import WHOLE
from mi_core.costs import Range, total
from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.checkpoint import Encoder as Network
from mi_core.objectives import OBJECTIVES
from mi_core.querying.sanity import PROBED
from mi_core.training.loop import audited_encoder
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import DefendedConfig, EndpointConfig, LoadedConfig, TrainedConfig
from pipelines.data.draw.splits import Splits, are_drawn
from pipelines.data.plans import drawn_roles
from pipelines.data.read.sources import Source
from pipelines.encoders.adopt import probes_of, read_encoder
from pipelines.extract.actor.asking import Checkpoint
from pipelines.extract.actor.worker import EncodeChunks
from pipelines.extract.division.jobs import ShardJob
from pipelines.extract.division.passes import Pass, grouped
from pipelines.extract.division.readers import Selection
from pipelines.files.digest import digest
from pipelines.plan.checks import check_adopted
from pipelines.plan.items import Encoder, Plan, Query, Role, items_in
from pipelines.plan.resolve import resolve
from pipelines.run.folder import SeedFolder
from pipelines.run.points import Run


def stand_in(encoder: Encoder, data: DataConfig) -> Network:
    """An encoder that takes as long: the one itself where it is given, else one with fresh weights.

    An encoder with a defense is timed as the plain one. For one behind an API, which is not asked, a small network
    stands in.

    Raises:
        UserError, ConfigError: weights from elsewhere cannot be read.
    """
    settings = encoder.settings
    if isinstance(settings, LoadedConfig):
        return read_encoder(encoder.name, settings, data, encoder.seed)[0].encoder.eval()
    if isinstance(settings, EndpointConfig):
        heads = {name: {"backbone", *objective.heads} for name, objective in OBJECTIVES.items()}
        objective = next(name for name, outputs in heads.items() if outputs.issuperset(settings.outputs))
        settings = TrainedConfig(objective=objective, backbone="conv4", train_on="", epochs=1, batch_size=2)
    return audited_encoder(settings.pretraining(), data.channels, data.image_size).eval()


Stated = Mapping[tuple[str, str], tuple[Encoder, DataConfig]]
"""Encoders, and how their images are read, by the folder of the jobs that ask them and by their name."""


class TimeChunks(EncodeChunks):
    """An encoder actor whose encoders are stand-ins.

    Args:
        stated: the encoders.
        settings: as for `EncodeChunks`.
    """

    def __init__(self, stated: Stated, **settings: Any) -> None:
        super().__init__(**settings)
        self.stated = stated

    def _load(self, checkpoint: Checkpoint) -> Network:
        return for_queries(stand_in(*self.stated[checkpoint.folder.path, checkpoint.encoder]), self.device)


RoleSizes = Mapping[str, Range]
"""Images of every role and part of a seed."""


@dataclass(frozen=True)
class TimedPass:
    """Queries of one encoder for images of one source.

    Args:
        job: one shard of the source, which stands for all.
        images: in all shards.
        encoders: that are asked, and that images are crafted on.
        kind: of the queries; passes of one kind take the same time per image.
    """

    job: ShardJob
    images: Range
    encoders: Stated
    kind: str


@dataclass(frozen=True)
class Training:
    """One encoder to train; trainings of one ``kind`` take the same time per image."""

    encoder: Encoder
    settings: TrainedConfig
    data: DataConfig
    images: Range

    @property
    def kind(self) -> str:
        """A hash of what an optimiser step computes."""
        settings, data = self.settings, self.data
        plain = asdict(replace(settings.pretraining(), epochs=1))
        return digest(plain, settings.augmentation, data.channels, data.image_size)


@dataclass(frozen=True)
class Outline:
    """Passes, trainings, and the queries of first looks by encoder."""

    passes: Sequence[TimedPass]
    trainings: Sequence[Training]
    probes: Sequence[tuple[str, int]]


def outline(runs: Sequence[Run], store: str, sizes: Mapping[SeedFolder, RoleSizes]) -> Outline:
    """Plan some runs with roles of some sizes.

    Args:
        runs: a run and the points of its sweeps.
        store: folder that timed chunks go to.
        sizes: of the roles of every seed of every run.

    Raises:
        UserError, ConfigError: weights from elsewhere cannot be read, or lack an output that is asked for.
    """
    seen: set[str] = set()
    passes: list[TimedPass] = []
    trainings: dict[str, Training] = {}
    probes: dict[str, tuple[str, int]] = {}
    for config, folder in runs:
        for seed in config.seeds:
            counts = sizes[folder.seed(seed)]
            plan = resolve(config, seed, _roles(config.data, folder.seed(seed), counts))
            for encoder in plan.encoders:
                if isinstance(encoder.settings, LoadedConfig | EndpointConfig):
                    audited = total(counts[role.name] for role in plan.audited)
                    asked = probes_of(encoder.settings, plan.data, round(audited.at_most(PROBED).value))
                    probes.setdefault(encoder.key, (encoder.name, asked))
                    if isinstance(encoder.settings, LoadedConfig):
                        check_adopted(plan, encoder.name, stand_in(encoder, plan.data).outputs)
                elif not isinstance(encoder.settings, DefendedConfig):
                    images = total(counts[role.name] for role in encoder.members)
                    whole = encoder.settings.half is None
                    trainings[encoder.key] = Training(
                        encoder, encoder.settings, plan.data, images if whole else images * 0.5
                    )
            queries = [query for query in items_in(plan, Query) if query.key not in seen]
            seen.update(query.key for query in queries)
            for query in grouped(queries, store):
                passes += _timed(query, plan, counts)
    return Outline(passes, list(trainings.values()), list(probes.values()))


def _roles(data: DataConfig, folder: SeedFolder, counts: RoleSizes) -> dict[str, Role]:
    """The roles of a seed: as they are drawn, or with a digest of how they will be."""
    if are_drawn(folder.path):
        return drawn_roles(Splits.load(folder.path), data)
    return {
        name: Role(
            name,
            round(counts[name].value),
            digest(folder.seed, _draws(data, name)),
            role.source_name if role.source_name in data.roles else "",
        )
        for name, role in data.roles.items()
    }


def _draws(data: DataConfig, name: str) -> list[Any]:
    """All that decides which images a role has, besides the seed: its source, and what is drawn from it before."""
    origin = data.roles[name].source_name
    above: Any = _draws(data, origin) if origin in data.roles else data.sources[origin].model_dump(mode="json")
    beside = sorted(other for other, role in data.roles.items() if role.source_name == origin)
    before = [data.roles[other] for other in beside if other <= name or data.roles[other].is_listed]
    drawn = [[role.count, role.fraction, role.classes, role.keys, role.key_column] for role in before]
    return [origin, above, data.label, drawn]


def _timed(query: Pass, plan: Plan, counts: RoleSizes) -> list[TimedPass]:
    """A pass, for each source that has images of it."""
    data, encoders = plan.data, {encoder.name: encoder for encoder in plan.encoders}
    folder = SeedFolder(f"{query.store}/{plan.key}", plan.seed)
    stated = {(folder.path, name): (encoders[name], data) for name in (query.encoder, query.crafter) if name}
    captioned = query.plan().captioned or query.plan().labelled
    timed = []
    by_source: dict[str, list[str]] = {}
    for role in query.roles:
        by_source.setdefault(_source_of(data, role), []).append(role)
    for source, roles in by_source.items():
        model = data.sources[source]
        whole = [role for role in roles if data.roles[role].source_name not in query.roles]
        left = [counts[role] for role in whole]
        if query.count is not None:
            left = [size.at_most(query.count) for size in left]
        digests = [role.digest for role in plan.roles if role.name in whole]
        job = ShardJob(
            folder,
            query,
            source,
            model,
            Source(model).items()[0],
            Selection("", "", tuple(roles), 1, digest(digests, query.count)),
            query.chunk,
            data.decoder(),
            data if captioned else None,
        )
        timed.append(TimedPass(job, total(left), stated, _kind(query, stated)))
    return timed


def _source_of(data: DataConfig, role: str) -> str:
    """The source that a role is drawn from in the end."""
    origin = data.roles[role].source_name
    return _source_of(data, origin) if origin in data.roles else origin


def _kind(query: Pass, stated: Stated) -> str:
    """A hash of architecture, queries and views, but not of weights."""
    fields = ["backbone", "objective", "parameters", "load", "size", "interpolation"]
    kinds: list[Any] = []
    for encoder, data in stated.values():
        settings = encoder.settings.model_dump(mode="json")
        code = ["weights"] if str(settings.get("load")).partition(":")[0] in WHOLE else []
        kinds.append([data.channels, data.image_size, *(settings.get(field) for field in fields + code)])
    plan = query.plan()
    asked = [sorted(map(str, plan.needs)), plan.outputs, plan.views, plan.batch_views, plan.precision]
    return digest(asked, asdict(query.recipe), kinds)
