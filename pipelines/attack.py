"""Fit attacks on their reference, score the target's samples, and run the controls, as Ray tasks.

One task per (seed, attack, output, checkpoint); a task whose result is on disk is skipped. Labels meet the
features only here. The same fitted attack also scores the same samples on the control encoder.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import torch

from mi_core.attacks.base import Attack, NotApplicable
from mi_core.attacks.lira import shadow_row
from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.features import of_first_views
from mi_core.metrics.membership import evaluate
from mi_core.records import Features, LabelledFeatures
from mi_core.validity.blind import blind_scores
from pipelines import storage
from pipelines.artifacts import SeedFolder, digest
from pipelines.attack_config import ANCHOR_ROLE, AttackConfig
from pipelines.attribute_inference import inferences, planes, run_inference, run_plane
from pipelines.console import say
from pipelines.encoders import TrainedConfig
from pipelines.errors import UserError
from pipelines.loading import load_images
from pipelines.ray_runtime import finished
from pipelines.shard_jobs import known_label, load_features
from pipelines.splits import Splits
from pipelines.training import members_of
from pipelines.utility import measure, utility_path

if TYPE_CHECKING:
    from pipelines.config import Run, RunConfig


@dataclass(frozen=True)
class Task:
    """One attack on one output of one checkpoint of one seed."""

    folder: SeedFolder
    position: int
    attack: AttackConfig
    output: str
    epoch: int
    control: str | None

    @property
    def target_output(self) -> str:
        """What is attacked, in words."""
        return f"the {self.output} output of {self.attack.target}"

    @property
    def name(self) -> str:
        """Folder name of the result."""
        return f"{self.attack.attack}-{self.position}-{self.output}-{self.epoch:04d}"


def run(runs: Sequence[Run]) -> None:
    """Run every attack, utility measurement and control of some runs that is not on disk yet.

    What two runs have in common is computed once: the first gets it, the others a copy.
    """
    work: list[tuple[Callable[..., None], int, tuple[Any, ...]]] = []
    copies: list[tuple[_Work, _Work]] = []
    first: dict[str, _Work] = {}
    for number, (config, folder) in enumerate(runs):
        for seed in config.seeds:
            for piece in _work(config, folder.seed(seed)):
                origin = first.setdefault(piece.identity, piece)
                if origin is not piece:
                    copies.append((origin, piece))
                elif not storage.exists(piece.path):
                    work.append((piece.function, number, piece.arguments))
    if len(work) < len(first):
        say("attack", f"{len(first) - len(work)} of {len(first)} results done before")
    if work:
        _compute(work, runs)
    for origin, piece in copies:
        if not storage.exists(piece.path):
            for name in [name for name in (*piece.beside, piece.name) if storage.exists(f"{origin.place}/{name}")]:
                storage.copy(f"{origin.place}/{name}", f"{piece.place}/{name}")


def _compute(work: Sequence[tuple[Callable[..., None], int, tuple[Any, ...]]], runs: Sequence[Run]) -> None:
    """Do pieces of work of some runs as Ray tasks.

    Raises:
        UserError: what the user gave cannot be attacked so.
    """
    import ray

    started = time.perf_counter()
    configs = [ray.put(config) for config, _ in runs]
    remote = ray.remote(num_cpus=1)(_call)
    pending = [remote.remote(function, configs[number], *arguments) for function, number, arguments in work]
    for fault in filter(None, finished(pending, "results", "attacks and controls")):
        raise UserError(fault)
    say("attack", f"{len(work)} results, {time.perf_counter() - started:.0f} s")


@dataclass(frozen=True)
class _Work:
    """One file to make, with those that are written before it; equal identities mean equal contents."""

    path: str
    function: Callable[..., None]
    arguments: tuple[Any, ...]
    identity: str
    beside: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def tasks(config: RunConfig, folder: SeedFolder) -> Iterator[Task]:
    """All attack tasks of one seed."""
    for position, attack in enumerate(config.attacks):
        for epoch in config.attacked_epochs(attack.target):
            for output in config.outputs_of(attack):
                yield Task(folder, position, attack, output, epoch, config.control_of(attack))


def _work(config: RunConfig, folder: SeedFolder) -> Iterator[_Work]:
    common = config.model_dump(mode="json", include={"data", "encoders", "queries"}), folder.seed
    for task in tasks(config, folder):
        same = digest(common, task.name, task.attack.model_dump(mode="json"), task.control)
        files = ("scores.parquet", "attack.npz")
        yield _Work(f"{folder.attack(task.name)}/result.json", _attack, (task,), same, files)
    for name in config.encoders:
        for epoch in config.attacked_epochs(name):
            same = digest(common, name, epoch, config.utility.model_dump(mode="json"))
            yield _Work(utility_path(folder, name, epoch), measure, (folder, name, epoch), same)
    for inference in inferences(config, folder):
        same = digest(common, inference.epoch, inference.config.model_dump(mode="json"))
        yield _Work(inference.path, run_inference, (inference,), same)
    for mapped in planes(config, folder):
        chosen = mapped.config
        same = digest(common, "plane", mapped.epoch, chosen.attribute, chosen.target, chosen.output, chosen.test)
        yield _Work(mapped.map_path, run_plane, (mapped,), same)
    yield _Work(blind_path(folder), _blind, (folder,), digest(common, config.audited))


def _call(function: Callable[..., None], config: RunConfig, *arguments: Any) -> str:
    """Do a piece of work; returns what is wrong with what the user gave, or nothing."""
    torch.set_num_threads(1)
    try:
        function(config, *arguments)
    except (ConfigError, NumericError, ShapeError, UserError) as error:
        return str(error)
    return ""


def _attack(config: RunConfig, task: Task) -> None:
    started = time.perf_counter()
    attack = task.attack
    method = attack.method()(attack.parameters(), seed=task.folder.seed)
    splits = Splits.load(task.folder.path)
    reference = _reference(config, task, splits, attack.target)
    evaluated = _evaluated(config, task, splits)
    place = task.folder.attack(task.name)
    queries = method.queries_per_sample(attack.views or config.queries.views)
    result: dict[str, Any] = {
        "attack": attack.attack,
        "target": attack.target,
        "reference": attack.reference,
        "output": task.output,
        "epoch": task.epoch,
        "seed": task.folder.seed,
        "position": task.position,
        "parameters": asdict(attack.parameters()),
        "queries": {
            "per_sample": queries,
            "attack_training": queries * len(reference.features) + _anchors(reference.features),
            "evaluation": queries * len(evaluated) + (_anchors(evaluated) if config.shadows(attack) else 0),
        },
    }
    try:
        fitting = time.perf_counter()
        method.fit(reference)
        scoring = time.perf_counter()
        scores = method.score(evaluated)
    except NotApplicable as error:
        storage.write_json(f"{place}/result.json", result | {"not_applicable": str(error)})
        return
    control = None
    try:
        control = None if task.control is None else _control_scores(config, task, splits, method, evaluated)
    except NotApplicable as error:
        result["control_not_applicable"] = str(error)
    member = _members(splits, evaluated, config.audited[0])
    columns: dict[str, Any] = {"id": evaluated.ids.tolist(), "member": member, "score": scores}
    statistic = method.statistic(evaluated)
    if statistic is not None:
        columns["statistic"] = statistic
    if control is not None:
        columns["control"] = control
    metrics = evaluate(scores, member, method.threshold, seed=task.folder.seed)
    storage.write_table(f"{place}/scores.parquet", pa.table(columns))
    storage.write_atomic(f"{place}/attack.npz", _packed(method.state()))
    result["seconds"] = round(time.perf_counter() - started, 3)
    result["seconds_fit"] = round(scoring - fitting, 3)
    result["metrics"] = metrics.as_json()
    storage.write_json(f"{place}/result.json", result)


def _anchors(features: Features) -> int:
    return 0 if features.anchors is None else len(features.anchors)


def _features(config: RunConfig, task: Task, splits: Splits, encoder: str, roles: Sequence[str]) -> Features:
    """What the attack sees of some roles through an encoder: its needs, its views, its anchors."""
    attack, recipe = task.attack, config.recipe(task.attack)
    epoch = config.epoch_beside(encoder, task.epoch)
    found = load_features(
        config,
        task.folder,
        encoder,
        epoch,
        task.output,
        attack.needs(),
        roles,
        recipe,
        crafter=config.crafter(attack),
        count=attack.count,
    )
    drawn, used = config.queries.views, attack.views or config.queries.views
    values = {need: of_first_views(need, array, drawn, used) for need, array in found.values.items()}
    anchors = None
    if attack.method().anchored:
        given = load_features(config, task.folder, encoder, epoch, task.output, ["embedding"], [ANCHOR_ROLE])
        anchors = given.values["embedding"]
    labels = None
    if attack.method().labelled:
        known = splits.labels()
        labels = np.array([known_label(name, known[name]) for name in found.ids], dtype=np.int64)
    return Features(found.ids, values, anchors, labels)


def _reference(config: RunConfig, task: Task, splits: Splits, target: str) -> LabelledFeatures:
    """What the attack is fitted on, seen through its shadows or, without any, through ``target``."""
    attack = task.attack
    roles, shadows = config.reference_roles(attack), config.shadows(attack)
    if attack.reference not in config.encoders and shadows:
        return _halves(config, task, splits, shadows)
    features = _features(config, task, splits, shadows[0] if shadows else target, roles)
    member = _is_member(splits, features, roles)
    if attack.reference_count is not None:
        chosen = set(splits.first(roles, attack.reference_count, task.folder.seed))
        rows = np.array([name in chosen for name in features.ids])
        features, member = features.take(rows), member[rows]
    return LabelledFeatures(features, member)


def _halves(config: RunConfig, task: Task, splits: Splits, shadows: Sequence[str]) -> LabelledFeatures:
    """The audited samples as each of several shadows sees them, with those it was trained on as members."""
    seen, members = [], []
    for name in shadows:
        features = _features(config, task, splits, name, config.audited)
        encoder = cast(TrainedConfig, config.encoders[name])
        trained = set(members_of(splits, encoder, task.folder.seed).ids(encoder.train_on))
        seen.append(Features(np.array([shadow_row(one, name) for one in features.ids]), features.values))
        members.append(np.array([one in trained for one in features.ids]))
    ids = np.concatenate([features.ids for features in seen])
    values = {need: np.concatenate([features.values[need] for features in seen]) for need in seen[0].values}
    return LabelledFeatures(Features(ids, values), np.concatenate(members))


def _is_member(splits: Splits, features: Features, roles: Sequence[str]) -> np.ndarray:
    members = set(splits.ids([role for role in roles if not role.endswith("nonmember")]))
    return np.array([name in members for name in features.ids])


def _evaluated(config: RunConfig, task: Task, splits: Splits) -> Features:
    """The samples an attack is judged on: those it was not fitted on, however few of these it used."""
    target = _features(config, task, splits, task.attack.target, config.audited)
    if config.shadows(task.attack):
        return target
    known = set(splits.ids(config.reference_roles(task.attack)))
    return target.take(np.array([name not in known for name in target.ids]))


def _members(splits: Splits, features: Features, role: str) -> np.ndarray:
    members = set(splits.ids([role]))
    return np.array([name in members for name in features.ids])


def _control_scores(config: RunConfig, task: Task, splits: Splits, method: Attack, evaluated: Features) -> np.ndarray:
    """The same attack on an encoder that saw neither group: as fitted, or fitted anew where it knows samples of it."""
    assert task.control is not None
    features = _features(config, task, splits, task.control, config.audited)
    row_of = {name: row for row, name in enumerate(features.ids)}
    if not config.shadows(task.attack):
        method = task.attack.method()(task.attack.parameters(), seed=task.folder.seed)
        method.fit(_reference(config, task, splits, task.control))
    return method.score(features.take(np.array([row_of[name] for name in evaluated.ids])))


def _packed(state: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **cast(Any, state))
    return buffer.getvalue()


def blind_path(folder: SeedFolder) -> str:
    """Where the scores of the blind classifier stand."""
    return f"{folder.path}/validity/blind.parquet"


def _blind(config: RunConfig, folder: SeedFolder) -> None:
    splits = Splits.load(folder.path)
    loaded = load_images(config.data, splits, config.audited)
    members = set(splits.ids(config.audited[:1]))
    member = np.array([name in members for name in loaded.ids])
    scores = blind_scores(loaded.images, member, seed=folder.seed)
    storage.write_table(blind_path(folder), pa.table({"id": loaded.ids, "member": member, "score": scores}))


if __name__ == "__main__":
    from pipelines.cli import main

    main("attack")
