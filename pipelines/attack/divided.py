"""Attacks on more samples than one process should hold: each is fitted once, then scores them in parts.

A part is the samples of some shards. Its scores are a file, so that a run that was ended goes on with the parts that
are missing. No task holds more than some parts; metrics come from histograms of the scores, which add up.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from mi_core.attacks.base import NotApplicable
from pipelines.attack.fitting import Fitted, divisible, fit, outline, packed, score
from pipelines.attack.scores import in_turn, part_path, parts_folder
from pipelines.attack.summed import add_up, finish
from pipelines.attack.tasks import Task
from pipelines.config.run_config import RunConfig
from pipelines.data.first import number_of
from pipelines.data.splits import Splits
from pipelines.data.tasks import parts
from pipelines.errors import UserError
from pipelines.extract.features import NothingAsked
from pipelines.files import storage
from pipelines.run.ray_session import TASK_MEMORY, mapped

EXACT = 250_000  # audited samples up to which an attack is one task, and its metrics are exact
_FIT_MEMORY = 6 * 2**30  # bytes: a reference of 2 million samples with 45 numbers each, and what a fit makes of it


def is_divided(config: RunConfig, task: Task) -> bool:
    """Whether the scores of an attack are computed in parts."""
    asked = number_of(Splits.load(task.folder.path), config.audited, task.attack.count)
    return divisible(config, task) and asked > EXACT


def run_divided(config: RunConfig, tasks: Sequence[Task]) -> None:
    """Fit some attacks, score the audited samples part by part, and write the results.

    Raises:
        UserError: an attack cannot run on the data that the user gave.
    """
    import ray

    common = ray.put(config)
    fits = mapped(_fit, [(common, task) for task in tasks], "attacks", "fitting attacks", memory=_FIT_MEMORY)
    for task, fitted in zip(tasks, fits, strict=True):
        if fitted is not None:
            _run(config, task, fitted)


def _fit(config: RunConfig, task: Task) -> Fitted | None:
    """Fit an attack and write the fit; None, and a result that says so, where it does not apply.

    Parts that an earlier run scored stay if the fit is the same.
    """
    place = task.folder.attack(task.name)
    try:
        fitted = fit(config, task, Splits.load(task.folder.path))
    except NotApplicable as error:
        _say_not_applicable(config, task, None, str(error))
        return None
    learned = packed(fitted.method)
    path = f"{place}/attack.npz"
    if not storage.exists(path) or storage.read_bytes(path) != learned:
        storage.remove(parts_folder(task))
        storage.write_atomic(path, learned)
    return fitted


@dataclass(frozen=True)
class _Part:
    """What a part's task says of it: numbers as in `Scored`, or why the attack does not apply."""

    samples: int = 0
    spent: int | None = None
    anchors: int = 0
    control_fault: str = ""
    fault: str = ""

    def metadata(self) -> dict[str, str]:
        """As texts, for the part's file."""
        spent = "" if self.spent is None else str(self.spent)
        return {"spent": spent, "anchors": str(self.anchors), "fault": self.control_fault}

    @classmethod
    def read(cls, path: str) -> _Part:
        """What the file of an earlier task says."""
        table = storage.read_table(path, ["member"])
        said = {name.decode(): text.decode() for name, text in (table.schema.metadata or {}).items()}
        spent = None if said["spent"] == "" else int(said["spent"])
        return cls(len(table), spent, int(said["anchors"]), said["fault"])


def _run(config: RunConfig, task: Task, fitted: Fitted) -> None:
    import ray

    started = time.time()
    splits = Splits.load(task.folder.path)
    audited = [place for place in splits.sums.shards if splits.size(*place, config.audited)]
    shards = list(parts(audited, lambda place: splits.size(*place, config.audited)))
    given = [ray.put(config), task, ray.put(fitted)]
    name = f"{task.attack.attack} on {task.target_output}"
    scored = mapped(_score, [(*given, *numbered) for numbered in enumerate(shards)], "parts", f"scores of {name}")
    fault = next((part.fault for part in scored if part.fault), "")
    if fault:
        _say_not_applicable(config, task, fitted, fault)
        return
    paths = [part_path(task, number) for number in range(len(shards))]
    _fill(task, scored, paths)
    counted = [part for part in scored if part.samples]
    spent = None if counted[0].spent is None else sum(part.spent for part in counted)
    samples = sum(part.samples for part in counted)
    result = outline(config, task, fitted, (samples, spent, counted[0].anchors))
    control_fault = next((part.control_fault for part in scored if part.control_fault), "")
    result |= {"control_not_applicable": control_fault} if control_fault else {}
    threshold = fitted.method.threshold
    added = mapped(
        add_up,
        [(task, number, some, threshold) for number, some in enumerate(in_turn(paths))],
        "parts",
        f"sums of {name}",
    )
    result["seconds_fit"] = round(fitted.seconds, 3)
    mapped(
        finish, [(*given, result, paths, len(added), started)], "results", f"metrics of {name}", memory=2 * TASK_MEMORY
    )


def _score(config: RunConfig, task: Task, fitted: Fitted, number: int, shards: Sequence[tuple[str, str]]) -> _Part:
    """Score one part and write its file, unless an earlier run did; of no samples there is no file yet."""
    path = part_path(task, number)
    if storage.exists(path):
        return _Part.read(path)
    try:
        scored = score(config, task, Splits.load(task.folder.path).at(shards), fitted)
    except NotApplicable as error:
        return _Part(fault=str(error))
    except NothingAsked:  # the attack counts samples, and none of them stands in these shards
        return _Part()
    part = _Part(len(scored.table), scored.spent, scored.anchors, scored.control_fault)
    storage.write_table(path, scored.table.replace_schema_metadata(part.metadata()))
    return part


def _fill(task: Task, scored: Sequence[_Part], paths: Sequence[str]) -> None:
    """Write the files of parts without a sample, with the columns of the others.

    Raises:
        UserError: no part has a sample.
    """
    like = next((path for part, path in zip(scored, paths, strict=True) if part.samples), None)
    if like is None:
        raise UserError(f"attacks.{task.position}: no sample that {task.attack.attack} counts was queried")
    empty = [path for part, path in zip(scored, paths, strict=True) if not part.samples]
    if empty:
        table = storage.read_table(like).slice(0, 0).replace_schema_metadata(_Part().metadata())
        for path in empty:
            storage.write_table(path, table)


def _say_not_applicable(config: RunConfig, task: Task, fitted: Fitted | None, why: str) -> None:
    result = outline(config, task, fitted, (0, None, 0)) | {"not_applicable": why}
    storage.write_json(f"{task.folder.attack(task.name)}/result.json", result)
