"""The section ``defenses``: what it stands for, what is served, and that a defense of nothing changes nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.report.contents import schema
from pipelines.audit import run as audit
from pipelines.config.run_config import RunConfig
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.plan.checks import build
from pipelines.plan.load import parse
from pipelines.run.folder import RunFolder
from tests.conftest import small_config
from tests.pipelines.columns import columns

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
    assert build(json.loads(json.dumps(config.model_dump(mode="json", by_alias=True)))) == config


def test_an_attacker_who_knows_nothing_of_a_defense_fits_on_plain_shadows() -> None:
    plain, config = config_with(), config_with({**LAST, "adaptive": False})
    assert [name for name in config.encoders if name not in plain.encoders] == ["target+nothing"]
    for before, after in zip(plain.attacks, config.attacks[len(plain.attacks) :], strict=True):
        assert after == before.model_copy(update={"target": "target+nothing"})
    assert build(json.loads(json.dumps(config.model_dump(mode="json", by_alias=True)))) == config


@pytest.mark.parametrize(
    ("defenses", "message"),
    [
        ([{"defense": "hope"}], "defense = 'hope', allowed: "),
        ([{"defense": "early-stopping"}], "epoch is missing, which the defense early-stopping needs"),
        ([{"defense": "early-stopping", "epoch": 2}], "epoch = 2, but target keeps 1, 3; add it to checkpoints"),
        ([LAST, LAST], "two are called 'nothing'; give them labels"),
        ([{**LAST, "settings": {"strength": 1}}], "unknown setting 'strength'"),
        ([{**LAST, "outside": {"target": "nobody"}}], "nobody"),
        ([{**LAST, "outside": {"target": "target-nonmember"}}], "holds target-nonmember, which the audit judges"),
        ([{**LAST, "outside": {"target": "target-member"}}], "outside holds target-member, which target was"),
        ([{**LAST, "attribute": "mood"}], "attribute = 'mood', data.attributes has: none is declared"),
        ([{**LAST, "beside": "clean"}], "defenses.beside = 'clean', allowed: nothing"),
        ([{**LAST, "without": ["lira"]}], "defenses.without = 'lira', allowed: encodermi-t, lpla"),
        ([{**LAST, "of": ["shadow"]}], "defenses.of = 'shadow', attacked and trained here: target, shadow"),
    ],
)
def test_mistakes_are_one_line(defenses: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UserError) as caught:
        config_with(*defenses)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_encoder_made_by_halves_is_defended() -> None:
    """The first has half 0, which is a half like any other."""
    shadows = {"like": "shadow", "train_on": ["target-member", "target-nonmember"], "halves": 4}
    attacks = [{"attack": "lpla"}, {"attack": "lpla", "target": "shadows-0"}]
    config = config_with(LAST, encoders=small_config()["encoders"] | {"shadows": shadows}, attacks=attacks)
    assert [name for name in config.encoders if "+" in name] == ["target+nothing", "shadow+nothing"]


@pytest.mark.slow
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
    found = [
        columns(config, place, name, 3, "backbone", [PairwiseSimilarity()], roles)[PairwiseSimilarity()]
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


@pytest.mark.slow
def test_a_defense_is_added_to_a_finished_run(finished_run: Path, tmp_path: Path) -> None:
    """What the run had found stays byte for byte; the attacks on the defended encoder come to it."""
    place = tmp_path / "run"
    shutil.copytree(finished_run, place)
    before = {path.relative_to(place): path.read_bytes() for path in place.glob("seed-0/attacks/*/result.json")}
    audit.run(config_with(STOPPED), str(place))
    after = {path.relative_to(place): path.read_bytes() for path in place.glob("seed-0/attacks/*/result.json")}
    assert len(before) > 0
    assert {path: after[path] for path in before} == before
    report = json.loads((place / "report.json").read_text())
    assert {entry["target"] for entry in report["attacks"]} == {"target", "target+stopped"}
    assert [entry["label"] for entry in report["defenses"]] == ["stopped"]


HEADS = {
    "noise": {"defense": "additive-gaussian", "settings": {"scale": 20.0}},
    "sampled": {"defense": "additive-logistic", "settings": {"epsilon": 1.0, "pairs": 3, "epochs": 40}},
    "private": {
        "defense": "dp-sgd",
        "settings": {"noise_multiplier": 3.0, "epochs": 3, "batch_size": 20, "delta": 1e-3},
    },
    "masked": {
        "beside": "shaken",
        "defense": "memguard",
        "settings": {"epochs": 20, "learning_rate": 0.05},
        "outside": {"target": "provider-nonmember"},
    },
    "shaken": {"defense": "output-noise", "settings": {"scale": 0.3}},
}


@pytest.mark.slow
def test_every_defense_of_a_classifier_through_a_whole_run(local_ray: None, tmp_path: Path) -> None:
    """Each changes what is served, each is attacked through a shadow with the same one, and each tells its numbers."""
    shared = {
        "objective": "supervised",
        "backbone": "conv4",
        "epochs": 20,
        "batch_size": 30,
        "parameters": {"classes": 10},
    }
    data = small_config()["data"]
    data["roles"]["provider-nonmember"] = {"from": "digits", "count": 60}
    config = parse(
        small_config(
            data=data,
            encoders={
                "target": {**shared, "train_on": "target-member"},
                "shadow": {**shared, "train_on": "shadow-member"},
            },
            queries={"views": 2, "chunk": 64, "outputs": ["logits"]},
            attacks=[{"attack": ["metric-loss", "posterior-mlp"]}],
            defenses=[{**entry, "label": label} for label, entry in HEADS.items()],
        ),
        "heads.yaml",
    )
    folder = audit.run(config, str(tmp_path / "run"))
    report = json.loads(Path(folder.path, "report.json").read_text())
    jsonschema.validate(report, schema())
    found = {entry["label"]: entry for entry in report["defenses"]}
    assert set(found) == set(HEADS)
    prints = {report["encoders"][f"target+{label}"]["fingerprint"] for label in HEADS}
    assert len(prints | {report["encoders"]["target"]["fingerprint"]}) == len(HEADS) + 1
    for label, entry in found.items():
        assert {pair["attack"] for pair in entry["attacks"]} == {"metric-loss", "posterior-mlp"}, label
        assert {measure["measure"] for measure in entry["utility"]} >= {"classifier"}, label
    rows = {(row["attack"], row["target"]): row["shadow"] for row in report["pooled"]}
    assert all(rows["metric-loss", f"target+{label}"] == f"shadow+{label}" for label in HEADS)
    assert {label: entry["target"] for label, entry in found.items() if entry["target"] != "target"} == {
        "masked": "target+shaken"
    }
    before = {pair["attack"]: pair["clean"] for pair in found["masked"]["attacks"]}
    assert before == {pair["attack"]: pair["defended"] for pair in found["shaken"]["attacks"]}
    assert found["sampled"]["numbers"]["epsilon"] == pytest.approx(1.0)
    assert found["sampled"]["numbers"]["pairs"] == 3
    assert found["private"]["numbers"]["epsilon_rdp"] > 0

    def leak(label: str, side: str = "defended") -> float:
        return max(pair[side]["auc"]["value"] for pair in found[label]["attacks"])

    plain = leak("noise", "clean")
    assert plain > 0.7  # it knows its members by heart
    for label in ("noise", "private"):  # a head that is all but noise tells nothing of them
        assert leak(label) < plain - 0.1, label
    assert "Attribute inferred" not in Path(folder.path, "report.html").read_text()
    assert {"defenses-attacks-target", "defenses-tradeoff-target"} <= {
        path.stem for path in Path(folder.path, "figures").glob("defenses*")
    }
