"""Keys of the momentum copy through the stages: kept by training, read by white-box attacks, bound by a statement.

The copy comes from a training here, or from a checkpoint file of another one.
"""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import Encoder, fingerprint
from mi_core.encoders.folding import for_queries
from mi_core.features.loss_gradient import ViewsGradient
from mi_core.querying.gradients import BankKeys, losses_and_gradients
from pipelines.audit import run as audit
from pipelines.data.draw.images import load_images
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import plan_of, plans_of
from pipelines.encoders import adopt
from pipelines.encoders.adopt import try_out
from pipelines.encoders.stored import describe, momentum_path, write_record
from pipelines.errors import UserError
from pipelines.extract import run as extract
from pipelines.extract.division.passes import recorded_passes
from pipelines.files import storage
from pipelines.plan.checks import build as checked
from pipelines.plan.items import Query
from pipelines.plan.keys import items_in
from pipelines.plan.load import parse
from pipelines.plan.rules.controls import passed_over, references_of
from pipelines.report.bindings import encoder_of
from pipelines.report.caveats import reference_caveats
from pipelines.run.folder import RunFolder
from pipelines.run.points import Run
from tests.conftest import small_config
from tests.pipelines import staged
from tests.pipelines.banks import bank_of_ten, query_views, stored_column, with_anchors

pytestmark = pytest.mark.ray

MEASURE = ViewsGradient(temperature=0.2, views=2, bank=10, layers=3, momentum=True)


def config(**attack: Any) -> dict[str, Any]:
    white = {"attack": "white-box", "gradient_views": 2, "bank": 10, "layers": 3, "temperature": 0.2}
    raw = with_anchors(white | {"keys": "momentum", "outputs": ["prediction"]} | attack)
    raw["queries"] |= {"outputs": ["prediction"], "nonce": "dice"}
    raw["encoders"]["target"] |= {
        "objective": "moco-v3",
        "parameters": {"projection_hidden": 32, "projection_width": 16, "momentum": 0.9},
        "augmentation": {},
    }
    return raw


@pytest.fixture(scope="module")
def run(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("momentum") / "run"
    audit.run(parse(config(), "x"), str(folder), last="pretrain")
    staged.query(parse(config(), "x"), folder)
    return folder


@pytest.mark.slow
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


@pytest.mark.slow
def test_stored_numbers_are_those_of_the_copy_s_keys(run: Path) -> None:
    chosen, place = parse(config(), "x"), RunFolder(str(run)).seed(0)
    splits, stored = Splits.load(place.path), describe(place, "target")
    encoder = for_queries(stored.load(3, momentum=True), "cpu")
    assert encoder.momentum is not None
    images, anchors = load_images(chosen.data, splits, ["target-member"]), bank_of_ten(chosen, splits)
    with torch.no_grad():
        bank = BankKeys(encoder.momentum(query_views(stored, anchors[0], 1, "dice")[:, 0])["projection"])
    names = images.ids[:5]
    shown = query_views(stored, torch.from_numpy(images.images[:5]), 2, "dice")
    found = losses_and_gradients(encoder, "prediction", shown, bank, MEASURE)
    rows = stored_column(place, f"prediction.{MEASURE}")
    np.testing.assert_allclose(found, [rows[name.partition("/")[2]] for name in names], rtol=1e-3)


@pytest.mark.slow
def test_a_statement_binds_the_copy(run: Path) -> None:
    parts = encoder_of(RunFolder(str(run)), 0, "target")["files"]
    bound = {one["name"]: one["annotations"] for one in parts if one["annotations"]["part"] == "momentum"}
    stored = describe(RunFolder(str(run)).seed(0), "target")
    assert [one["epoch"] for one in bound.values()] == list(stored.epochs)
    assert all(name.endswith(".momentum.safetensors") for name in bound)
    assert storage.exists(momentum_path(stored.folder, 3))


@pytest.mark.slow
def test_an_encoder_whose_record_has_no_copy_is_refused_before_a_query(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    folder = RunFolder(str(tmp_path / "run"))
    write_record(folder.seed(0), replace(describe(folder.seed(0), "target").record, momentum=False))
    shutil.rmtree(folder.seed(0).store)
    runs = [Run(parse(config(), "x"), folder)]
    planned = plans_of(runs)
    with pytest.raises(UserError, match="holds no momentum copy of target, which keys: momentum needs; choose another"):
        extract.run(runs, planned, lambda *_: pytest.fail("no rule is fitted"))
    assert not storage.list_files(folder.seed(0).store)


def test_encoders_without_a_copy_are_refused() -> None:
    def refused(raw: dict[str, Any]) -> str:
        with pytest.raises(ValueError) as told:
            checked(raw)
        return str(told.value)

    raw = config(outputs=["projection"])
    raw["queries"]["outputs"] = ["projection"]
    raw["encoders"]["target"] = copy.deepcopy(small_config()["encoders"]["target"])
    assert "keys = 'momentum', but target has no momentum copy; train it here by moco-v1" in refused(raw)
    raw = loaded_config(Path("x.pth"))
    raw["encoders"]["target"] |= {"load": "timm:resnet18"}
    raw["data"]["channels"] = 3
    assert "keys = 'momentum', but target has no momentum copy; " in refused(raw)
    assert "keys = 'momentum', allowed: own" in refused(config(loss="clip", outputs=["projection"]))


def moco_v3_file(run: Path, path: Path, *, copied: bool = True) -> Path:
    """The last state of the trained target as the code of MoCo v3 saves it."""
    (state,) = storage.list_files(f"{describe(RunFolder(str(run)).seed(0), 'target').folder}/state")
    names = {"backbone.": "base_encoder.", "projection.": "base_encoder.fc.", "prediction.": "predictor."}
    names |= {"key_backbone.": "momentum_encoder.", "key_projection.": "momentum_encoder.fc."} if copied else {}
    weights = {
        f"module.{new}{key.removeprefix(old)}": value
        for key, value in torch.load(state, weights_only=True)["module"].items()
        for old, new in names.items()
        if key.startswith(old)
    }
    torch.save({"epoch": 3, "arch": "conv4", "state_dict": weights}, path)
    return path


def loaded_config(path: Path, **attack: Any) -> dict[str, Any]:
    """The target from a file, both outputs attacked with known samples; the shadow, SimCLR's, has no momentum copy."""
    raw = config(reference="known", **attack)
    raw["attacks"].append(raw["attacks"][0] | {"outputs": ["projection"]})
    raw["queries"]["outputs"] = ["prediction", "projection"]
    views = raw["encoders"]["target"]["augmentation"]
    loaded = {"load": "checkpoint:conv4", "weights": str(path), "mean": [0.5], "std": [0.5]}
    shadow = copy.deepcopy(small_config()["encoders"]["target"]) | {"train_on": "shadow-member"}
    raw["encoders"] = {
        "target": loaded | {"objective": "moco-v3", "augmentation": views},
        "shadow": shadow,
        "fresh": loaded | {"fresh": True},
    }
    return raw


@pytest.fixture(scope="module")
def loaded(run: Path, trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that adopted the file for an attack with its own keys, and went on with the copy's when it was gone."""
    place = tmp_path_factory.mktemp("loaded")
    path, folder = moco_v3_file(run, place / "moco.pth"), place / "run"
    own = parse(loaded_config(path, keys="own"), "x")
    begun = staged.begin(own, folder)
    shutil.copytree(trained_run / "seed-0/encoders/shadow", folder / "seed-0/encoders/shadow")
    adopt.run([Run(own, begun)], plans_of([Run(own, begun)]))
    path.unlink()
    return staged.judge(parse(loaded_config(path), "x"), folder)


@pytest.mark.slow
def test_a_loaded_encoder_has_the_numbers_of_the_training_that_its_file_is_of(run: Path, loaded: Path) -> None:
    theirs, here = RunFolder(str(run)).seed(0), RunFolder(str(loaded)).seed(0)
    weights, expected = (
        stored.load(stored.epochs[-1], momentum=True).momentum.state_dict()  # type: ignore[union-attr]
        for stored in (describe(here, "target"), describe(theirs, "target"))
    )
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)
    trained, found = (stored_column(place, f"prediction.{MEASURE}", epoch) for place, epoch in ((theirs, 3), (here, 0)))
    assert len(found) == 120
    np.testing.assert_allclose([found[key] for key in found], [trained[key] for key in found], rtol=1e-3)


@pytest.mark.slow
def test_its_report_tells_the_copy_and_the_control_and_a_statement_binds_it(loaded: Path) -> None:
    report = storage.read_json(f"{loaded}/report.json")
    assert report["encoders"]["target"]["used"].endswith(", momentum copy 34")
    assert "The reference of white-box on target is fresh: shadow has no momentum copy." in report["caveats"]
    assert report["validity"]["control_auc"]["n"] == 96  # without the 24 known samples
    parts = {
        name: {one["annotations"]["part"]: one["name"] for one in encoder_of(RunFolder(str(loaded)), 0, name)["files"]}
        for name in ("target", "fresh")
    }
    assert parts["target"]["momentum"].endswith("/epoch-0000.momentum.safetensors")
    assert "momentum" not in parts["fresh"]


@pytest.mark.slow
def test_features_are_those_of_this_copy(loaded: Path) -> None:
    """A file of other weights is another encoder, which shares no features; a record of other weights is refused."""
    place = RunFolder(str(loaded)).seed(0)
    stored = describe(place, "target")
    copied = stored.load(0, momentum=True).momentum
    assert copied is not None
    assert stored.record.momentum_fingerprint == fingerprint(copied)
    made, other = (
        plan_of(parse(loaded_config(path), "x"), place).plan for path in (loaded.parent / "moco.pth", Path("other.pth"))
    )
    keys = [{(query.encoder.name, query.key) for query in items_in(plan, Query)} for plan in (made, other)]
    assert {name for name, _ in keys[0] & keys[1]} == {"shadow"}
    assert {name for name, _ in keys[0] - keys[1]} == {name for name, _ in keys[1] - keys[0]} == {"target", "fresh"}
    recorded = {key for record in recorded_passes(place.store) for key in record.keys}
    assert {key for _, key in keys[0]} <= recorded
    jobs = {job.name: job for job in adopt.adoptions(plan_of(parse(loaded_config(Path("other.pth")), "x"), place))}
    with pytest.raises(UserError, match="was made from other inputs; redo with --force pretrain"):
        jobs["target"].is_done()


@pytest.mark.slow
def test_fresh_weights_are_their_own_copy(loaded: Path) -> None:
    encoder = describe(RunFolder(str(loaded)).seed(0), "fresh").load(0, momentum=True)
    assert encoder.momentum is not None
    images = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        own, copied = encoder(images), encoder.momentum(images)
    assert list(copied) == ["backbone", "projection"]
    assert all(torch.equal(own[output], copied[output]) for output in copied)


@pytest.mark.slow
def test_a_file_without_the_copy_is_refused_before_a_query(run: Path, local_ray: None, tmp_path: Path) -> None:
    path = moco_v3_file(run, tmp_path / "moco.pth", copied=False)
    raw = loaded_config(path)
    del raw["encoders"]["shadow"]
    chosen = parse(raw, "x")
    told = rf"encoders\.target\.weights = {path} gave no momentum copy, .* and redo with --force pretrain"
    with pytest.raises(UserError, match=told):
        audit.run(chosen, str(tmp_path / "run"))
    folder = RunFolder(str(tmp_path / "run")).seed(0)
    assert not storage.list_files(folder.store)
    with pytest.raises(ConfigError, match="encoders.target has no momentum copy"):
        describe(folder, "target").load(0, momentum=True)
    with pytest.raises(UserError, match=told):
        list(try_out(chosen, Splits.load(folder.path), 0))
    moco_v3_file(run, path)
    audit.run(chosen, str(tmp_path / "run"), last="pretrain", force="pretrain")  # as the message says
    assert describe(folder, "target").copied


def test_a_control_that_is_not_named_has_a_copy() -> None:
    raw = loaded_config(Path("moco.pth"))
    _, attack = checked(raw).attacks
    assert references_of(checked(raw), attack) == ("fresh",)
    own = checked(loaded_config(Path("moco.pth"), keys="own"))
    assert (references_of(own, own.attacks[1]), passed_over(own, own.attacks[1])) == (("shadow",), None)
    del raw["encoders"]["fresh"]
    alone = checked(raw)
    assert references_of(alone, attack) == ()
    assert reference_caveats(alone) == ["No reference for white-box on target: shadow has no momentum copy."]
    assert references_of(checked(raw | {"validity": {"references": ["shadow"]}}), attack) == ()
