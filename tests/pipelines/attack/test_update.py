"""An attack on two versions of an encoder through the stages: the stored score is the residual of both answers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mi_core.features.pairwise_similarity import PairwiseSimilarity
from pipelines.attack.results import tasks
from pipelines.attack.scores import part_path
from pipelines.data.plans import plan_of
from pipelines.extract.features import read
from pipelines.files import storage
from pipelines.plan.items import Reading
from pipelines.plan.load import parse
from pipelines.run.folder import RunFolder, SeedFolder
from tests.conftest import small_config
from tests.pipelines import staged

pytestmark = pytest.mark.ray

UPDATE = {"attack": "update", "reference": "nonmembers", "before": "shadow", "fpr": 0.2}


@pytest.fixture(scope="module")
def run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("update") / "run"
    shutil.copytree(trained_run, folder)
    return staged.judge(parse(small_config(attacks=[UPDATE]), "x"), folder)


def similarities(folder: SeedFolder, reading: Reading) -> tuple[list[str], np.ndarray]:
    """Ids and Fisher's z of the mean cosine, of one encoder by itself."""
    features = read(folder, replace(reading, before=None))
    cosines = np.asarray(features[PairwiseSimilarity()], dtype=np.float64).mean(axis=1)
    return features.ids.tolist(), np.arctanh(cosines)


def test_the_score_is_what_the_earlier_encoder_does_not_explain(run: Path) -> None:
    plan = plan_of(parse(small_config(attacks=[UPDATE]), "x"), RunFolder(str(run)).seed(0))
    task = next(one for one in tasks(plan) if one.judge.epoch == 3)
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


def test_it_is_judged_like_any_attack(run: Path) -> None:
    entry = storage.read_json(f"{run}/report.json")["attacks"][0]
    assert (entry["attack"], entry["reference"], entry["auc"]["n"]) == ("update", "nonmembers", len(_judged(run)))


def _judged(run: Path) -> list[str]:
    task = tasks(plan_of(parse(small_config(attacks=[UPDATE]), "x"), RunFolder(str(run)).seed(0)))[0]
    return [str(name) for name in storage.read_table(part_path(task, 0))["id"].to_pylist()]
