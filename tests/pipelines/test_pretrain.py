"""Pre-training on Ray Train: several workers make one encoder, and a killed run ends where an undisturbed one ends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from mi_core.encoders.checkpoint import fingerprint
from pipelines import audit, storage
from pipelines.artifacts import RunFolder
from pipelines.config import RunConfig, parse
from pipelines.errors import UserError
from pipelines.pretrain import describe
from tests.conftest import background, small_config, wait_until


def config_with(epochs: int, checkpoints: list[int], **resources: Any) -> RunConfig:
    encoders = small_config()["encoders"]
    encoders["target"] |= {"epochs": epochs, "checkpoints": checkpoints}
    return parse(small_config(encoders=encoders, resources={"actor_cpus": 0.5, **resources}), "small.yaml")


def train(config: RunConfig, folder: Path) -> dict[str, Any]:
    audit.run(config, str(folder), last="pretrain")
    return describe(RunFolder(str(folder)).seed(0), "target").description


def test_what_a_training_leaves(trained_run: Path) -> None:
    trained = describe(RunFolder(str(trained_run)).seed(0), "target")
    description = trained.description
    assert (description["images"], description["channels"]) == (60, 1)
    assert len(description["losses"]) == 3
    assert description["losses"][-1] < description["losses"][0]
    assert set(description["fingerprints"]) == {"1", "3"}
    encoder = trained.load(3)
    assert fingerprint(encoder) == description["fingerprints"]["3"] != description["fingerprints"]["1"]
    assert not encoder.training
    folder = trained_run / "seed-0" / "encoders"
    assert not list(folder.rglob("state/ray"))  # Ray's own files are gone
    other = describe(RunFolder(str(trained_run)).seed(0), "shadow").description
    assert other["fingerprints"]["3"] != description["fingerprints"]["3"]


def test_two_workers_train_one_encoder(local_ray: None, trained_run: Path, tmp_path: Path) -> None:
    """The batch of 30 is cut in two, negatives are gathered from both: the loss is that of one worker but for batch
    normalisation, which sees 15 images instead of 30. Without gathered negatives it would be lower by log 2."""
    two = train(config_with(3, [1], train_workers=2), tmp_path / "run")
    one = describe(RunFolder(str(trained_run)).seed(0), "target").description
    assert len(two["losses"]) == 3
    assert abs(two["losses"][0] - one["losses"][0]) < 0.25
    state = torch.load(tmp_path / "run/seed-0/encoders/target/state/state.pt", weights_only=True)
    steps = {int(entry["step"]) for entry in state["optimizer"]["state"].values()}
    assert steps == {6}  # 60 images in batches of 30, three times; not once per worker


def test_encoders_of_other_inputs_are_not_reused(trained_run: Path, local_ray: None, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(trained_run, tmp_path / "run")
    path = f"{tmp_path}/run/seed-0/encoders/target/encoder.json"
    storage.write_json(path, {**storage.read_json(path), "inputs": "other"})
    with pytest.raises(UserError, match=r"encoder.json was made from other inputs; redo with --force pretrain"):
        train(config_with(3, [1]), tmp_path / "run")


def test_a_loss_that_explodes_is_one_line(local_ray: None, tmp_path: Path) -> None:
    encoders = small_config()["encoders"]
    encoders["target"] |= {"optimizer": {"name": "sgd", "learning_rate": 1e30}, "epochs": 30}
    config = parse(small_config(encoders=encoders), "small.yaml")
    with pytest.raises(UserError, match=r"\(seed 0\): the loss of epoch \d+ is .*; lower optimizer.learning_rate"):
        audit.run(config, str(tmp_path / "run"), last="pretrain")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_a_killed_training_continues_and_ends_the_same(local_ray: None, tmp_path: Path) -> None:
    config = config_with(600, [100])
    whole = train(config, tmp_path / "whole")
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json", by_alias=True)))
    place = tmp_path / "run" / "seed-0" / "encoders" / "target"
    arguments = ("pipelines.pretrain", str(tmp_path / "small.yaml"), "--out", f"{tmp_path}/run")
    with background(*arguments) as process:
        wait_until((place / "state" / "state.pt").exists, process)
    time.sleep(5)  # Ray's processes see that their driver is gone
    assert not (place / "encoder.json").exists()
    resumed = train(config, tmp_path / "run")
    assert resumed["losses"] == pytest.approx(whole["losses"], abs=1e-5)
    assert resumed["fingerprints"]["100"] == whole["fingerprints"]["100"]
    assert resumed["fingerprints"]["600"] == whole["fingerprints"]["600"]
