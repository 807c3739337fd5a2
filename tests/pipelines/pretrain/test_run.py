"""Pre-training on Ray Train: several workers make one encoder, and a killed run ends where an undisturbed one ends."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mi_core.encoders.checkpoint import fingerprint
from mi_core.report.contents import schema
from pipelines.audit import run as audit
from pipelines.config.run_config import RunConfig
from pipelines.data.plans import plan_of
from pipelines.encoders.stored import EncoderRecord, describe
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.plan.load import parse
from pipelines.plan.rules import ThreatModel
from pipelines.pretrain import lanes
from pipelines.pretrain import run as pretrain
from pipelines.pretrain.run import Bases, save_all, tell_of_emulation, train_all, training_jobs
from pipelines.pretrain.worker import TrainingJob, train_alone
from pipelines.run import board as progress
from pipelines.run.folder import RunFolder
from pipelines.run.ray_session import clean_board
from tests.conftest import background, own_processes, small_config, wait_until

pytestmark = pytest.mark.ray


def config_with(epochs: int, checkpoints: list[int], **resources: Any) -> RunConfig:
    encoders = small_config()["encoders"]
    encoders["target"] |= {"epochs": epochs, "checkpoints": checkpoints}
    return parse(small_config(encoders=encoders, resources={"actor_cpus": 0.5, **resources}), "small.yaml")


def train(config: RunConfig, folder: Path) -> EncoderRecord:
    audit.run(config, str(folder), last="pretrain")
    return describe(RunFolder(str(folder)).seed(0), "target").record


def test_what_a_training_leaves(trained_run: Path) -> None:
    trained = describe(RunFolder(str(trained_run)).seed(0), "target")
    description = trained.record
    assert (description.images, description.channels) == (60, 1)
    assert len(description.losses) == 3
    assert description.losses[-1] < description.losses[0]
    assert set(description.fingerprints) == {"1", "3"}
    encoder = trained.load(3)
    assert fingerprint(encoder) == description.fingerprints["3"] != description.fingerprints["1"]
    assert not encoder.training
    folder = trained_run / "seed-0" / "encoders"
    assert not list(folder.rglob("state/ray"))  # Ray's own files are gone
    other = describe(RunFolder(str(trained_run)).seed(0), "shadow").record
    assert other.fingerprints["3"] != description.fingerprints["3"]


def test_trainings_that_work_are_told_to_stop_and_waited_for(local_ray: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a note tells a worker to stop; who has saved or failed is waited for no longer."""
    import ray

    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.0)
    board = ray.remote(num_cpus=0)(progress.Board).remote()
    reporters = [progress.Reporter(board, name) for name in ("target", "shadow", "failing")]
    for one in reporters:
        one(1.5, "  loss 1.0")
    assert ray.get(board.read.remote())["target"] == progress.Note(1.5, "  loss 1.0")
    assert not any(one.stop for one in reporters)
    assert ray.get(board.stop.remote()) == ["failing", "shadow", "target"]
    end = time.monotonic() + 60
    while not reporters[0].stop:
        reporters[0](2.0)
        assert time.monotonic() < end
    reporters[0].leave()
    ray.get(board.accuse.remote("failing", "no memory"))
    assert ray.get(board.stop.remote()) == ["shadow"]
    monkeypatch.setattr(pretrain, "SAVE_SECONDS", 0.2)
    save_all(board)  # one that never saves does not keep the others


@pytest.mark.parametrize(
    ("precision", "cpu", "told"),
    [("bfloat16", "AVX2", True), ("bfloat16", "AVX512", False), ("float32", "AVX2", False)],
)
def test_arithmetic_that_this_cpu_only_emulates_is_told(
    precision: str, cpu: str, told: bool, trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: cpu)
    said: list[str] = []
    monkeypatch.setattr(pretrain, "say", lambda _, text: said.append(text))
    jobs = list(training_jobs(plan_of(config_with(3, [1]), RunFolder(str(trained_run)).seed(0)), 0))
    tell_of_emulation(
        [dataclasses.replace(job, config=job.config.model_copy(update={"precision": precision})) for job in jobs]
    )
    assert [text.endswith("set encoders.target.precision=float32") for text in said] == [True] * told


def test_encoders_of_other_inputs_are_not_reused(trained_run: Path, local_ray: None, tmp_path: Path) -> None:
    shutil.copytree(trained_run, tmp_path / "run")
    path = f"{tmp_path}/run/seed-0/encoders/target/encoder.json"
    storage.write_json(path, {**storage.read_json(path), "inputs": "other"})
    with pytest.raises(UserError, match=r"encoder.json was made from other inputs; redo with --force pretrain"):
        train(config_with(3, [1]), tmp_path / "run")


def phases(**target: Any) -> dict[str, Any]:
    """Pre-train, continue on the members, freeze and train a linear layer: every encoder starts from the one before."""
    base = small_config()["encoders"]["target"] | {"checkpoints": [], "epochs": 2, "train_on": "shadow-nonmember"}
    encoders = {
        "base": base,
        "target": {"like": "base", "start": "base", "train_on": "target-member", "checkpoints": [1, 2]} | target,
        "shadow": {"like": "target", "train_on": "shadow-member"},
        "classifier": {
            "objective": "supervised", "backbone": "conv4", "start": "target", "train_on": "target-member",
            "epochs": 12, "batch_size": 30, "parameters": {"classes": 10, "freeze_backbone": True},
            "optimizer": {"name": "adam", "learning_rate": 0.05},
        },
    }  # fmt: skip
    return small_config(
        encoders=encoders,
        attacks=[{"attack": "encodermi-t"}],
        queries={"views": 4, "outputs": ["backbone"]},
        utility={"k": [5, 10], "bank": ["shadow-member"], "test": ["target-nonmember"]},
        resources={"encoder_actors": 1, "actor_cpus": 0.5, "resident_mb": 0},
    )


@pytest.mark.slow
def test_two_phases_and_a_linear_layer(local_ray: None, tmp_path: Path) -> None:
    """Streamed from the source, logged, and each phase begins where the last one ended."""
    folder = tmp_path / "run"
    audit.run(parse(phases(save_every=1), "phases.yaml"), str(folder))
    place = RunFolder(str(folder)).seed(0)
    stored = {name: describe(place, name) for name in ("base", "target", "shadow", "classifier")}
    assert all(encoder.record.streamed for encoder in stored.values())
    target, classifier = stored["target"], stored["classifier"]
    assert fingerprint(classifier.load(12).backbone) == fingerprint(target.load(2).backbone)
    assert fingerprint(target.load(1).backbone) != fingerprint(stored["base"].load(2).backbone)
    assert target.record.losses[0] < stored["base"].record.losses[0]  # not from scratch
    curves = list((folder / "seed-0/encoders/target/tensorboard").iterdir())
    assert len(curves) == 1
    events = EventAccumulator(str(curves[0])).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(target.record.losses, rel=1e-5)
    assert events.Scalars("images_per_second")[0].value > 0
    report = json.loads((folder / "report.json").read_text())
    jsonschema.validate(report, schema())
    found = report["encoders"]["classifier"]["classifier"]
    level = found["train_accuracy"]["value"] - found["test_accuracy"]["value"]
    assert found["overfitting"]["value"] == pytest.approx(level)
    assert found["train_accuracy"]["value"] > 0.5
    assert (found["train_accuracy"]["n"], found["test_accuracy"]["n"]) == (60, 60)
    assert report["encoders"]["target"]["train_on"] == "target-member, after base"
    assert {"knn", "knn_10", "linear"} <= set(report["encoders"]["target"]["utility"])
    assert "overfitting level" in (folder / "report.html").read_text()
    other = phases(save_every=1)
    other["encoders"]["base"]["optimizer"] = {"learning_rate": 0.001}
    same, changed = (
        {job.name: job.inputs for job in training_jobs(plan_of(parse(raw, "phases.yaml"), place), 0)}
        for raw in (phases(save_every=1), other)
    )
    assert {name: encoder.record.inputs for name, encoder in stored.items()} == same
    assert all(changed[name] != same[name] for name in stored)  # what they start from is part of what they are


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": "nobody"}, "encoders.target.start = 'nobody', allowed: base, classifier, shadow, target"),
        ({"start": "target"}, "encoders.target.start goes in a circle: target -> target"),
        ({"objective": "moco-v2", "parameters": {"queue": 60, "projection_width": 8}, "batch_size": 25}, "use 50"),
        ({"objective": "moco-v2", "parameters": {"queue": 90}}, "queue = 90 exceeds the 60 images"),
        ({"objective": "moco-v3", "parameters": {"freeze_patches": True}}, ""),
    ],
)
def test_mistakes_in_phases(changes: dict[str, Any], message: str) -> None:
    config = phases(**changes)
    if not message:  # only building the network shows this one
        parse(config, "phases.yaml")
        return
    with pytest.raises(UserError) as caught:
        parse(config, "phases.yaml")
    assert message in str(caught.value)


def test_an_objective_knows_every_value_of_its_attribute() -> None:
    """Found when the config is read, not when the encoder's turn comes to be trained."""
    raw = phases(objective="talos", attribute="digit", parameters={"values": 9})
    raw["data"]["attributes"] = {"digit": {"from": "class", "values": list(range(10))}}
    with pytest.raises(UserError, match="digit has 10 values; set encoders.target.parameters.values=10"):
        parse(raw, "phases.yaml")
    raw["encoders"]["target"]["parameters"]["values"] = 10
    assert parse(raw, "phases.yaml").encoders["target"].attribute == "digit"


def test_an_encoder_that_started_from_members_is_no_reference() -> None:
    config = parse(phases(), "phases.yaml")
    assert ThreatModel(config).references_of(config.attacks[0]) == ("shadow",)
    raw = phases()
    raw["encoders"]["shadow"]["start"] = "target"
    config = parse(raw, "phases.yaml")
    assert ThreatModel(config).members_of("shadow") == {"shadow-nonmember", "target-member", "shadow-member"}
    assert ThreatModel(config).references_of(config.attacks[0]) == ("base",)


def test_a_process_that_trained_one_encoder_trains_the_next_alike(
    local_ray: None, trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the other order, and after one that failed: nothing of an encoder is left to the next, nor on the disk."""
    (scratch := tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    shutil.copytree(trained_run, tmp_path / "run")
    place, board = RunFolder(str(tmp_path / "run")).seed(0), clean_board()
    before = {name: describe(place, name).record.fingerprints for name in ("target", "shadow")}
    shutil.rmtree(tmp_path / "run/seed-0/encoders")
    jobs = {job.name: job for job in training_jobs(plan_of(config_with(3, [1]), place), 2**30)}
    encoders = small_config()["encoders"]
    encoders["target"] |= {"optimizer": {"name": "sgd", "learning_rate": 1e30}, "epochs": 30}
    broken = plan_of(parse(small_config(encoders=encoders), "small.yaml"), place)
    failing = next(job for job in training_jobs(broken, 2**30) if job.name == "target")
    assert "lower optimizer.learning_rate" in str(train_alone(failing, 1, board))
    for name in ("shadow", "target"):
        assert train_alone(jobs[name], 1, board) is None
        assert describe(place, name).record.fingerprints == before[name]
    assert not list(scratch.glob("encoder-audit-*"))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first encoder of every lane that is opened from now on."""
    first: list[str] = []
    train_in_lane = lanes.Lanes._train

    def noted(self: lanes.Lanes, lane: str, job: TrainingJob) -> None:
        first.append(job.name)
        train_in_lane(self, lane, job)

    monkeypatch.setattr(lanes.Lanes, "_train", noted)
    return first


@pytest.mark.slow
def test_short_trainings_share_a_lane_and_leave_nothing_to_the_next(
    local_ray: None, opened: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    train(config_with(3, [1], train_workers=2, train_cpus=0.5), tmp_path / "shared")
    assert opened == ["target"]
    monkeypatch.setattr(lanes, "SHORT", 0)
    train(config_with(3, [1], train_workers=2, train_cpus=0.5), tmp_path / "apart")
    assert opened == ["target", "target", "shadow"]
    for name in ("target", "shadow"):
        shared, apart = (
            describe(RunFolder(str(tmp_path / run)).seed(0), name).record.fingerprints for run in ("shared", "apart")
        )
        assert shared == apart


@pytest.mark.slow
@pytest.mark.parametrize("last", [False, True])
def test_a_lane_that_loses_its_worker_is_opened_anew_once_it_has_trained_something(
    local_ray: None, opened: list[str], tmp_path: Path, last: bool
) -> None:
    """So that many encoders in one lane do not share the restarts that one may have."""
    encoders = small_config()["encoders"]
    long = {"epochs": 300, "checkpoints": [], "save_every": 10}
    encoders["target"] |= {"epochs": 3} if last else long
    encoders["shadow"] = {"like": "target", "train_on": "shadow-member", **(long if last else {"epochs": 3})}
    resources = {"actor_cpus": 0.5, "train_retries": 0, "train_workers": 2, "train_cpus": 0.5}
    config = parse(small_config(encoders=encoders, resources=resources), "small.yaml")
    before = own_processes("RayTrainWorker")

    def kill_one() -> None:
        place = tmp_path / "run/seed-0/encoders" / ("shadow" if last else "target")
        while not list(place.glob("state/*.pt")):
            time.sleep(0.005)
        for pid in own_processes("RayTrainWorker") - before:
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    if not last:
        with pytest.raises(Exception, match="died|actor|Worker"):
            train(config, tmp_path / "run")
        return
    train(config, tmp_path / "run")
    killer.join(timeout=10)
    assert opened == ["target", "shadow"]
    assert len(describe(RunFolder(str(tmp_path / "run")).seed(0), "shadow").record.losses) == 300


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_a_killed_training_continues_and_ends_the_same(local_ray: None, tmp_path: Path) -> None:
    config = config_with(600, [100])
    whole = train(config, tmp_path / "whole")
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json", by_alias=True)))
    place = tmp_path / "run" / "seed-0" / "encoders" / "target"
    arguments = ("pipelines.pretrain", str(tmp_path / "small.yaml"), "--out", f"{tmp_path}/run")
    with background(*arguments) as process:
        wait_until(lambda: list(place.glob("state/*.pt")), process)
    time.sleep(5)  # Ray's processes see that their driver is gone
    assert not (place / "encoder.json").exists()
    resumed = train(config, tmp_path / "run")
    assert resumed.losses == pytest.approx(whole.losses, abs=1e-5)
    assert resumed.fingerprints["100"] == whole.fingerprints["100"]
    assert resumed.fingerprints["600"] == whole.fingerprints["600"]


def test_the_board_stands_on_the_node_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers may be spot machines; all trainings end with the node of the board."""
    asked: dict[str, Any] = {}

    def remote(**options: Any) -> None:
        asked.update(options)
        raise LookupError("enough")

    node = "ab" * 28
    monkeypatch.setattr("ray.remote", remote)
    monkeypatch.setattr(
        "ray.get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: node, get_job_id=lambda: "new")
    )
    monkeypatch.setattr("pipelines.run.ray_session.borne", lambda memory: memory)
    config: Any = SimpleNamespace(resources=SimpleNamespace(train_gpus=1))
    with pytest.raises(LookupError):
        train_all([], config.resources, Bases([], {}))
    assert (asked["scheduling_strategy"].node_id, asked["scheduling_strategy"].soft) == (node, True)
