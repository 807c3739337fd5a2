"""What an attack is measured on, as its scores in the run folder tell it: samples, or groups and their worth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mi_core.metrics.membership import tpr_at_fpr
from mi_core.records import Estimate
from mi_core.report.build import evidence, verdict_part
from mi_core.report.model.judgement import Evidence
from mi_core.validity.power import detectable_auc, fpr_floor
from mi_core.validity.verdict import Validity
from pipelines.attack import scores
from pipelines.attack.results import Task
from pipelines.attack.scores import Units, judged, part_path, rows_of, units_of
from pipelines.files import storage
from pipelines.plan.load import parse
from pipelines.run.folder import SeedFolder
from tests.conftest import small_config
from tests.pipelines.undrawn import plan_in

SIZES = np.array([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 31] * 5)  # 100 albums, worth 12.8


def bare_task(folder: Path) -> Task:
    return Task(plan_in(parse(small_config(), "small.yaml")).judges[0], SeedFolder(str(folder), 0))


def task_with(folder: Path, columns: dict[str, np.ndarray]) -> Task:
    task = bare_task(folder)
    storage.write_table(part_path(task, 0), pa.table(columns))
    return task


def albums() -> dict[str, np.ndarray]:
    """Members and non-members in 100 albums each."""
    group = np.repeat(np.arange(200), np.tile(SIZES, 2))
    return {"score": np.zeros(len(group)), "member": group < 100, "group": group}


def test_albums_of_unlike_sizes_are_worth_fewer(tmp_path: Path) -> None:
    worth = SIZES.sum() ** 2 / (SIZES**2).sum()
    units = units_of(task_with(tmp_path, albums()))
    assert units.counts == (100, 100)
    assert units.worths == pytest.approx((worth, worth))
    even = {"score": np.zeros(12), "member": np.arange(12) < 6, "group": np.arange(12) // 3}
    assert units_of(task_with(tmp_path / "even", even)) == Units((2, 2), (2.0, 2.0))
    alone = {"score": np.zeros(12), "member": np.arange(12) < 5}
    assert units_of(task_with(tmp_path / "alone", alone)) == Units((5, 7), (5, 7))


def evidence_of(units: Units) -> Evidence:
    """What an audit by lot of so many images can find."""
    half = Estimate(0.5, 0.4, 0.6, 200)
    verdict = verdict_part({0: Validity(half, half, by="lot", p_value=0.5)})
    return evidence(verdict, (), counts=units.counts, worths=units.worths, telling={})


def test_an_audit_sees_what_its_albums_are_worth(tmp_path: Path) -> None:
    found = evidence_of(units_of(task_with(tmp_path, albums())))
    assert (found.n_candidate, found.n_control) == (100, 100)
    expected = [detectable_auc(12, 12, share=one.used, by="lot", factor=2.0) for one in found.power]
    assert [one.auc for one in found.power] == expected
    assert found.fpr_floor == fpr_floor(12)


def test_the_smallest_rate_is_one_that_is_measured() -> None:
    """At it the rate is supported, and just below it is not."""
    sizes = np.tile([1, 2, 3, 6], 100)
    group = np.repeat(np.arange(800), np.tile(sizes, 2))
    member = group < 400
    worth = sizes.sum() ** 2 / (sizes**2).sum()
    scores = np.random.default_rng(0).normal(size=len(group))
    floor = evidence_of(Units((400, 400), (worth, worth))).fpr_floor
    assert tpr_at_fpr(scores, member, floor, groups=group, seed=0, resamples=10).supported
    assert not tpr_at_fpr(scores, member, 0.98 * floor, groups=group, seed=0, resamples=10).supported


def test_of_many_samples_some_are_judged_that_their_ids_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the samples stand in parts: the same are drawn, about as many as asked for, all columns of each."""
    number = np.arange(3000)
    columns = {"id": [f"pool/{one:05d}" for one in number], "score": number / 2, "member": number % 2 == 0}
    whole = task_with(tmp_path / "whole", columns)
    divided = task_with(tmp_path / "divided", {name: values[:700] for name, values in columns.items()})
    for part, rows in ((1, slice(700, 1900)), (2, slice(1900, None))):
        storage.write_table(part_path(divided, part), pa.table({name: of[rows] for name, of in columns.items()}))
    monkeypatch.setattr(scores, "_AT_ONCE", 2)
    assert judged(divided, ("score", "member", "group"), 3000).equals(pa.table(columns).select(["score", "member"]))
    drawn = judged(divided, ("member", "id", "score"), 1000)
    assert drawn.equals(judged(whole, ("member", "id", "score"), 1000))
    assert 900 < len(drawn) < 1100
    chosen = np.array([int(one.rpartition("/")[2]) for one in drawn["id"].to_pylist()])
    np.testing.assert_array_equal(np.asarray(drawn["score"]), chosen / 2)
    assert abs(np.asarray(drawn["member"]).mean() - 0.5) < 0.06  # 1,000 coins: 3.8 standard deviations
    assert rows_of(divided, columns["id"][1500:1503])["score"].to_pylist() == [750.0, 750.5, 751.0]
