"""The section ``defenses``: what it stands for, what is served, and that a defense of nothing changes nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelines import audit
from pipelines.artifacts import RunFolder
from pipelines.config import RunConfig
from pipelines.config_file import parse
from pipelines.encoders import describe
from pipelines.errors import UserError
from pipelines.shard_jobs import load_features
from tests.conftest import small_config

STOPPED = {"defense": "early-stopping", "epoch": 1, "label": "stopped"}
LAST = {"defense": "early-stopping", "epoch": 3, "label": "nothing"}


def config_with(*defenses: dict[str, Any], **sections: Any) -> RunConfig:
    return parse(small_config(defenses=list(defenses), **sections), "small.yaml")


def test_an_entry_stands_for_defended_encoders_and_all_attacks_on_them() -> None:
    plain, config = config_with(), config_with(LAST)
    assert [name for name in config.encoders if name not in plain.encoders] == ["target+nothing", "shadow+nothing"]
    half = len(plain.attacks)
    assert config.attacks[:half] == plain.attacks
    for before, after in zip(plain.attacks, config.attacks[half:], strict=True):
        shadow = "shadow+nothing" if before.reference == "shadow" else before.reference
        assert after == before.model_copy(update={"target": "target+nothing", "reference": shadow})
    again = RunConfig(**json.loads(json.dumps(config.model_dump(mode="json", by_alias=True))))
    assert again == config


@pytest.mark.parametrize(
    ("defenses", "message"),
    [
        ([{"defense": "hope"}], "defense = 'hope', allowed: "),
        ([{"defense": "early-stopping"}], "epoch is missing, which the defense early-stopping needs"),
        ([{"defense": "early-stopping", "epoch": 2}], "epoch = 2, but target keeps 1, 3; add it to checkpoints"),
        ([LAST, LAST], "two are called 'nothing'; give them labels"),
        ([{**LAST, "settings": {"strength": 1}}], "unknown setting 'strength'"),
        ([{**LAST, "outside": {"target": "nobody"}}], "nobody"),
        (
            [{**LAST, "outside": {"target": "target-member"}}],
            "outside holds target-member, which target was",
        ),
        ([{**LAST, "attribute": "mood"}], "attribute = 'mood', data.attributes has: none is declared"),
    ],
)
def test_mistakes_are_one_line(defenses: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UserError) as caught:
        config_with(*defenses)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_defense_that_does_nothing_changes_nothing(trained_run: Path, tmp_path: Path) -> None:
    short = {"queries": {"views": 2, "chunk": 64, "outputs": ["backbone"]}, "attacks": [{"attack": "encodermi-t"}]}
    config = config_with(LAST, STOPPED, checkpoints="last", **short)
    folder = RunFolder(str(tmp_path / "run"))
    folder.open(config.model_dump(mode="json", by_alias=True), command="")
    shutil.copytree(trained_run / "seed-0" / "encoders", tmp_path / "run" / "seed-0" / "encoders")  # trained once
    folder = audit.run(config, folder.path)
    place = folder.seed(0)
    images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    served, plain = describe(place, "target+nothing"), describe(place, "target")
    for output, embedding in plain.load(3)(images).items():
        assert torch.equal(served.load(3)(images)[output], embedding)
    assert not torch.equal(plain.load(1)(images)["backbone"], plain.load(3)(images)["backbone"])
    assert torch.equal(describe(place, "target+stopped").load(1)(images)["backbone"], plain.load(1)(images)["backbone"])
    roles = ("target-member", "target-nonmember")
    recipe = config.recipe(config.attacks[0])
    found = [
        load_features(config, place, name, 3, "backbone", ["pairwise:cosine"], roles, recipe).values["pairwise:cosine"]
        for name in ("target", "target+nothing")
    ]
    np.testing.assert_array_equal(*found)
    report = json.loads(Path(folder.path, "report.json").read_text())
    by_target: dict[str, list[Any]] = {}
    for entry in report["attacks"]:
        if entry["epoch"] == 3:
            by_target.setdefault(entry["target"], []).append((entry["attack"], entry["output"], entry["auc"]["value"]))
    assert by_target["target+nothing"] == by_target["target"]
    assert report["encoders"]["target+nothing"]["utility"] == report["encoders"]["target"]["utility"]
    assert report["encoders"]["target+stopped"]["fingerprint"] != report["encoders"]["target"]["fingerprint"]
