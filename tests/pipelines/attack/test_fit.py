"""Attacks fitted in ways of their own, through the stages: on the audited samples, and on an earlier encoder."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.report.contents import schema
from pipelines.attack import fit as fitting
from pipelines.attack.fit import divisible, fit
from pipelines.attack.results import Task, tasks
from pipelines.attack.scores import part_path
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import plan_of
from pipelines.errors import UserError
from pipelines.extract.features import read
from pipelines.files import storage
from pipelines.plan.items import Reading
from pipelines.run.folder import RunFolder, SeedFolder
from tests.conftest import config_with, report_of
from tests.pipelines import staged

pytestmark = pytest.mark.ray

ATTACKS = [
    {"attack": "combined", "reference": "audited", "grid": "3x1"},
    {"attack": "lpla", "reference": "known"},
    {"attack": "update", "reference": "nonmembers", "before": "shadow", "fpr": 0.2},
]


@pytest.fixture(scope="module")
def run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fitted") / "run"
    shutil.copytree(trained_run, folder)
    return staged.judge(config_with(attacks=ATTACKS), folder)


def last_task(run: Path, attack: str) -> Task:
    """An attack on the first output at the last checkpoint."""
    every = tasks(plan_of(config_with(attacks=ATTACKS), RunFolder(str(run)).seed(0)))
    return next(one for one in every if (one.judge.attack.attack, one.judge.epoch) == (attack, 3))


def test_all_audited_samples_are_judged_and_the_control_learns_anew(run: Path) -> None:
    report = report_of(run)
    jsonschema.validate(report, schema())
    entry = report["attacks"][0]
    assert (entry["attack"], entry["reference"], entry["auc"]["n"]) == ("combined", "audited", 120)
    assert entry["queries"] == {"per_sample": 8, "attack_training": 0, "evaluation": 960}
    result = storage.read_json(f"{run}/seed-0/attacks/combined-0-projection-0003/result.json")
    assert set(result["evidence"]) == {"test", "least_share", "control_auc"}
    assert "fitted on the audited samples before the one that is judged" in (run / "report.html").read_text()


def test_scores_and_control_come_from_separate_fits(run: Path) -> None:
    task = last_task(run, "combined")
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
    task = last_task(run, "combined")
    with pytest.raises(UserError, match=r"attacks\.0: combined with reference = 'audited' takes 119 .*, got 120; set"):
        fit(task, Splits.load(task.folder.path))


def similarities(folder: SeedFolder, reading: Reading) -> tuple[list[str], np.ndarray]:
    """Ids and Fisher's z of the mean cosine, of one encoder by itself."""
    features = read(folder, replace(reading, before=None))
    cosines = np.asarray(features[PairwiseSimilarity()], dtype=np.float64).mean(axis=1)
    return features.ids.tolist(), np.arctanh(cosines)


def test_the_score_of_an_update_is_what_the_earlier_encoder_does_not_explain(run: Path) -> None:
    task = last_task(run, "update")
    fitted, judged = task.judge.score.fit.readings[0], task.judge.score.reading
    assert judged.before is not None
    assert fitted.before is not None
    line = np.polyfit(similarities(task.folder, fitted.before)[1], similarities(task.folder, fitted)[1], 1)
    ids, after = similarities(task.folder, judged)
    ids_before, before = similarities(task.folder, judged.before)
    assert ids == ids_before
    table = storage.read_table(part_path(task, 0))
    scores = dict(zip(table["id"].to_pylist(), table["score"].to_pylist(), strict=True))
    np.testing.assert_allclose([scores[name] for name in ids], after - np.polyval(line, before), atol=1e-9)
    entry = next(one for one in report_of(run)["attacks"] if one["attack"] == "update")
    assert (entry["reference"], entry["auc"]["n"]) == ("nonmembers", len(ids))
