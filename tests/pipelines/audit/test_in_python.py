"""The audit in one call gives the numbers of a run with the config that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from sklearn.datasets import load_digits

from mi_core import audit
from mi_core.auditing import config_text
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.encoders.checkpoint import weights_bytes
from mi_core.images import encode_png
from mi_core.objectives.simclr import SimCLRParameters
from mi_core.training.data import ResidentImages
from mi_core.training.loop import Pretrainer, PretrainingParameters
from mi_core.training.optimizers import OptimizerParameters
from pipelines.audit.run import run
from pipelines.plan.load import load

pytestmark = pytest.mark.ray

SIZE = 8
VIEWS = {
    "crop_scale": (0.75, 1.0),
    "rotation": 8,
    "flip": 0.0,
    "jitter_probability": 1.0,
    "brightness": 0.1,
    "contrast": 0.0,
    "saturation": 0.0,
    "hue": 0.0,
    "grayscale": 0.0,
}
EXACT = 1e-6
ROUNDED = 1e-3  # of a classifier by neighbours: an embedding in the last batch, of another size, differs by 5e-6
DIVIDED = 5e-3  # of one over what is divided by this classifier's effect size, which may be near 0


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with candidates that an encoder was trained on, controls that it was not, and its weights."""
    folder = tmp_path_factory.mktemp("planted")
    digits = np.round(load_digits().images * (255 / 16)).astype(np.uint8)
    order = np.random.default_rng(0).permutation(len(digits))
    sides = {"photos": order[:300], "others": order[300:700]}
    for side, rows in sides.items():
        (folder / side / "album").mkdir(parents=True)
        for row in rows.tolist():
            (folder / side / "album" / f"{row:04d}.png").write_bytes(encode_png(digits[row]))
    (folder / "photos" / "again.png").write_bytes((folder / f"photos/album/{order[0]:04d}.png").read_bytes())
    (folder / "photos" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and nothing else")
    members = torch.from_numpy(digits[sides["photos"]])[:, None].repeat(1, 3, 1, 1)
    parameters = PretrainingParameters(
        backbone="conv4",
        objective_parameters=SimCLRParameters(0.2, 128, 64),
        optimizer=OptimizerParameters(learning_rate=5e-3),
        epochs=100,
        batch_size=150,
    )
    names = [("train", f"{row}") for row in range(len(members))]
    data = ResidentImages(members, names, torch.zeros(len(members), dtype=torch.int64), batch_size=150, seed=0)
    trainer = Pretrainer(data, SimCLRAugmentation(**VIEWS), parameters, seed=0)
    for _ in range(parameters.epochs):
        trainer.train_epoch()
    (folder / "weights.safetensors").write_bytes(weights_bytes(trainer.encoder()))
    return folder


def found_in(folder: Path, **changes: Any) -> Any:
    settings: dict[str, Any] = {"size": SIZE, "weights": folder / "weights.safetensors", "output": "projection"}
    settings |= {"augmentation": VIEWS}
    settings |= {"mean": (0.5,) * 3, "std": (0.5,) * 3, "progress": False} | changes
    return audit("checkpoint:conv4", folder / "photos", folder / "others", **settings)


@pytest.mark.slow
def test_the_same_numbers_as_a_run(
    planted: Path, tmp_path: Path, local_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draws, duplicates, views, attack, references, tests and flags are one and the same."""
    monkeypatch.setattr(config_text, "EPOCHS", 10)  # of references; the config says so to the run
    attacks = ["lira", {"attack": "combined", "penalty": 5.0}, "rmia"]
    found = found_in(planted, attacks=attacks, nonce="a", registration=tmp_path / "looks.jsonl")
    (tmp_path / "audit.yaml").write_text(found.config())
    out = tmp_path / "run"
    run(load(str(tmp_path / "audit.yaml"), []), str(out))
    whole = json.loads((out / "report.json").read_text())
    assert found.verdict == whole["validity"]["verdict"] == "leak"
    _same(found.report["validity"], whole["validity"], "validity")
    own, theirs = (json.loads(json.dumps(one["evidence"])) for one in (found.report, whole))
    for evidence in (own, theirs):
        for part in evidence["samples"]:
            part.pop("file")
            part["top"] = [{**row, "shard": ""} for row in part["top"]]
    _same(own, theirs, "evidence")
    assert [row["attack"] for row in whole["attacks"]][1:] == ["lira", "combined", "rmia"]
    for row, other in zip(found.report["attacks"], whole["attacks"], strict=True):
        for part in ("attack", "reference", "n_member", "n_nonmember", "auc", "tpr_at_fpr", "threshold", "queries"):
            _same(row[part], other[part], f"{row['attack']}.{part}")
    _same(*(json.loads(json.dumps(one["bounds"][0]["limits"])) for one in (found.report, whole)), "limits")
    for part in ("roles", "duplicates_removed", "near_duplicates_removed"):
        assert found.report["data"][part] == whole["data"][part]
    assert found.report["encoders"]["target"]["fingerprint"] == whole["encoders"]["target"]["fingerprint"]
    assert found.report["encoders"]["target"]["consistency"] == whole["encoders"]["target"]["consistency"]
    for number in range(4):
        name = f"reference-{number}"
        assert found.report["encoders"][name]["fingerprint"] == whole["encoders"][name]["fingerprint"]
    whole_images = 4 * 700  # a run asks the references for embeddings of whole images apart from norms of them
    assert found.report["queries"]["total"] == whole["queries"]["total"] - whole_images
    listed = [row.split(",")[0] for row in (out / "seed-0/validity/flagged.csv").read_text().splitlines()[1:]]
    assert [f"candidates/{key}" for key in found.flagged()] == listed
    assert {bad["key"] for bad in found.report["rejected"]} == {"broken.png"} == {b["key"] for b in whole["rejected"]}


def _same(first: Any, second: Any, place: str) -> None:
    if isinstance(first, dict):
        assert first.keys() == second.keys(), place
        for name in first:
            _same(first[name], second[name], f"{place}.{name}")
    elif isinstance(first, list):
        assert len(first) == len(second), place
        for row, (one, two) in enumerate(zip(first, second, strict=True)):
            _same(one, two, f"{place}[{row}]")
    elif isinstance(first, float):
        if place.startswith("validity.robustness."):
            assert 1 / first == pytest.approx(1 / second, rel=0, abs=DIVIDED), place
        else:
            assert first == pytest.approx(second, abs=ROUNDED if "semantic_auc" in place else EXACT), place
    else:
        assert first == second, place


def test_the_config_is_yaml_that_says_what_is_missing(planted: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIZE * SIZE, 32))
    images = [path.read_bytes() for path in sorted((planted / "others").rglob("*.png"))]
    text = audit(network, images[:150], images[150:], size=SIZE, quick=True, progress=False).config()
    assert text.count("FILL-IN") > 3
    assert yaml.safe_load(text)["data"]["sources"]["candidates"]["path"] == "FILL-IN"
    assert "given as a list" in text
