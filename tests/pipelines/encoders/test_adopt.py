"""An encoder from elsewhere, audited against folders of candidates and controls, from its file to the report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from mi_core.checks import ConfigError
from mi_core.encoders import build_backbone
from mi_core.encoders.checkpoint import fingerprint, weights_bytes
from mi_core.report.contents import schema
from pipelines.audit import run as audit
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.draw.draw import draw
from pipelines.data.draw.splits import Splits
from pipelines.data.read.sources import Source
from pipelines.data.scan.scan import scan
from pipelines.encoders.adopt import try_out
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.plan.load import parse
from pipelines.plan.rules import ThreatModel
from pipelines.run.folder import RunFolder
from tests.pipelines import staged
from tests.raising import refused

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def folders(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Members and non-members of the trained target as folders of PNG files, and its weights in SimCLR's layout."""
    place = tmp_path_factory.mktemp("foreign")
    splits = Splits.load(str(trained_run / "seed-0"))
    wanted = {
        "candidates": splits.ids(["target-member"])[:40],
        "known": splits.ids(["target-member"])[40:],
        "controls": splits.ids(["target-nonmember"]) + splits.ids(["shadow-nonmember"]),
    }
    group_of = {name: group for group, names in wanted.items() for name in names}
    digits = SourceConfig(kind="digits")
    for item in Source(digits).items():
        for sample in Source(digits).read(item):
            group = group_of.get(f"digits/{sample.key}")
            if group is not None:
                (place / group).mkdir(exist_ok=True)
                (place / group / f"{sample.key}.png").write_bytes(sample.image)
    trained = describe(RunFolder(str(trained_run)).seed(0), "target").load(3)
    state = {f"encoder.{key}": value for key, value in trained.backbone.state_dict().items()}
    state |= {f"projector.{key}": value for key, value in trained.heads["projection"].state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, place / "simclr.pth")
    torch.manual_seed(0)
    bare = build_backbone("conv4", 1, 8)
    torch.save(
        {"state_dict": state | {f"encoder.{key}": value for key, value in bare.state_dict().items()}},
        place / "untrained.pth",
    )
    return {name: place / name for name in (*wanted, "simclr.pth", "untrained.pth")}


def config_of(folders: dict[str, Path], **sections: Any) -> dict[str, Any]:
    target = {
        "load": "checkpoint:conv4",
        "weights": str(folders["simclr.pth"]),
        "mean": [0.5],
        "std": [0.5],
        "heads": {"projection": {"activation": "relu"}},
        "augmentation": {"crop_scale": [0.75, 1.0], "flip": 0, "jitter_probability": 0, "grayscale": 0},
    }
    return {
        "name": "foreign",
        "data": {
            "sources": {
                name: {"kind": "imagefolder", "path": str(folders[name])}
                for name in ("candidates", "controls", "known")
            },
            "image_size": 8,
            "channels": 1,
            "roles": {
                "candidate": {"from": "candidates"},
                "control": {"from": "controls"},
                "known-member": {"from": "known"},
                "known-nonmember": {"from": "control", "count": 40},
            },
        },
        "encoders": {"target": target, "fresh": {"like": "target", "fresh": True}},
        "queries": {"views": 4, "outputs": ["projection", "backbone"]},
        "attacks": [{"attack": "mean-cosine", "reference": "nonmembers"}, {"attack": "lpla", "reference": "known"}],
        "validity": {"references": ["fresh"]},
        "resources": {"encoder_actors": 1, "actor_cpus": 0.5},
    } | sections


@pytest.fixture(scope="module")
def audited(folders: dict[str, Path], local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited") / "run"
    audit.run(parse(config_of(folders), "foreign.yaml"), str(folder))
    return folder


def test_it_is_the_encoder_that_was_saved(audited: Path, trained_run: Path) -> None:
    theirs = describe(RunFolder(str(trained_run)).seed(0), "target").load(3)
    stored = describe(RunFolder(str(audited)).seed(0), "target")
    assert stored.record.layout == "encoder.* state dict"
    assert stored.record.activations == {"projection": "relu"}
    assert stored.record.preprocessing == {
        "size": None, "interpolation": "bilinear", "mean": [0.5], "std": [0.5], "resize": None, "fit": None,
    }  # fmt: skip
    images = torch.rand(3, 1, 8, 8)
    for output, embedding in stored.load(0)(images).items():
        torch.testing.assert_close(embedding, theirs(images)[output])
    fresh = describe(RunFolder(str(audited)).seed(0), "fresh")
    assert fresh.record.layout == "fresh weights"
    assert fingerprint(fresh.load(0)) != fingerprint(stored.load(0))


def test_the_report_answers_about_the_candidates(audited: Path) -> None:
    report = json.loads((audited / "report.json").read_text())
    for entry in report["attacks"]:
        assert (entry["n_member"], entry["n_nonmember"]) == (40, 80)  # 40 of the 120 controls fix the threshold
    assert {entry["reference"] for entry in report["attacks"]} == {"nonmembers", "known"}
    works = describe(RunFolder(str(audited)).seed(0), "target").record.consistency["works"]
    assert ("warning" in report["validity"]) == (not works)  # after three epochs it hardly does
    assert report["validity"]["verdict"] in ("leak", "confounded", "no-evidence" if works else "undecided")
    assert report["membership"] == "asked"
    rates = {"accuracy", "precision", "recall"}
    assert not any(rates & set(row) for row in (*report["attacks"], *report["pooled"]))
    columns = pq.read_table(audited / "results.parquet").column_names
    assert "auc" in columns
    assert not [name for name in columns if name.startswith(tuple(rates)) or name.endswith("as_published")]
    short = json.loads((audited / "results.json").read_text())
    assert not any(rates & set(row) for row in short["rows"])
    target = report["encoders"]["target"]
    assert target["load"] == "checkpoint:conv4"
    assert target["preprocessing"] == "any size, mean 0.5, std 0.5"
    assert target["layout"] == "encoder.* state dict"
    assert target["used"].startswith("backbone ")
    assert target["ignored"] == "epoch (no weights)"
    assert target["assumed"] == "activation relu in the projection, as the config says"
    assert "hown two views of an image, it ranks the second above " in target["consistency"]
    assert ", fresh weights: " in target["consistency"]
    assert "; 64 images), clearly better." in target["consistency"]
    html = (audited / "report.html").read_text()
    assert "Were your 40 images used to train this encoder?" in html
    assert "your 40 images, 80 control images" in html
    assert "Pre-training" not in html
    assert not list((audited / "figures").glob("precision-recall*"))
    assert "read as encoder.* state dict" in html
    assert "Ignored: epoch (no weights)" in html
    assert "so they were assumed: activation relu in the projection, as the config says" in html
    assert "any size, mean 0.5, std 0.5" in html
    jsonschema.validate(report, schema())


def test_an_encoder_that_recognises_nothing_gets_no_clean_bill(
    folders: dict[str, Path], local_ray: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Random weights under another name give nothing away: that says nothing about the encoder that was meant."""
    config = config_of(folders)
    config["encoders"]["target"]["weights"] = str(folders["untrained.pth"])
    config["attacks"], config["queries"] = config["attacks"][:1], {"views": 4, "outputs": ["backbone"]}
    audit.run(parse(config, "foreign.yaml"), str(tmp_path / "run"))
    report = json.loads((tmp_path / "run/report.json").read_text())
    jsonschema.validate(report, schema())
    assert report["validity"]["verdict"] == "undecided"
    fault = "this encoder recognises images no better than an untrained one. Wrong weights file or preprocessing?"
    assert report["validity"]["warning"].startswith(f"The encoder target: {fault}")
    assert report["caveats"][0].startswith("The encoder target: ")
    html = (tmp_path / "run/report.html").read_text()
    assert html.index(fault) < html.index("<nav")
    assert "No evidence" not in html
    told = capsys.readouterr()
    assert fault in told.out + told.err
    assert "480 images for 2 encoders together" in told.out + told.err
    assert "1 result," in told.out + told.err
    del config["validity"], config["encoders"]["fresh"]
    staged.judge(parse(config, "foreign.yaml"), tmp_path / "alone")
    alone = json.loads((tmp_path / "alone/report.json").read_text())
    jsonschema.validate(alone, schema())
    assert (alone["validity"]["verdict"], alone["validity"]["reason"]) == ("undecided", "encoder-broken")
    assert "control_auc" not in alone["validity"]


def test_one_that_is_meant_to_be_random_is_no_broken_one(audited: Path) -> None:
    """A control, and the random weights that a self-test plants as a target of which the verdict is no evidence."""
    shown = describe(RunFolder(str(audited)).seed(0), "fresh").record.consistency
    assert shown["works"]
    assert shown["encoder"]["ci95"][0] <= shown["reference"]["ci95"][1]


@pytest.mark.slow
def test_a_sweep_adopts_it_once_and_its_probe_is_counted(
    folders: dict[str, Path], local_ray: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    swept = config_of(folders, sweep={"attacks.*.fpr": [0.05, 0.1]}, budget={"queries": 10_000})
    config = parse(swept, "foreign.yaml")
    audit.run(config, str(tmp_path / "run"))
    told = capsys.readouterr()
    assert (told.out + told.err).count("hown two views of an image") == 2  # the target, and fresh weights
    report = json.loads((tmp_path / "run/report.json").read_text())
    probes = [entry for entry in report["queries"]["entries"] if entry["role"] == "(probe)"]
    assert [(entry["encoder"], entry["images"], entry["queries"]) for entry in probes] == [
        ("fresh", 64, 384), ("target", 64, 384),
    ]  # fmt: skip
    asked = sum(entry["queries"] for entry in report["queries"]["entries"] if entry["encoder"] == "target")
    short = f"budget.queries = {asked - 1} is too small: the attacks need {asked} queries of target"
    with pytest.raises(UserError, match=short):
        audit.run(parse(swept | {"budget": {"queries": asked - 1}}, "foreign.yaml"), str(tmp_path / "less"))
    short = "budget.queries = 959 is too small: checking that target works may take 960 queries"
    with pytest.raises(UserError, match=short):
        audit.run(parse(swept | {"budget": {"queries": 959}}, "foreign.yaml"), str(tmp_path / "least"))
    assert not (tmp_path / "least/seed-0/encoders").exists()


def test_it_resumes_without_the_weights_file(audited: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    """What was adopted is in the run folder; damage to it is noticed."""
    shutil.copytree(audited, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/features")
    shutil.rmtree(tmp_path / "run/seed-0/attacks")
    moved = folders["simclr.pth"].rename(folders["simclr.pth"].with_suffix(".away"))
    try:
        staged.judge(parse(config_of(folders), "foreign.yaml"), tmp_path / "run")
    finally:
        moved.rename(folders["simclr.pth"])
    first, again = (json.loads((place / "report.json").read_text()) for place in (audited, tmp_path / "run"))
    assert [entry["auc"] for entry in again["attacks"]] == [entry["auc"] for entry in first["attacks"]]
    stored = describe(RunFolder(str(tmp_path / "run")).seed(0), "target")
    fresh = describe(RunFolder(str(tmp_path / "run")).seed(0), "fresh").load(0)
    storage.write_atomic(f"{stored.folder}/epoch-0000.safetensors", weights_bytes(fresh))
    refused(ConfigError, "the saved weights are damaged; redo with --force pretrain", stored.load, 0)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"load": "keras:x", "weights": "w"}, "load = 'keras', allowed: checkpoint"),
        (
            {"load": "checkpoint:conv4", "weights": "w", "heads": {"projection": {"activation": "sine"}}},
            "activation = 'sine', allowed: elu, gelu",
        ),
        (
            {"load": "checkpoint:conv4", "weights": "w", "heads": {"fc": {"activation": "relu"}}},
            "heads = 'fc', allowed: logits",
        ),
        (
            {"load": "timm:resnet18", "weights": "w", "heads": {"projection": {"activation": "relu"}}},
            "heads is given, but 'timm:resnet18' defines its own; leave heads out",
        ),
        ({"load": "torchscript", "weights": "w"}, "runs code of others; set trust_code: true"),
        ({"load": "python:a:b", "trust_code": True, "weights": "w"}, "a Python callable brings its own"),
        ({"load": "python:a:b", "trust_code": True, "weights_key": "ema"}, "weights_key = 'ema' is for a file of"),
        ({"load": "torchscript", "trust_code": True, "weights": "w", "fresh": True}, "a TorchScript file cannot be"),
        ({"load": "onnx", "weights": "w", "fresh": True}, "an ONNX file cannot be re-initialised as control"),
        ({"load": "onnx", "weights": "w", "weights_key": "ema"}, "weights_key = 'ema' is for a file of weights"),
        (
            {"load": "python:a:b", "trust_code": True, "fresh": True},
            "a Python function cannot be re-initialised as control. Give a second function with random weights: "
            "encoders.fresh={load: python:m:g, trust_code: true}",
        ),
        ({"load": "python:a:b", "trust_code": True, "fit": "squash"}, "unknown key encoders.target.fit"),
        ({"load": "checkpoint:conv4"}, "weights is missing for 'checkpoint:conv4'; give the file, or fresh"),
        ({"load": "checkpoint:conv4", "weights": "w", "epochs": 3}, "unknown key encoders.target.epochs; "),
        ({"load": "checkpoint:conv4", "weights": "w", "interpolation": "cubic"}, "interpolation = 'cubic', allowed"),
    ],
)
def test_mistakes_are_one_line(folders: dict[str, Path], target: dict[str, Any], message: str) -> None:
    config = config_of(folders, validity={})
    config["encoders"] = {"target": target}
    with pytest.raises(UserError, match="foreign.yaml: ") as caught:
        parse(config, "foreign.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_open_clip_encoders_are_queried_with_clips_views(folders: dict[str, Path]) -> None:
    config = config_of(folders, validity={}, queries={"outputs": ["backbone"]})
    config["encoders"] = {"target": {"load": "open_clip:ViT-B-32", "weights": "w"}}
    target = parse(config, "foreign.yaml").encoders["target"]
    assert target.objective == "clip"
    assert target.augmentation["crop_scale"] == (0.9, 1.0)
    assert ThreatModel(parse(config, "foreign.yaml")).references_of(parse(config, "foreign.yaml").attacks[0]) == ()


def test_check_tries_the_weights(folders: dict[str, Path], tmp_path: Path) -> None:
    config = config_of(folders)

    def tried(changed: dict[str, Any]) -> dict[str, str]:
        parsed = parse(changed, "foreign.yaml")
        return dict(try_out(parsed, draw(parsed.data, scan(parsed.data), 0), 0))

    found = tried(config)
    assert found["target"].startswith("encoder.* state dict; used: backbone 24, projection 8; ")
    assert "any size, mean 0.5, std 0.5, outputs backbone, projection; " in found["target"]
    assert "hown two views of an image, it ranks the second above " in found["target"]
    assert "; 64 images), clearly better." in found["target"]
    assert found["fresh"].startswith("fresh weights; assumed: activation relu in the projection, as the config says, ")
    assert "WARNING" not in found["fresh"]  # it is meant to know nothing
    config["encoders"]["target"]["weights"] = str(folders["untrained.pth"])
    fault = "this encoder recognises images no better than an untrained one. Wrong weights file or preprocessing?"
    assert f"WARNING: {fault}" in tried(config)["target"]
    config["encoders"]["target"]["weights"] = str(tmp_path)
    refused(UserError, "encoders.target.weights = .* is no file", tried, config)
    config["queries"]["outputs"] = ["prediction"]
    config["encoders"]["target"]["weights"] = str(folders["simclr.pth"])
    refused(UserError, "asks for 'prediction', but the encoder 'target' has backbone, projection", tried, config)


def test_a_trial_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipelines.console import under_way
    from pipelines.encoders import probes

    def consistency(*_: Any, asked: Callable[[int], None], **__: Any) -> dict[str, Any]:
        asked(100)
        asked(20)
        return {"told": [piece.line() for piece in under_way()]}

    monkeypatch.setattr(probes, "view_consistency", consistency)
    shown = SimpleNamespace(images=np.zeros((64, 3, 8, 8), np.uint8))
    config = SimpleNamespace(views=lambda: None)
    probe = probes.Probe(config, None, 0, shown)  # type: ignore[arg-type]
    (line,) = probe.consistency(None, None, torch.device("cpu"))["told"]  # type: ignore[arg-type]
    assert line.startswith("trying out the encoder: 120 of 384 views (31.2%), ") and line.endswith(" left")
