"""List the attacks of a run, and load the features that each is fitted on and scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from mi_core.attacks.shadows import shadow_row
from mi_core.features.embedding import Embedding
from mi_core.features.sequential import StoppingRule
from mi_core.records import Features, LabelledFeatures, among
from pipelines.config.demands import SEQUENTIAL, Asking, Stopping, asking_of, stopping_of
from pipelines.config.roles import ANCHOR_ROLE, of_nonmembers
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import AUDITED, AttackConfig
from pipelines.config.sections.encoders import TrainedConfig
from pipelines.data.columns import known_label
from pipelines.data.draw.first import number_of
from pipelines.data.draw.halves import members_of
from pipelines.data.draw.splits import Splits
from pipelines.errors import UserError
from pipelines.extract.features import load_features
from pipelines.run.folder import SeedFolder

MOST_AUDITED = 2_000_000  # samples that an attack which is fitted on them takes


@dataclass(frozen=True)
class Task:
    """One attack on one output of one checkpoint of one seed."""

    folder: SeedFolder
    position: int
    attack: AttackConfig
    output: str
    epoch: int
    references: tuple[str, ...] = ()  # encoders on which it is repeated
    stopping: Stopping | None = None  # rule that ends the queries of an image early; None: all views are queried

    @property
    def target_output(self) -> str:
        """The attacked output in words, for messages."""
        return f"the {self.output} output of {self.attack.target}"

    @property
    def name(self) -> str:
        """Folder name of the result."""
        return f"{self.attack.attack}-{self.position}-{self.output}-{self.epoch:04d}"


def tasks(config: RunConfig, folder: SeedFolder) -> Iterator[Task]:
    """All attack tasks of one seed."""
    for position, attack in enumerate(config.attacks):
        for epoch in config.attacked_epochs(attack.target):
            for output in config.outputs_of(attack):
                until = stopping_of(config, attack, output, epoch)
                yield Task(folder, position, attack, output, epoch, config.references_of(attack), until)


def features_of(config: RunConfig, task: Task, splits: Splits, encoder: str, roles: Sequence[str]) -> Features:
    """Load the features, anchors, labels and population that an attack uses, for some roles and one encoder.

    ``splits`` are whole, or of some shards alone.
    """
    attack, epoch = task.attack, config.epoch_beside(encoder, task.epoch)
    features = _measured(config, task, splits, encoder, roles)
    beside = config.population_roles(attack)
    population = _measured(config, task, None, encoder, beside) if beside else None
    anchors = None
    if attack.method().anchored:
        output = _output_on(config, task, encoder)
        given = load_features(config, task.folder, Asking(encoder), epoch, output, [Embedding()], [ANCHOR_ROLE])
        anchors = given[Embedding()]
    labels = None
    if attack.method().labelled:
        known = splits.labels()
        labels = np.array([known_label(name, known[name]) for name in features.ids], dtype=np.int64)
    return replace(features, anchors=anchors, labels=labels, population=population)


def _output_on(config: RunConfig, task: Task, encoder: str) -> str:
    """The attacked output, or the backbone of a reference encoder that has no such output."""
    return config.outputs_on(encoder, (task.output,))[0] if encoder in task.references else task.output


def _measured(config: RunConfig, task: Task, splits: Splits | None, encoder: str, roles: Sequence[str]) -> Features:
    """Load the membership features that an attack reads, of the views that it uses; ``splits`` None: the whole."""
    attack, epoch = task.attack, config.epoch_beside(encoder, task.epoch)
    asking = asking_of(config, attack, encoder)
    output = _output_on(config, task, encoder)
    features = load_features(config, task.folder, asking, epoch, output, attack.needs(), roles, splits)
    drawn, used = config.queries.views, attack.views or config.queries.views
    values = {need.name: need.first_views(features[need], drawn, used) for need in attack.needs()}
    return Features(features.ids, values)


def reference_of(config: RunConfig, task: Task, splits: Splits, target: str) -> LabelledFeatures:
    """Load the reference of an attack, from its shadow encoders or, without any, from ``target``."""
    attack = task.attack
    roles, shadows = config.reference_roles(attack), config.shadows(attack)
    if attack.reference not in config.encoders and shadows:
        return _halves(config, task, splits, shadows)
    if attack.reference == AUDITED:
        return _audited(config, task, splits, target)
    features = features_of(config, task, splits, shadows[0] if shadows else target, roles)
    member = splits.among(features.ids, [role for role in roles if not of_nonmembers(role)])
    if attack.reference_count is not None:
        rows = among(features.ids, set(splits.first(roles, attack.reference_count, task.folder.seed)))
        features, member = features.take(rows), member[rows]
    return LabelledFeatures(features, member)


def _audited(config: RunConfig, task: Task, splits: Splits, target: str) -> LabelledFeatures:
    """Features of the samples that are judged, of which the candidates count as members.

    Raises:
        UserError: they are too many for one process.
    """
    asked = number_of(splits, config.audited, task.attack.count)
    if asked > MOST_AUDITED:
        raise UserError(
            f"attacks.{task.position}: {task.attack.attack} with reference = {AUDITED!r} takes {MOST_AUDITED:,} "
            f"audited samples at most, got {asked:,}; set its count, or fit it on an encoder"
        )
    found = features_of(config, task, splits, target, config.audited)
    features = of_fold(config, task.folder, splits, found, config.audited)
    member = splits.among(features.ids, config.audited[:1])
    return LabelledFeatures(features, member, audited=True, groups=splits.groups(features.ids.tolist()))


def _halves(config: RunConfig, task: Task, splits: Splits, shadows: Sequence[str]) -> LabelledFeatures:
    """Features of the audited samples from several shadow encoders; members are the training samples of each."""
    method = task.attack.method()(task.attack.parameters())
    seen, members, beside = [], [], []
    for name in shadows:
        features = method.condensed(features_of(config, task, splits, name, config.audited))
        encoder = cast(TrainedConfig, config.encoders[name])
        trained = members_of(splits, encoder, task.folder.seed, config.queries.nonce)
        seen.append(_by(name, features))
        members.append(trained.among(features.ids, encoder.train_on))
        if features.population is not None:
            beside.append(_by(name, features.population))
    population = _joined(beside) if beside else None
    return LabelledFeatures(replace(_joined(seen), population=population), np.concatenate(members))


def _by(shadow: str, features: Features) -> Features:
    """Features under the ids of a shadow's rows."""
    return Features(np.array([shadow_row(one, shadow) for one in features.ids]), features.values)


def _joined(parts: Sequence[Features]) -> Features:
    """The rows of several features."""
    values = {need: np.concatenate([part.values[need] for part in parts]) for need in parts[0].values}
    return Features(np.concatenate([part.ids for part in parts]), values)


def evaluated_of(config: RunConfig, task: Task, splits: Splits) -> Features:
    """Load the features to evaluate an attack on: audited samples of the fold, without its reference."""
    return of_fold(config, task.folder, splits, _evaluated(config, task, splits), config.audited)


def of_fold(
    config: RunConfig, folder: SeedFolder, splits: Splits, features: Features, roles: Sequence[str]
) -> Features:
    """The samples of some roles in the fold that a search judges; all where nothing is searched."""
    if config.fold == "all":
        return features
    return features.take(among(features.ids, splits.fold(roles, config.fold, folder.seed)))


def _evaluated(config: RunConfig, task: Task, splits: Splits) -> Features:
    attack = task.attack
    if task.stopping is not None:
        asking = asking_of(config, attack, attack.target)
        stopped = replace(asking, stopping=task.stopping, without=config.fitted_on_target(attack))
        needs = [SEQUENTIAL]
        return load_features(config, task.folder, stopped, task.epoch, task.output, needs, config.audited, splits)
    target = features_of(config, task, splits, attack.target, config.audited)
    return target.take(~splits.among(target.ids, config.fitted_on_target(attack)))


def stopping_rule(config: RunConfig, folder: SeedFolder, stopping: Stopping) -> StoppingRule:
    """Fit a sequential attack on its reference and return its stopping rule.

    Raises:
        UserError: the features of the reference are missing.
        NumericError: the attack cannot be fitted; NotApplicable: the features carry no information.
    """
    attack = config.attacks[stopping.position]
    task = Task(folder, stopping.position, attack, stopping.output, stopping.epoch)
    method = attack.method()(attack.parameters(), seed=folder.seed)
    method.fit(reference_of(config, task, Splits.load(folder.path), attack.target))
    return method.stopping_rule()
