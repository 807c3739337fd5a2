"""The search for a defense: what a trial is, what is chosen, that nothing is done twice, and what is untouched."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from mi_core.querying.precision import precision_on
from mi_core.report.contents import schema
from pipelines.audit import run as audit
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attributes import GroupConfig
from pipelines.config.sections.encoders import DefendedConfig
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import Planned
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.extract.division.passes import recorded_passes
from pipelines.files import storage
from pipelines.plan.checks import defended_of
from pipelines.plan.items import Query, items_in
from pipelines.plan.load import parse
from pipelines.plan.rules import ThreatModel
from pipelines.run.folder import RunFolder
from pipelines.run.points import Run
from pipelines.tune import run as search
from pipelines.tune import trial as trials
from pipelines.tune.run import tried
from pipelines.tune.trial import Trial
from tests.conftest import background, report_of, small_config, wait_until
from tests.pipelines.undrawn import plan_in

SCALE = "defenses.0.settings.scale"
SAMPLED = {"pairs": 4, "epochs": 60, "learning_rate": 0.5}
SEARCH: dict[str, Any] = {"search": {SCALE: {"low": 1e-4, "high": 100.0, "log": True}}, "trials": 4, "allowed": 0.7}


def tuned(tune: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    """A classifier that knows its members by heart, and noise on its head."""
    config = small_config()
    shared = {"objective": "supervised", "backbone": "conv4", "epochs": 20, "batch_size": 30, "checkpoints": [5, 10]}
    config["encoders"] = {
        "target": {**shared, "train_on": "target-member", "parameters": {"classes": 10}},
        "shadow": {"like": "target", "train_on": "shadow-member"},
    }
    config["queries"] = {"views": 2, "chunk": 64, "outputs": ["logits"]}
    config["attacks"] = [{"attack": ["metric-loss", "metric-conf"]}]
    config["defenses"] = [{"defense": "additive-logistic", "label": "noise", "settings": {"scale": 0.1, **SAMPLED}}]
    config["checkpoints"] = "last"
    return config | {"tune": SEARCH if tune is None else tune} | sections


def config_of(tune: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
    return parse(tuned(tune, **sections), "tuned.yaml")


def test_a_trial_on_another_device_leaves_the_features_of_the_run_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own features are of the precision of its device; those of the run are planned as the run has them."""
    config, seen = config_of(resources={"gpus_per_actor": 1}), []
    trial = Trial(Run(config, RunFolder(str(tmp_path))), "target+noise", {SCALE: 0.1}, "search")
    monkeypatch.setattr(trials, "are_drawn", lambda _: True)
    monkeypatch.setattr(trials.pretrain, "here", lambda *_: None)
    monkeypatch.setattr(
        trials, "plans_of", lambda runs: [Planned(plan_in(run.config), run.folder.seed(0)) for run in runs]
    )
    monkeypatch.setattr(trials.extract, "here", lambda planned, *_: seen.extend(planned))
    monkeypatch.setattr(trials.attack, "here", lambda *_: None)
    trials._do(trial, Run(trial.config(), trial.folder), 1)
    whole, own = seen
    assert whole.plan == plan_in(config)
    assert {query.protocol.precision for query in items_in(whole.plan, Query)} == {precision_on("cuda", "auto")}
    assert {query.protocol.precision for query in items_in(own.plan, Query)} == {precision_on("cpu", "auto")}
    assert precision_on("cuda", "auto") != precision_on("cpu", "auto")


def test_trials_go_on_where_attacks_or_seeds_were_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is measured anew as far as results are missing; the records of before are none of a finished search."""
    folder, asked = RunFolder(str(tmp_path)), []

    def results(trial: Trial, own: Run) -> dict[str, Any]:
        leak = {"metric-loss": 0.6, "metric-conf": 0.8}
        return {"leak": max(leak[one.attack] for one in own.config.attacks), "utility": {"value": 0.5}, "strongest": ""}

    monkeypatch.setattr(trials, "_do", lambda trial, own, _: asked.append((*own.config.seeds, len(own.config.attacks))))
    monkeypatch.setattr(trials, "results_of", results)

    def done(*attacks: str, seeds: tuple[int, ...] = (0,), **data: Any) -> list[float]:
        sections: dict[str, Any] = {"attacks": [{"attack": name} for name in attacks], "seeds": list(seeds)}
        config = config_of(**sections)
        if data:
            config = config.model_copy(update={"data": config.data.model_copy(update=data)})
        run, found = Run(config, folder), []
        for value in (0.1, 0.2):
            trial = Trial(run, "target+noise", {SCALE: value}, "search")
            assert not search.is_done(trial.record() or {"whole": False}, run, "target+noise")
            *_, record = trials.measure(trial)
            assert search.is_done(record, run, "target+noise")
            found.append(record["leak"])
            *_, again = trials.measure(trial)
            assert again == record
        assert len([one for one in tried(folder) if search.belongs_to(one, run, "target+noise")]) == 2
        return found

    assert done("metric-loss") == [0.6, 0.6]
    assert done("metric-loss", "metric-conf") == [0.8, 0.8]
    assert done("metric-loss", "metric-conf", seeds=(0, 1)) == [0.8, 0.8]
    assert asked == [(0, 1)] * 2 + [(0, 2)] * 2 + [(0, 2), (1, 2)] * 2
    assert done("metric-loss", seeds=(0, 1), group_by=GroupConfig(**{"from": "key", "pattern": "^(.)"})) == [0.6, 0.6]


@pytest.fixture(scope="module")
def run(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tuned"
    audit.run(config_of(), str(folder))
    return folder


@pytest.mark.slow
def test_a_search_chooses_by_its_rule_and_measures_anew(run: Path) -> None:
    whole = report_of(run)
    jsonschema.validate(whole, schema())
    found = whole["tuning"]
    assert (found["target"], found["plain"], found["trials"], found["failed"]) == ("target+noise", "target", 4, 0)
    rows = found["rows"]
    assert len({row["parameters"][SCALE] for row in rows}) == 4
    for row in rows:
        assert 1e-4 <= row["parameters"][SCALE] <= 100
        beaten = any(
            other["utility_loss"] <= row["utility_loss"]
            and other["leak"] <= row["leak"]
            and (other["utility_loss"], other["leak"]) != (row["utility_loss"], row["leak"])
            for other in rows
        )
        assert row["pareto"] == (not beaten)
        assert row["utility_loss"] == pytest.approx(1 - row["utility"] / found["without"]["search"]["utility"]["value"])
    (winner,) = [row for row in rows if row["winner"]]
    within = [row for row in rows if row["leak"] <= 0.7]
    chosen = min(within, key=lambda row: row["utility_loss"]) if within else min(rows, key=lambda row: row["leak"])
    assert winner["utility_loss"] == chosen["utility_loss"]
    assert found["winner"]["parameters"] == winner["parameters"]
    splits = Splits.load(RunFolder(str(run)).seed(0).path)
    for side in (found["without"], found["winner"]):
        sizes = {fold: (side[fold]["attacks"][0]["n"], side[fold]["utility"]["n"]) for fold in ("search", "final")}
        assert sizes["search"][0] + sizes["final"][0] == 120
        assert sizes["search"][1] + sizes["final"][1] == len(
            splits.ids(ThreatModel(config_of()).utility_roles("target")[1])
        )
    table = pq.read_table(run / "tune" / "trials.parquet").to_pylist()
    assert [row[SCALE] for row in table] == [row["parameters"][SCALE] for row in rows]
    page = (run / "report.html").read_text()
    assert "Search for a defense" in page
    assert "Chosen of 4 trials" in page


@pytest.mark.slow
def test_the_figures_of_a_trial_are_those_of_an_audit_of_the_same_images(run: Path, tmp_path: Path) -> None:
    """A trial with the scale of the config itself: the same noise, and the same scores on the images of its fold."""
    config, folder = config_of(), RunFolder(str(run))
    trial = Trial(Run(config, folder), "target+noise", {SCALE: 0.1}, "search")
    from pipelines.tune.trial import measure

    *_, record = measure(trial)
    assert describe(trial.folder.seed(0), "target+noise").record.fingerprints == (
        describe(folder.seed(0), "target+noise").record.fingerprints
    )
    chosen = Splits.load(folder.seed(0).path).fold(ThreatModel(config).audited_roles, "search", 0)
    mine = pq.read_table(next((Path(trial.folder.path) / "seed-0" / "attacks").glob("metric-loss*/scores.parquet")))
    served = next(p for p, a in enumerate(config.attacks) if (a.attack, a.target) == ("metric-loss", "target+noise"))
    whole = pq.read_table(next((run / "seed-0" / "attacks").glob(f"metric-loss-{served}-*/scores.parquet")))
    assert set(mine["id"].to_pylist()) == chosen
    scores = dict(zip(whole["id"].to_pylist(), whole["score"].to_pylist(), strict=True))
    np.testing.assert_allclose(mine["score"].to_numpy(), [scores[name] for name in mine["id"].to_pylist()], rtol=1e-5)
    assert record["cpu_seconds"] > 0
    left = recorded_passes(folder.seed(0).store, [trial.folder.seed(0).trial])
    assert left and not any(record.content["trial"] for record in left)
    bare = {Path(record.folder).name for record in left}
    assert {path.parent.name for path in Path(folder.seed(0).store).glob("*/epoch-*")} <= bare
    Path(trial.path).unlink()  # it is none of the search


@pytest.mark.slow
def test_more_trials_go_on_from_those_that_are_done(run: Path, local_ray: None) -> None:
    place = RunFolder(str(run))
    path_of = {
        record["id"]: Path(Trial(Run(config_of(), place), "target+noise", record["parameters"], "search").path)
        for record in tried(place)
    }
    before = {name: path.stat().st_mtime_ns for name, path in path_of.items()}
    audit.run(config_of({**SEARCH, "trials": 5}), str(run), last="tune")
    assert len(tried(place)) == 5
    assert {name: path.stat().st_mtime_ns for name, path in path_of.items()} == before
    with pytest.raises(UserError, match="changed: tune.allowed"):
        audit.run(config_of({**SEARCH, "allowed": 0.8}), str(run), last="tune")


@pytest.mark.slow
def test_a_stopping_epoch_is_searched_without_training(run: Path, tmp_path: Path) -> None:
    """All checkpoints are tried once, however many trials are asked for; no encoder is trained for it."""
    import shutil

    stop = {"defense": "early-stopping", "epoch": 20, "label": "stop"}
    search = {"search": {"defenses.0.epoch": [5, 10, 20]}, "trials": 50, "allowed": 0.0}
    folder = tmp_path / "run"
    audit.run(config_of(search, defenses=[stop]), str(folder), last="data")
    for name in ("target", "shadow"):
        shutil.copytree(run / "seed-0" / "encoders" / name, folder / "seed-0" / "encoders" / name)
    audit.run(config_of(search, defenses=[stop]), str(folder), last="tune")
    found = json.loads((folder / "tune" / "pareto.json").read_text())
    assert sorted(row["parameters"]["defenses.0.epoch"] for row in found["rows"]) == [5, 10, 20]
    last = next(row for row in found["rows"] if row["parameters"]["defenses.0.epoch"] == 20)
    assert last["utility_loss"] == 0  # nothing is defended: nothing changes
    assert last["leak"] == found["without"]["search"]["leak"]
    assert not found["winner"]["within"]
    assert found["winner"]["search"]["leak"] == min(row["leak"] for row in found["rows"])


def test_a_field_takes_with_it_what_is_like_it() -> None:
    search = {"search": {"encoders.target.parameters.freeze_backbone": [False, True]}, "target": "target"}
    config = config_of(search)
    (found,) = config.tune.search.values()
    assert found.fields == ("encoders.target.parameters.freeze_backbone", "encoders.shadow.parameters.freeze_backbone")
    assert parse(json.loads(json.dumps(config.model_dump(mode="json", by_alias=True))), "again.yaml") == config
    trial = Trial(Run(config, RunFolder("runs/none")), "target", {next(iter(search["search"])): True}, "search")
    own = trial.config()
    assert all(own.encoders[name].parameters["freeze_backbone"] for name in ("target", "shadow"))  # type: ignore[union-attr]
    assert [attack.target for attack in own.attacks] == ["target", "target"]


def test_a_trial_keeps_what_its_attacks_need_and_nothing_else() -> None:
    config = config_of()
    trial = Trial(Run(config, RunFolder("runs/none")), "target+noise", {SCALE: 0.5}, "search")
    own = trial.config()
    assert set(own.encoders) == {"target", "shadow", "target+noise", "shadow+noise"}
    assert {name for name, encoder in own.encoders.items() if isinstance(encoder, DefendedConfig)} == {
        "target+noise",
        "shadow+noise",
    }
    assert {attack.target for attack in own.attacks} == {"target+noise"}
    for name in ("target+noise", "shadow+noise"):
        assert own.encoders[name].settings["scale"] == 0.5  # type: ignore[union-attr]
    assert ThreatModel(own).references_of(own.attacks[0]) == ()
    asked = items_in(plan_in(own), Query)
    assert {query.encoder.name for query in asked} == {"target+noise", "shadow+noise"}
    assert defended_of(config) == ("target+noise", "target")


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"search": {SCALE: {"low": 1}}}, f"tune.search.{SCALE}: give a list of values, or low and high"),
        ({"search": {SCALE: {"low": 2, "high": 1}}}, "low = 2 is not below high = 1"),
        ({"search": {SCALE: {"low": 0, "high": 1, "log": True}}}, "a logarithmic range begins above 0"),
        ({"search": {SCALE: [1]}}, "one value leaves nothing to search"),
        ({"search": {"defenses.0.settings.strength": [1, 2]}}, "unknown setting 'strength'"),
        ({"search": {"defenses.3.settings.scale": [1, 2]}}, "'3' is no position in a list of 1"),
        ({"search": {SCALE: {"low": -1, "high": 1}}}, "scale = -1"),
        ({"search": {"attacks.0.views": [2, 4]}}, "only fields of defenses and of encoders can be searched"),
        ({"search": {}}, "tune.search"),
        ({**SEARCH, "trials": 0}, "tune.trials"),
        ({**SEARCH, "sampler": "luck"}, "tune.sampler"),
    ],
)
def test_mistakes_are_one_line(tune: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        config_of(tune)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_served_has_to_be_attacked() -> None:
    with pytest.raises(UserError, match="tune.target = 'shadow' is not attacked; choose one of target, target"):
        config_of({**SEARCH, "target": "shadow"})
    two = [{"defense": "additive-logistic"}, {"defense": "additive-laplace"}]
    with pytest.raises(UserError, match="tune.target is missing; choose one of target\\+additive-logistic, target"):
        config_of(defenses=two)


def test_lists_stand_for_defenses_one_by_one() -> None:
    defenses = [
        {"defense": ["additive-logistic", "additive-laplace"], "settings": {"scale": [0.1, 1.0], "delta": 1e-6}}
    ]
    config = parse(tuned(defenses=defenses) | {"tune": None}, "tuned.yaml")
    assert [(one.defense, one.label, one.settings["scale"]) for one in config.defenses] == [
        ("additive-logistic", "additive-logistic-scale-0.1", 0.1),
        ("additive-logistic", "additive-logistic-scale-1.0", 1.0),
        ("additive-laplace", "additive-laplace-scale-0.1", 0.1),
        ("additive-laplace", "additive-laplace-scale-1.0", 1.0),
    ]
    assert parse(json.loads(json.dumps(config.model_dump(mode="json", by_alias=True))), "again.yaml") == config


@pytest.mark.slow
def test_a_killed_search_goes_on_and_tries_nothing_twice(tmp_path: Path) -> None:
    config = tmp_path / "tuned.yaml"
    config.write_text(yaml.safe_dump(tuned({**SEARCH, "trials": 6})))
    folder = tmp_path / "run"
    place = RunFolder(str(folder))
    command = ("pipelines.tune", str(config), "--out", str(folder))
    with background(*command) as process:
        wait_until(lambda: len(tried(place)) >= 2, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    there = {record["id"]: record for record in tried(place) if record["whole"]}
    assert 2 <= len(there) < 6
    with background(*command) as process:
        _, told = process.communicate()
        assert process.returncode == 0, told.decode()
    assert f"{len(there)} trials already done" in told.decode()
    after = {record["id"]: record for record in tried(place)}
    assert len(after) == 6
    assert {name: after[name] for name in there} == there
    assert len({record["parameters"][SCALE] for record in after.values()}) == 6
    assert not storage.exists(f"{folder}/tune/ray")


@pytest.mark.slow
def test_a_scalarised_search_gives_up_what_is_behind(local_ray: None, tmp_path: Path) -> None:
    audit.run(config_of({**SEARCH, "trials": 6, "weight": 1.0}, seeds=[0, 1]), str(tmp_path / "run"), last="tune")
    found = json.loads((tmp_path / "run" / "tune" / "pareto.json").read_text())
    assert found["trials"] == 6
    assert found["cut"] == sum(row["seeds"] == 1 for row in found["rows"]) >= 1
    assert next(row for row in found["rows"] if row["winner"])["seeds"] == 2


@pytest.mark.slow
def test_a_search_may_train(local_ray: None, tmp_path: Path) -> None:
    """Both ways to train are tried: target and shadow are trained anew for the one that the run itself has not."""
    name = "encoders.target.epochs"
    search = {"search": {name: [10, 20]}, "trials": 2, "target": "target", "allowed": 0.9}
    config = config_of(search, defenses=[])
    for encoder in ("target", "shadow"):
        assert config.encoders[encoder].epochs == 20  # type: ignore[union-attr]
    folder = RunFolder(str(tmp_path / "run"))
    audit.run(config, folder.path, last="tune")
    found = json.loads((tmp_path / "run" / "tune" / "pareto.json").read_text())
    by_epochs = {row["parameters"][name]: row for row in found["rows"]}
    assert by_epochs.keys() == {10, 20}
    assert by_epochs[20]["utility_loss"] == 0  # the run's own encoder, shared and not trained again
    assert by_epochs[20]["leak"] == found["without"]["search"]["leak"]
    assert by_epochs[10]["leak"] != by_epochs[20]["leak"]
    for epochs in (10, 20):
        place = Trial(Run(config, folder), "target", {name: epochs}, "search").folder.seed(0)
        for encoder in ("target", "shadow"):
            assert describe(place, encoder).epochs[-1] == epochs
    same = Trial(Run(config, folder), "target", {name: 20}, "search").folder.seed(0)
    assert describe(same, "target").record.fingerprints == (describe(folder.seed(0), "target").record.fingerprints)
