"""An attack that is fitted on the audited samples: through the stages, judged on all of them, and its limits."""

from __future__ import annotations

import shutil
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from mi_core.report.contents import schema
from pipelines.attack import fit as fitting
from pipelines.attack.fit import divisible, fit
from pipelines.attack.results import Task, tasks
from pipelines.attack.scores import part_path
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import plan_of
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.plan.load import parse
from pipelines.run.folder import RunFolder
from tests.conftest import small_config
from tests.pipelines import staged

pytestmark = pytest.mark.ray

COMBINED = {"attack": "combined", "reference": "audited", "grid": "3x1"}


@pytest.fixture(scope="module")
def run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited") / "run"
    shutil.copytree(trained_run, folder)
    return staged.judge(parse(small_config(attacks=[COMBINED, {"attack": "lpla", "reference": "known"}]), "x"), folder)


def test_all_audited_samples_are_judged_and_the_control_learns_anew(run: Path) -> None:
    report = storage.read_json(f"{run}/report.json")
    jsonschema.validate(report, schema())
    entry = report["attacks"][0]
    assert entry["attack"] == "combined"
    assert entry["reference"] == "audited"
    assert entry["auc"]["n"] == 120
    assert entry["queries"] == {"per_sample": 8, "attack_training": 0, "evaluation": 960}
    result = storage.read_json(f"{run}/seed-0/attacks/combined-0-projection-0003/result.json")
    assert set(result["evidence"]) == {"test", "least_share", "control_auc"}
    assert "fitted on the audited samples before the one that is judged" in (run / "report.html").read_text()


def tasks_of(run: Path) -> list[Task]:
    """The attack on the audited samples, on each checkpoint and output."""
    return tasks(plan_of(parse(small_config(attacks=[COMBINED]), "x"), RunFolder(str(run)).seed(0)))


def test_scores_and_control_come_from_separate_fits(run: Path) -> None:
    task = next(one for one in tasks_of(run) if one.judge.epoch == 3)
    table = storage.read_table(part_path(task, 0))
    fitted = fit(task, Splits.load(task.folder.path))
    assert not divisible(task.judge)
    (beside,) = fitted.beside
    for column, method in (("score", fitted.method), ("control", beside.method)):
        state = method.state()
        np.testing.assert_array_equal(state["names"], np.sort(table["id"].to_numpy(zero_copy_only=False).astype(str)))
        by_name = dict(zip(state["names"].tolist(), state["scores"].tolist(), strict=True))
        assert [by_name[name] for name in table["id"].to_pylist()] == table[column].to_pylist()
    assert not np.array_equal(fitted.method.state()["scores"], beside.method.state()["scores"])


def test_too_many_samples_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MOST_AUDITED", 119)
    task = tasks_of(run)[0]
    with pytest.raises(UserError, match=r"attacks\.0: combined with reference = 'audited' takes 119 .*, got 120; set"):
        fit(task, Splits.load(task.folder.path))
