"""Which attacks of a run are bounded, on which images, and what of the bound is registered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mi_core.records import Estimate
from mi_core.registration import PLAN, is_after_looking
from mi_core.report.model.attacks import AttackResult
from mi_core.validity.bound import auc_limits
from mi_core.validity.verdict import CHOICE
from pipelines.attack.blind import blind_path, semantic_path
from pipelines.attack.results import Result, Task, result_of, write_result
from pipelines.attack.scores import part_path
from pipelines.audit.run import register
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.plan.load import parse
from pipelines.report.finished import FinishedRun
from pipelines.report.verdict import bounds, limits_of
from pipelines.run.folder import RunFolder
from pipelines.run.points import Run
from pipelines.run.registration import lines_of
from tests.conftest import small_config
from tests.pipelines.report.made import made_run

GAPS = {"encodermi-t": 0.2, "lpla": 1.0}
CHOSEN: dict[str, Any] = {
    "seeds": [0, 1],
    "defenses": [{"defense": "output-noise", "of": ["target"], "label": "noise"}],
    "validity": {"bound": 0.6},
}


def scored(task: Task, *, group: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Scores of 120 images, or of 60 groups of two; members of a defended encoder score as others do."""
    judge = task.judge
    gap = 0.0 if "+" in judge.attack.target else GAPS[judge.attack.attack]
    random = np.random.default_rng([judge.seed, judge.position, judge.epoch, len(judge.output)])
    member = np.arange(120) < 60
    score = np.repeat(random.normal(size=120 // group), group) + gap * member
    columns = {"id": [f"digits/{row:04d}" for row in range(120)], "score": score, "member": member}
    storage.write_table(part_path(task, 0), pa.table(columns))
    write_result(task, Result())
    return score, member


def results_of(run: FinishedRun) -> list[AttackResult]:
    auc = Estimate(0.5, 0.4, 0.6, 120)
    tasks = [task for task in run.tasks() if result_of(task).not_applicable is None]
    return [
        AttackResult(
            attack=task.judge.attack.attack,
            target=task.judge.attack.target,
            output=task.judge.output,
            reference=task.judge.attack.reference,
            seed=task.judge.seed,
            epoch=task.judge.epoch,
            n_member=60,
            n_nonmember=60,
            auc=auc,
            tpr_at_fpr={},
        )
        for task in tasks
    ]


@pytest.fixture
def run(tmp_path: Path) -> FinishedRun:
    folder = RunFolder(str(made_run(tmp_path / "run", **CHOSEN)))
    return FinishedRun.at(parse(small_config(**CHOSEN), "small.yaml"), folder)


def at_end(run: FinishedRun, attack: str, target: str) -> list[Task]:
    """The attacks on the primary output at the last checkpoint, one a seed."""
    output = run.primaries()[0].judge.output
    return [
        task
        for task in run.tasks()
        if (task.judge.attack.attack, task.judge.attack.target, task.judge.output) == (attack, target, output)
        and task.judge.last
    ]


def test_all_attacks_on_the_primary_output_at_the_end_are_bounded_and_defended_encoders_by_themselves(
    run: FinishedRun,
) -> None:
    scores = {task.path: scored(task) for task in run.tasks()}
    assert len({(task.judge.output, task.judge.epoch) for task in run.tasks()}) > 2  # others are left out
    plain, defended = bounds(run, results_of(run))
    assert (plain.target, plain.output, plain.epoch) == ("target", run.primaries()[0].judge.output, 3)
    assert defended.target == "target+noise"
    assert [row.attack for row in plain.limits] == [row.attack for row in defended.limits] == ["encodermi-t", "lpla"]
    for part in (plain, defended):
        assert (part.attacks, part.planned, part.bound, part.registered) == (2, 2, 0.6, True)
        for row in part.limits:
            own = [auc_limits(*scores[task.path]) for task in at_end(run, row.attack, part.target)]
            assert len(own) == 2
            assert row.auc == pytest.approx(np.mean([each.value for each in own]))
            assert min(each.low for each in own) < row.low < row.auc < row.high < max(each.high for each in own)
    assert plain.outcome == "not met" and plain.attack == "lpla"
    assert defended.outcome == "met"


def test_an_attack_that_does_not_apply_is_none_of_them(run: FinishedRun) -> None:
    for task in run.tasks():
        scored(task)
        if task.judge.attack.attack == "lpla":
            write_result(task, Result(not_applicable="no norms"))
    plain, _ = bounds(run, results_of(run))
    assert ([row.attack for row in plain.limits], plain.planned) == (["encodermi-t"], 2)


def test_bursts_count_as_one_where_somebody_chose_the_groups(run: FinishedRun) -> None:
    (first, _), pairs = at_end(run, "lpla", "target"), np.arange(120) // 2
    ids = [f"digits/{row:04d}" for row in range(120)]
    score, member = scored(first, group=2)
    by_choice = Task(replace(first.judge, by=CHOICE), first.folder)
    storage.write_table(blind_path(first.folder), pa.table({"id": ids, "score": np.zeros(120)}))
    assert limits_of(by_choice) == auc_limits(score, member)
    seen = {"id": ids, "member": member, "score": np.zeros(120), "group": pairs}
    storage.write_table(semantic_path(first.folder), pa.table(seen))
    assert limits_of(by_choice) == auc_limits(score, member, pairs)
    assert limits_of(first) == auc_limits(score, member)  # a lot dealt each image by itself


def test_by_choice_the_images_count_that_the_classifiers_saw(run: FinishedRun) -> None:
    (first, _) = at_end(run, "lpla", "target")
    score, member = scored(first)
    by_choice, rows = Task(replace(first.judge, by=CHOICE), first.folder), np.arange(120) % 3 == 0
    for seen, counted in ((rows, rows), (np.arange(120) == 0, np.ones(120, dtype=bool))):  # of one nothing follows
        ids = [f"digits/{row:04d}" for row in np.flatnonzero(seen)]
        storage.write_table(blind_path(first.folder), pa.table({"id": ids, "score": np.zeros(len(ids))}))
        assert limits_of(by_choice) == auc_limits(score[counted], member[counted])


def test_the_bound_is_registered_and_another_one_after_the_first_query_is_told(run: FinishedRun) -> None:
    for task in run.tasks():
        scored(task)
    assert lines_of(run.folder)[-3]["event"] == PLAN
    assert lines_of(run.folder)[-3]["bound"] == 0.6
    lower = parse(small_config(**CHOSEN | {"validity": {"bound": 0.9}}), "small.yaml")
    register([Run(lower, run.folder)])
    assert [line.get("bound") for line in lines_of(run.folder) if line["event"] == PLAN] == [0.6, 0.9]
    assert not is_after_looking(lines_of(run.folder))  # the verdict does not rest on it
    late = bounds(FinishedRun.at(lower, run.folder), results_of(run))[0]
    assert (late.bound, late.outcome, late.registered) == (0.9, "met", False)


def test_without_a_bound_there_is_no_outcome(run: FinishedRun) -> None:
    for task in run.tasks():
        scored(task)
    free = parse(small_config(**CHOSEN | {"validity": {}}), "small.yaml")
    part = bounds(FinishedRun.at(free, run.folder), results_of(run))[0]
    assert (part.bound, part.outcome, part.registered) == (None, None, None)
    assert part.outcome_of(0.51) == "not met"


@pytest.mark.parametrize("bound", [0.5, 1.01, "x"])
def test_an_impossible_bound_is_refused(bound: object) -> None:
    with pytest.raises(UserError, match=r"validity.bound"):
        parse(small_config(validity={"bound": bound}), "small.yaml")
