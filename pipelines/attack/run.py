"""Fit attacks on their reference, score the target's samples, and run the controls, as Ray tasks.

One task per (seed, attack, output, checkpoint); a task whose result is on disk is skipped. Labels meet the
features only here. The same fitted attack also scores the same samples on the control encoder.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import torch

from mi_core.attacks.base import Attack, NotApplicable
from mi_core.metrics.delong import auc
from mi_core.metrics.membership import evaluate
from mi_core.records import Features
from pipelines.attack.blind import blind_path, run_blind, telling_path
from pipelines.attack.evidence import of_dataset
from pipelines.attack.inference import inferences, planes, run_inference, run_plane
from pipelines.attack.tasks import Task, evaluated_of, features_of, reference_of, tasks
from pipelines.attack.utility import measure, utility_path
from pipelines.config.demands import SEQUENTIAL
from pipelines.config.run_config import RunConfig
from pipelines.console import count_of, say
from pipelines.data.splits import Splits
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.run.folder import SeedFolder
from pipelines.run.once import Once
from pipelines.run.points import Run
from pipelines.run.ray_session import mapped


def run(runs: Sequence[Run]) -> None:
    """Run every attack, utility measurement and control of some runs that is not on disk yet.

    A result that several runs share is computed once, for the first; the others get a copy.
    """
    every = [
        replace(piece, run=number)
        for number, (config, folder) in enumerate(runs)
        for seed in config.seeds
        for piece in _work(config, folder.seed(seed))
    ]
    once = Once(every, lambda piece: piece.identity, lambda piece: storage.exists(piece.path))
    work, whole = once.todo(), len(once.first)
    if len(work) < whole:
        say("attack", f"{whole - len(work)} of {whole} results already done")
    if work:
        _compute(work, runs)
    once.share(_copy)


def here(config: RunConfig, folder: SeedFolder) -> None:
    """Do the same for one seed in this process: a trial of a search is itself a Ray task.

    Raises:
        UserError, ConfigError, NumericError, ShapeError: an attack cannot run on this data.
    """
    for piece in _work(config, folder):
        if not storage.exists(piece.path):
            piece.function(config, *piece.arguments)


def _compute(work: Sequence[_Work], runs: Sequence[Run]) -> None:
    """Compute results as Ray tasks.

    Raises:
        UserError: an attack cannot run on the data that the user gave.
    """
    import ray

    started = time.perf_counter()
    configs = [ray.put(config) for config, _ in runs]
    given = [(piece.function, configs[piece.run], *piece.arguments) for piece in work]
    mapped(_call, given, "results", "attacks and controls")
    say("attack", f"{count_of(len(work), 'result', 'results')}, {time.perf_counter() - started:.0f} s")


@dataclass(frozen=True)
class _Work:
    """A result file to make, and the files written before it; equal identities mean equal contents."""

    path: str
    function: Callable[..., None]
    arguments: tuple[Any, ...]
    identity: str
    beside: tuple[str, ...] = ()
    run: int = 0  # the position of the run that asks for it

    @property
    def place(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def _copy(done: _Work, piece: _Work) -> None:
    """Copy a result file, after the files beside it."""
    for name in [name for name in (*piece.beside, piece.name) if storage.exists(f"{done.place}/{name}")]:
        storage.copy(f"{done.place}/{name}", f"{piece.place}/{name}")


def _work(config: RunConfig, folder: SeedFolder) -> Iterator[_Work]:
    common = config.model_dump(mode="json", include={"data", "encoders", "queries", "fold"}), folder.seed
    for task in tasks(config, folder):
        same = digest(common, task.name, task.attack.model_dump(mode="json"), task.control)
        files = ("scores.parquet", "attack.npz")
        yield _Work(f"{folder.attack(task.name)}/result.json", _attack, (task,), same, files)
    for name in config.measured:
        for epoch in config.attacked_epochs(name):
            same = digest(common, name, epoch, config.utility.model_dump(mode="json"))
            yield _Work(utility_path(folder, name, epoch), measure, (folder, name, epoch), same)
    for inference in inferences(config, folder):
        same = digest(common, inference.epoch, inference.config.model_dump(mode="json"))
        yield _Work(inference.path, run_inference, (inference,), same)
    for plane in planes(config, folder):
        chosen = plane.config
        same = digest(common, "plane", plane.epoch, chosen.attribute, chosen.target, chosen.output, chosen.test)
        yield _Work(plane.map_path, run_plane, (plane,), same)
    if config.fold == "all":
        beside = (telling_path(folder).rpartition("/")[2],)
        yield _Work(blind_path(folder), run_blind, (folder,), digest(common, config.audited), beside)


def _call(function: Callable[..., None], config: RunConfig, *arguments: Any) -> None:
    """Call a function with one thread, which is what its Ray task holds."""
    torch.set_num_threads(1)
    function(config, *arguments)


def _attack(config: RunConfig, task: Task) -> None:
    started = time.perf_counter()
    attack = task.attack
    method = attack.method()(attack.parameters(), seed=task.folder.seed)
    splits = Splits.load(task.folder.path)
    reference = reference_of(config, task, splits, attack.target)
    evaluated = evaluated_of(config, task, splits)
    place = task.folder.attack(task.name)
    repeats = config.queries.repeats
    queries = method.queries_per_sample(attack.views or config.queries.views) * repeats
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
            "attack_training": queries * len(reference.features) + _anchors(reference.features) * repeats,
            "evaluation": _spent(evaluated, queries, repeats)
            + (_anchors(evaluated) * repeats if config.shadows(attack) else 0),
        },
    }
    if task.stopping is not None:
        result["queries"]["mean_per_sample"] = result["queries"]["evaluation"] / len(evaluated)
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
    member = splits.among(evaluated.ids, config.audited[:1])
    columns: dict[str, Any] = {"id": evaluated.ids.tolist(), "member": member, "score": scores}
    statistic = method.statistic(evaluated)
    if statistic is not None:
        columns["statistic"] = statistic
    if control is not None:
        columns["control"] = control
    groups = splits.groups(evaluated.ids.tolist())
    metrics = evaluate(scores, member, method.threshold, seed=task.folder.seed, groups=groups)
    if config.fold == "all" and task.epoch == config.attacked_epochs(attack.target)[-1]:
        result["evidence"] = of_dataset(config, task, splits, method, scores, member, groups)
        if control is not None:
            result["evidence"]["control_auc"] = auc(control, member, groups).as_json()
    storage.write_table(f"{place}/scores.parquet", pa.table(columns))
    storage.write_atomic(f"{place}/attack.npz", _packed(method.state()))
    result["seconds"] = round(time.perf_counter() - started, 3)
    result["seconds_fit"] = round(scoring - fitting, 3)
    result["metrics"] = metrics.as_json()
    storage.write_json(f"{place}/result.json", result)


def _spent(evaluated: Features, queries: int, repeats: int) -> int:
    """Queries spent on the samples: as the stopping rule decided, or ``queries`` per sample without a rule."""
    decided = evaluated.values.get(SEQUENTIAL)
    return queries * len(evaluated) if decided is None else int(decided[:, 0].sum()) * repeats


def _anchors(features: Features) -> int:
    return 0 if features.anchors is None else len(features.anchors)


def _control_scores(config: RunConfig, task: Task, splits: Splits, method: Attack, evaluated: Features) -> np.ndarray:
    """Scores of the same attack on the control encoder; an attack fitted on samples of its target is fitted anew."""
    assert task.control is not None
    features = features_of(config, task, splits, task.control, config.audited)
    row_of = {name: row for row, name in enumerate(features.ids)}
    if not config.shadows(task.attack):
        method = task.attack.method()(task.attack.parameters(), seed=task.folder.seed)
        method.fit(reference_of(config, task, splits, task.control))
    return method.score(features.take(np.array([row_of[name] for name in evaluated.ids])))


def _packed(state: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **cast(Any, state))
    return buffer.getvalue()
