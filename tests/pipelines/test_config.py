"""Configs: the shipped ones are valid, and every mistake is one line that names field, value and remedy."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.config_file import load, parse
from pipelines.errors import UserError
from pipelines.resources import ResourcesConfig

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "configs" / "quickstart.yaml"


def raw() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text())
    return loaded


def message(changes: dict[str, Any]) -> str:
    """The error of the quickstart config with some dotted fields replaced."""
    config = copy.deepcopy(raw())
    for name, value in changes.items():
        place: Any = config
        *parents, last = name.split(".")
        for parent in parents:
            place = place[int(parent)] if isinstance(place, list) else place[parent]
        place[int(last) if isinstance(place, list) else last] = value
    with pytest.raises(UserError) as caught:
        parse(config, "run.yaml")
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_packaged_quickstart_is_the_one_in_configs() -> None:
    assert (ROOT / "pipelines" / "quickstart.yaml").read_bytes() == QUICKSTART.read_bytes()


def test_overrides_reach_into_sections_and_lists() -> None:
    config = load(
        str(QUICKSTART), ["encoders.target.epochs=7", "attacks.1.learning_rate=0.01", "seeds=[3,4]", "name=other"]
    )
    assert config.encoders["target"].epochs == 7
    assert config.encoders["shadow"].epochs == 7  # like: target follows
    assert config.attacks[1].parameters().learning_rate == 0.01
    assert config.seeds == (3, 4)
    assert config.name == "other"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"quieries": {}}, "unknown key quieries; did you mean queries? allowed: attacks, attribute_inference, "),
        ({"encoders.target.epoch": 3}, "unknown key encoders.target.epoch; did you mean epochs?"),
        ({"attacks.1.learningrate": 3}, "unknown key attacks.1.learningrate; did you mean learning_rate?"),
        ({"encoders.target.augmentation.crop": 1}, "unknown setting 'crop', allowed: crop_scale"),
        ({"encoders.target.backbone": "resnet9"}, "encoders.target: backbone = 'resnet9', allowed: clip-vit-b, conv4"),
        ({"encoders.target.epochs": "many"}, "encoders.target.epochs = 'many': input should be a valid integer"),
        ({"encoders.target.epochs": 0}, "encoders.target.epochs = 0: input should be greater than or equal to 1"),
        ({"encoders.target.checkpoints": [500]}, "checkpoints holds 500, allowed: 1 to epochs = 400"),
        ({"encoders.shadow.like": "nobody"}, "like = 'nobody', allowed: target, shadow"),
        ({"encoders.target.like": "shadow"}, "like goes in a circle"),
        ({"encoders.target.train_on": "control"}, "needs the role 'control'; data.roles has target-member"),
        ({"attacks.0.target": "stranger"}, "attacks.0.target = 'stranger', allowed: target, shadow"),
        ({"attacks.0.attack": "encodermi-x"}, "unknown attack; allowed: encodermi-"),
        ({"queries.views": 1}, "queries.views = 1, but encodermi-t compares pairs of views and needs at least 2"),
        ({"queries.outputs": ["pixels"]}, "outputs = 'pixels', allowed: backbone, "),
        ({"queries.outputs": ["logits"]}, "asks for 'logits', but the encoder 'target' has backbone, projection"),
        ({"validity": {"control": "target"}}, "a control saw neither group"),
        (
            {"attacks.0": {"attack": "quantile-regression", "reference": "nonmembers", "fpr": 0.001}},
            "attacks.0: quantile-regression needs 1998 known non-members with its fpr, not 88",
        ),
        (
            {"data.roles.calibration-member": {"from": "target-member", "count": 9}},
            "data.roles.calibration-member is a part of target-member; take it from a source",
        ),
        (
            {"data.roles.calibration-member": {"from": "digits", "count": 9}},
            "data.roles.calibration-member: target was not trained on it; add it to encoders.target.train_on",
        ),
        ({"data.group_by": "class"}, "from = 'class', allowed: key, json:<field>"),
        ({"data.near_duplicates": {"distance": 9}}, "data.near_duplicates.distance = 9: input should be less than"),
        ({"validity": {"fdr": 0}}, "validity.fdr = 0: input should be greater than 0"),
        ({"seeds": [1, 1]}, "seeds [1, 1] repeat"),
        ({"seeds": []}, "seeds"),
    ],
)
def test_mistakes_are_one_line(changes: dict[str, Any], expected: str) -> None:
    text = message(changes)
    assert text.startswith("run.yaml: ")
    assert expected in text


def test_files_that_are_no_config(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give an existing config file"):
        load(str(tmp_path / "none.yaml"))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not valid YAML"):
        load(str(tmp_path / "binary.yaml"))
    (tmp_path / "list.yaml").write_text("[1, 2]")
    with pytest.raises(UserError, match="expected sections such as data"):
        load(str(tmp_path / "list.yaml"))
    (tmp_path / "broken.yaml").write_text("a: [1")
    with pytest.raises(UserError, match="not valid YAML"):
        load(str(tmp_path / "broken.yaml"))
    with pytest.raises(UserError, match="is no override"):
        load(str(QUICKSTART), ["seeds"])
    with pytest.raises(UserError, match="no position in a list"):
        load(str(QUICKSTART), ["attacks.9.target=x"])
    with pytest.raises(UserError, match="give it there or as data.path="):
        load(str(ROOT / "configs" / "cifar10.yaml"))


def test_too_few_cpus_for_readers_beside_actors() -> None:
    resources = ResourcesConfig(encoder_actors=2, actor_cpus=1.0)
    resources.check({"CPU": 2.25})
    with pytest.raises(UserError, match="= 2.25 CPUs, but Ray has 2: readers would never be scheduled"):
        resources.check({"CPU": 2})
    with pytest.raises(UserError, match="train_workers x train_cpus = 3 CPUs"):
        ResourcesConfig(train_workers=3).check({"CPU": 2})
    with pytest.raises(UserError, match="1 GPUs asked for, but Ray has 0"):
        ResourcesConfig(gpus_per_actor=0.5).check({"CPU": 2})


def test_demands_ask_each_encoder_only_what_is_needed() -> None:
    config = load(str(QUICKSTART))
    demands = {(demand.encoder, demand.outputs): demand.needs for demand in config.demands()}
    both = ("backbone", "projection")
    all_needs = {"pairwise:cosine", "norm:2"}
    measured = {*all_needs, "embedding"}  # for utility; from the query whose norm is attacked
    assert demands["target", both] == {"target-member": measured, "target-nonmember": measured}
    assert demands["shadow", both] == {
        "target-member": measured,  # the control
        "target-nonmember": measured,
        "shadow-member": {"pairwise:cosine"},  # LpLA is not fitted on the shadow
        "shadow-nonmember": {"pairwise:cosine"},
    }
    assert "target-member" not in demands["target", ("backbone",)]
    bank, test = config.utility_roles("target")
    assert bank == ("target-member",)
    assert "target-member" not in test
