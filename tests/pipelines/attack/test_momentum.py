"""Keys of the momentum copy through the stages: kept by training, read by white-box attacks, bound by a statement."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mi_core.encoders.checkpoint import Encoder
from mi_core.encoders.folding import for_queries
from mi_core.features.loss_gradient import GradientSetting
from mi_core.querying.gradients import BankKeys, losses_and_gradients
from pipelines.audit import run as audit
from pipelines.config.checks import build as checked
from pipelines.config.load import parse
from pipelines.data.images import load_images
from pipelines.data.splits import Splits
from pipelines.encoders.stored import describe, momentum_path
from pipelines.errors import UserError
from pipelines.extract import run as extract
from pipelines.files import storage
from pipelines.pretrain import run as pretrain
from pipelines.report.bindings import encoder_of
from pipelines.run.folder import RunFolder
from tests.conftest import small_config
from tests.pipelines.banks import bank_of_ten, query_views, stored_column, with_anchors

SETTING = GradientSetting(temperature=0.2, views=2, bank=10, layers=3, momentum=True)
NEED = f"prediction.gradient:{SETTING}"


def config(**attack: Any) -> dict[str, Any]:
    white = {"attack": "white-box", "gradient_views": 2, "bank": 10, "layers": 3, "temperature": 0.2}
    raw = with_anchors(white | {"keys": "momentum", "outputs": ["prediction"]} | attack)
    raw["queries"]["outputs"] = ["prediction"]
    raw["encoders"]["target"] |= {
        "objective": "moco-v3",
        "parameters": {"projection_hidden": 32, "projection_width": 16, "momentum": 0.9},
        "augmentation": {},
    }
    return raw


@pytest.fixture(scope="module")
def run(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("momentum") / "run"
    audit.run(parse(config(), "x"), str(folder))
    return folder


def test_the_copy_is_that_of_the_training(run: Path) -> None:
    folder = RunFolder(str(run)).seed(0)
    stored = describe(folder, "target")
    (path,) = storage.list_files(f"{stored.folder}/state")
    state = torch.load(path, weights_only=True)["module"]
    encoder = stored.load(3, momentum=True)
    assert isinstance(encoder.momentum, Encoder)
    weights = encoder.momentum.state_dict()
    assert {"backbone", "projection"} == set(encoder.momentum.outputs)
    for name, value in weights.items():
        if name not in ("mean", "std"):
            torch.testing.assert_close(value, state[f"key_{name}"], rtol=0, atol=0)
    assert not torch.equal(weights["projection.0.weight"], state["projection.0.weight"])
    assert stored.load(3).momentum is None


def test_stored_numbers_are_those_of_the_copy_s_keys(run: Path) -> None:
    chosen, place = parse(config(), "x"), RunFolder(str(run)).seed(0)
    splits, stored = Splits.load(place.path), describe(place, "target")
    encoder = for_queries(stored.load(3, momentum=True), "cpu")
    assert encoder.momentum is not None
    images, anchors = load_images(chosen.data, splits, ["target-member"]), bank_of_ten(chosen, splits)
    with torch.no_grad():
        bank = BankKeys(encoder.momentum(query_views(stored, *anchors, 1)[:, 0])["projection"])
    names = images.ids[:5]
    shown = query_views(stored, torch.from_numpy(images.images[:5]), names, 2)
    found = losses_and_gradients(encoder, "prediction", shown, bank, SETTING)
    rows = stored_column(place, NEED)
    np.testing.assert_allclose(found, [rows[name.partition("/")[2]] for name in names], rtol=1e-3)


def test_a_statement_binds_the_copy(run: Path) -> None:
    parts = encoder_of(RunFolder(str(run)), 0, "target")["files"]
    bound = {one["name"]: one["annotations"] for one in parts if one["annotations"]["part"] == "momentum"}
    stored = describe(RunFolder(str(run)).seed(0), "target")
    assert [one["epoch"] for one in bound.values()] == list(stored.epochs)
    assert all(name.endswith(".momentum.safetensors") for name in bound)
    assert storage.exists(momentum_path(stored.folder, 3))


def test_a_training_of_an_earlier_version_claims_no_copy_and_is_refused_before_a_query(
    run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    folder = RunFolder(str(tmp_path / "run"))
    stored = describe(folder.seed(0), "target")
    Path(momentum_path(stored.folder, 1)).unlink()
    Path(f"{stored.folder}/encoder.json").unlink()  # as if it was begun before copies were kept, and cut off
    for name in ("features", "attacks"):
        shutil.rmtree(f"{folder.seed(0).path}/{name}")
    runs = [audit.Run(parse(config(), "x"), folder)]
    pretrain.run(runs)
    assert not describe(folder.seed(0), "target").record.momentum
    assert describe(folder.seed(0), "shadow").record.momentum
    with pytest.raises(UserError, match="holds no momentum copy of target, which keys: momentum needs; choose another"):
        extract.run(runs, lambda *_: pytest.fail("no rule is fitted"))
    assert not storage.exists(f"{folder.seed(0).path}/features/target/layers.json")


def test_encoders_without_a_copy_are_refused() -> None:
    def refused(raw: dict[str, Any]) -> str:
        with pytest.raises(ValueError) as told:
            checked(raw)
        return str(told.value)

    raw = config(outputs=["projection"])
    raw["queries"]["outputs"] = ["projection"]
    raw["encoders"]["target"] = copy.deepcopy(small_config()["encoders"]["target"])
    assert "keys = 'momentum', but no momentum copy of target is kept; train it here by moco-v1" in refused(raw)
    assert "keys = 'momentum', allowed: own" in refused(config(loss="caption", outputs=["projection"]))
