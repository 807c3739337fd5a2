"""Guesses by the scores of a seed, as they stand in the run folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from mi_core.validity.one_run import Guesses
from pipelines.attack.canaries import CANARIES, guessed
from pipelines.attack.results import Task
from pipelines.files import storage
from pipelines.plan.load import parse
from pipelines.run.folder import SeedFolder
from tests.conftest import small_config
from tests.pipelines.undrawn import plan_in


def task_with(folder: Path, scores: np.ndarray, inside: np.ndarray) -> Task:
    task = Task(plan_in(parse(small_config(), "small.yaml")).judges[0], SeedFolder(str(folder), 0))
    ids = [f"digits/{number:05d}" for number in range(len(scores))]
    storage.write_table(f"{task.path}/{CANARIES}", pa.table({"id": ids, "score": scores, "inside": inside}))
    return task


def test_high_scores_are_guessed_in(tmp_path: Path) -> None:
    inside = np.arange(100) % 2 == 0
    task = task_with(tmp_path, np.where(inside, 1.0, -1.0) * (1 + np.arange(100) / 100), inside)
    assert guessed(task, [10, 100]) == [Guesses(100, 10, 10), Guesses(100, 100, 100)]


def test_the_order_of_the_file_does_not_tell_the_coins(tmp_path: Path) -> None:
    """All scores are equal, and the canaries that are in come first, or last."""
    for name, inside in (("a", np.arange(1000) < 500), ("b", np.arange(1000) >= 500)):
        (found,) = guessed(task_with(tmp_path / name, np.zeros(1000), inside), [1000])
        assert 430 < found.correct < 570


def test_rejected_canaries_are_not_guessed(tmp_path: Path) -> None:
    assert guessed(task_with(tmp_path, np.arange(7.0), np.arange(7) > 2), [10]) == [Guesses(7, 7, 7)]
