"""What an attack is measured on, as its scores in the run folder tell it: samples, or groups and their worth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mi_core.metrics.histograms import Histogram
from mi_core.metrics.membership import tpr_at_fpr
from mi_core.validity.power import fpr_floor, power_as_json
from pipelines.attack.scores import ScoreSums, Units, scores_path, units_of
from pipelines.attack.tasks import Task
from pipelines.config.load import parse
from pipelines.files import storage
from pipelines.report.verdict import size_of
from pipelines.run.folder import SeedFolder
from tests.conftest import small_config

SIZES = np.array([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 31] * 5)  # 100 albums, worth 12.8


def task_with(folder: Path, columns: dict[str, np.ndarray]) -> Task:
    task = Task(SeedFolder(str(folder), 0), 0, parse(small_config(), "small.yaml").attacks[0], "backbone", 3)
    storage.write_table(scores_path(task), pa.table(columns))
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


def test_an_audit_sees_what_its_albums_are_worth(tmp_path: Path) -> None:
    found = size_of(parse(small_config(), "small.yaml"), units_of(task_with(tmp_path, albums())))
    assert (found["n_candidate"], found["n_control"]) == (100, 100)
    assert found["power"] == power_as_json(12, 12, by="lot", factor=2.0)
    assert found["fpr_floor"] == fpr_floor(12)


def test_the_smallest_rate_is_one_that_is_measured() -> None:
    """At it the rate is supported, and just below it is not."""
    sizes = np.tile([1, 2, 3, 6], 100)
    group = np.repeat(np.arange(800), np.tile(sizes, 2))
    member = group < 400
    worth = sizes.sum() ** 2 / (sizes**2).sum()
    scores = np.random.default_rng(0).normal(size=len(group))
    floor = size_of(parse(small_config(), "small.yaml"), Units((400, 400), (worth, worth)))["fpr_floor"]
    assert tpr_at_fpr(scores, member, floor, groups=group, seed=0, resamples=10).supported
    assert not tpr_at_fpr(scores, member, 0.98 * floor, groups=group, seed=0, resamples=10).supported


def test_sums_keep_the_worth_of_groups(tmp_path: Path) -> None:
    both = (Histogram.of(np.arange(9.0)), Histogram.of(np.arange(7.0)))
    sums = ScoreSums(2, {"score": both}, (1, 1), groups=(3, 2), worths=(2.5, 1.75))
    sums.save(str(tmp_path / "sums.npz"))
    assert ScoreSums.load(str(tmp_path / "sums.npz")).units == Units((3, 2), (2.5, 1.75))
    assert ScoreSums(2, {"score": both}, (1, 1)).units == Units((9, 7), (9, 7))
