"""Run attacks: each is fitted once, then scores the audited samples in parts, and is judged on the scores of all.

A part is the samples of some shards, or of all. Its scores are a file, so that a run that was ended goes on with the
parts that are missing. No task holds more than one part.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from mi_core.attacks.base import NotApplicable
from pipelines.attack.canaries import score_canaries
from pipelines.attack.fit import Fitted, Scored, describe, divisible, fit, score, state_bytes
from pipelines.attack.judge import judge
from pipelines.attack.results import Task, write_result
from pipelines.attack.scores import part_path, scores_folder
from pipelines.data.database import parts
from pipelines.data.draw.parts import number_of
from pipelines.data.draw.splits import Splits
from pipelines.errors import UserError
from pipelines.extract.features import NothingAsked
from pipelines.files import storage
from pipelines.run.ray_session import mapped

ONE_PART = 250_000  # audited samples up to which the scores of an attack are one part
_FIT_MEMORY = 6 * 2**30  # bytes: a reference of 2 million samples with 45 numbers each, and what a fit makes of it
_JUDGE_MEMORY = 5 * 2**30  # bytes: 20 million scores in groups, and what a bootstrap makes of them


def audited_names(task: Task) -> list[str]:
    """The names of the two roles that are told apart."""
    return [role.name for role in task.judge.audited]


def is_divided(task: Task) -> bool:
    """Tell whether the scores of an attack are computed in several parts."""
    asked = number_of(Splits.load(task.folder.path), audited_names(task), task.judge.attack.count)
    return divisible(task.judge) and asked > ONE_PART


def run_attack(task: Task) -> None:
    """Fit an attack, score the audited samples and write the result, in this process."""
    begun, fitted = time.time(), _fit(task)
    if fitted is not None:
        _finish(task, fitted, [_score(task, fitted, 0, None)], begun)


def run_divided(tasks: Sequence[Task]) -> None:
    """The same of some attacks on many samples, as Ray tasks.

    Raises:
        UserError: an attack cannot run on the data that the user gave.
    """
    import ray

    names = [f"{task.judge.attack.attack} on {task.target_output}" for task in tasks]
    fits = mapped(_fit, [(task,) for task in tasks], "attacks", "fitting attacks", memory=_FIT_MEMORY, fits=names)
    for task, name, fitted in zip(tasks, names, fits, strict=True):
        if fitted is None:
            continue
        begun, splits = time.time() - fitted.seconds, Splits.load(task.folder.path)
        sizes = {place: splits.size(*place, audited_names(task)) for place in splits.sums.shards}
        shards = parts([place for place, size in sizes.items() if size], sizes.__getitem__)
        known = (task, ray.put(fitted))
        scored = mapped(_score, [(*known, *part) for part in enumerate(shards)], "parts", f"scores of {name}")
        mapped(_finish, [(*known, scored, begun)], "results", f"metrics of {name}", memory=_JUDGE_MEMORY)


def _fit(task: Task) -> Fitted | None:
    """Fit an attack and write the fit; None, and a result that says so, where it does not apply.

    Parts that an earlier run scored stay if the fit is the same.
    """
    splits, fitted = Splits.load(task.folder.path), None
    try:
        fitted = fit(task, splits)
        score_canaries(task, splits, fitted.method)
    except NotApplicable as error:
        _say_not_applicable(task, fitted, str(error))
        return None
    learned, path = state_bytes(fitted.method), f"{task.path}/attack.npz"
    if not storage.exists(path) or storage.read_bytes(path) != learned:
        storage.remove(scores_folder(task))
        storage.write_atomic(path, learned)
    return fitted


def _score(task: Task, fitted: Fitted, number: int, shards: Sequence[tuple[str, str]] | None) -> Scored:
    """Score one part and write its file, unless an earlier run did; of no samples there is none.

    ``shards``: of the part; None: all.
    """
    path, splits = part_path(task, number), Splits.load(task.folder.path)
    if storage.exists(path):
        table = storage.read_table(path, ["member"])
        said = {name.decode(): text.decode() for name, text in (table.schema.metadata or {}).items()}
        return Scored(len(table), int(said["anchors"]), said["fault"])
    try:
        table, scored = score(task, splits if shards is None else splits.at(shards), fitted)
    except NotApplicable as error:
        return Scored(fault=str(error))
    except NothingAsked:  # the attack counts samples, and none of them stands in these shards
        if shards is None:
            raise
        return Scored()
    said = {"anchors": str(scored.anchors), "fault": scored.control_fault}
    storage.write_table(path, table.replace_schema_metadata(said))
    return scored


def _finish(task: Task, fitted: Fitted, parts: Sequence[Scored], begun: float) -> None:
    """Write the result of an attack, all of whose parts are scored.

    Raises:
        UserError: no part has a sample.
    """
    if fault := next((part.fault for part in parts if part.fault), ""):
        _say_not_applicable(task, fitted, fault)
        return
    counted = [part for part in parts if part.samples]
    if not counted:
        raise UserError(f"attacks.{task.judge.position}: no sample that {task.judge.attack.attack} counts was queried")
    whole = Scored(sum(part.samples for part in counted), counted[0].anchors)
    result = describe(task, fitted, whole)
    if fault := next((part.control_fault for part in counted if part.control_fault), ""):
        result = replace(result, control_not_applicable=fault)
    judge(task, fitted, replace(result, scored=whole.samples), begun)


def _say_not_applicable(task: Task, fitted: Fitted | None, why: str) -> None:
    write_result(task, replace(describe(task, fitted, Scored()), not_applicable=why))
