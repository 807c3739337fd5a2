"""What is told over seeds of test sets, attacked images and trials: images that recur in every seed count once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mi_core.metrics.intervals import rate
from mi_core.records import Estimate
from pipelines.attack.inference import inference_path, inferred
from pipelines.attack.utility import utility_path
from pipelines.config.run_config import RunConfig
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import Planned
from pipelines.files import storage
from pipelines.plan.load import parse
from pipelines.plan.resolve import resolve, roles_in_config
from pipelines.plan.rules import ThreatModel
from pipelines.report import attacks as report
from pipelines.report.finished import FinishedRun
from pipelines.run.folder import RunFolder
from pipelines.tune import trial
from tests.conftest import small_config

ONE = rate(80, 100).as_json()
SHARES = {"downstream-test": 1.0, "target-member": 0.3, "target-nonmember": 0.2}
ROLES = (("target-member",), ("downstream-test",))


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Two seeds that share a test set and draw the rest; the splits need no images."""
    plain = small_config()["data"]
    sources = {**plain["sources"], "test": {"kind": "shards", "path": "/nowhere"}}
    roles = {**plain["roles"], "downstream-test": {"from": "test", "fraction": 1.0}}
    inference = {"attribute": "kind", "target": "target", "auxiliary": list(ROLES[0]), "test": list(ROLES[1])}
    kinds = {"kind": {"from": "class", "values": [str(number) for number in range(10)]}}
    data = {**plain, "sources": sources, "roles": roles, "attributes": kinds}
    whole = parse(small_config(data=data, attribute_inference=[inference]), "small.yaml")
    monkeypatch.setattr("pipelines.data.draw.parts._share", lambda _data, _splits, role: SHARES[role])
    monkeypatch.setattr(Splits, "load", lambda _folder: SimpleNamespace(count=lambda _roles: 100))
    monkeypatch.setattr(ThreatModel, "classifier_roles", lambda _threat, _name: ROLES)
    return whole.model_copy(update={"seeds": (0, 1)})


@pytest.fixture
def folder(config: RunConfig, tmp_path: Path) -> RunFolder:
    """A run folder with the utility of both seeds."""
    run = RunFolder(str(tmp_path))
    for seed in config.seeds:
        classifier = dict.fromkeys(("train_accuracy", "test_accuracy", "overfitting"), ONE)
        storage.write_json(
            utility_path(run.seed(seed), "target", 3), {"probes": {"knn": ONE, "linear": ONE}, "classifier": classifier}
        )
    return run


def test_a_whole_test_set_counts_once(config: RunConfig, folder: RunFolder) -> None:
    places = [folder.seed(seed) for seed in config.seeds]
    planned = [Planned(resolve(config, place.seed, roles_in_config(config)), place) for place in places]
    run = FinishedRun(config, folder, tuple(planned))
    again = run.overlap_of(ThreatModel(config).utility_roles("target")[1])
    utility = report.utility_curve(places, "target", [3], again)[-1].utility.as_json()
    assert (again, utility["n"]) == (1, 100)
    assert utility["ci95"]["knn"] == pytest.approx(ONE["ci95"])
    found = vars(report.classifier_part(run, "target", 3))
    assert {name: part.n for name, part in found.items()} == {
        "train_accuracy": int(200 / 1.3), "test_accuracy": 100, "overfitting": 100
    }  # fmt: skip


def test_a_trial_counts_its_test_set_once(
    config: RunConfig, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    judges = [SimpleNamespace(attack=SimpleNamespace(attack="a"), position=at, output="backbone") for at in (0, 1)]
    aucs = [rate(80, 100), Estimate(0.2, 0.1, 0.3, 100)]  # the same attack with other settings
    plan = resolve(config, 0, roles_in_config(config))
    plan = replace(plan, utilities=tuple(one for one in plan.utilities if one.epoch == 3))
    monkeypatch.setattr(trial, "plans_of", lambda _: [Planned(plan, folder.seed(seed)) for seed in config.seeds])
    monkeypatch.setattr(trial, "tasks", lambda _planned: [SimpleNamespace(judge=judge) for judge in judges])
    results = [SimpleNamespace(metrics=SimpleNamespace(auc=auc)) for auc in aucs]
    monkeypatch.setattr(trial, "result_of", lambda task: results[task.judge.position])
    one = SimpleNamespace(
        tune=SimpleNamespace(metric="auc", utility="linear", hides="membership"), folder=folder, target="target"
    )
    found = trial.results_of(cast(Any, one), cast(Any, SimpleNamespace(config=config)))
    assert found["utility"]["n"] == 100
    assert found["utility"]["ci95"] == pytest.approx(ONE["ci95"])
    assert found["leak"] == found["attacks"][0]["ci95"][1] > found["attacks"][1]["ci95"][1]
    assert found["attacks"][0]["n"] == 200  # both sides are drawn from one source


def test_inferences_tell_which_images_recur(config: RunConfig, folder: RunFolder) -> None:
    planned = Planned(resolve(config, 0, roles_in_config(config)), folder.seed(0))
    for item in planned.plan.inferences:
        storage.write_json(inference_path(item, planned.folder), {"accuracy": ONE})
    entries = list(inferred(planned, config.attribute_inference, config.seeds))
    assert entries and all(one["overlap"] == 1 for one in entries)
    share = config.attribute_inference[0].share
    assert all(one["auxiliary_overlap"] == pytest.approx(0.3 * share) for one in entries)
