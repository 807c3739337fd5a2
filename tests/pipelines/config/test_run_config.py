"""Configs: the shipped ones are valid, and every mistake is one line that names field, value and remedy."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pipelines.config.demands import demands_of

from mi_core.features.embedding import Embedding
from mi_core.features.lp_norm import LpNorm
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from pipelines.config.reading.shipped import found
from pipelines.config.sections.limits import ResourcesConfig
from pipelines.errors import UserError
from pipelines.plan.load import load, parse
from pipelines.plan.utility import utility_roles
from pipelines.plan.views import primary_output
from tests.conftest import small_config

ROOT = Path(__file__).parents[3]
QUICKSTART = ROOT / "configs" / "quickstart.yaml"


def raw() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text())
    return loaded


def message(changes: dict[str, Any]) -> str:
    """The error of the quickstart config with some dotted fields replaced."""
    config = copy.deepcopy(raw())
    for name, value in changes.items():
        place: Any = config
        *parents, last = name.split(".", 1) if name.startswith("encoders..") else name.split(".")
        for parent in parents:
            place = place[int(parent)] if isinstance(place, list) else place[parent]
        place[int(last) if isinstance(place, list) else last] = value
    with pytest.raises(UserError) as caught:
        parse(config, "run.yaml")
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_every_config_comes_with_the_package_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in [*(ROOT / "configs").glob("*.yaml"), *(ROOT / "configs" / "papers").glob("*.yaml")]:
        assert Path(found(path.stem)).read_bytes() == Path(found(path.name)).read_bytes() == path.read_bytes()
    assert found("papers/lpla-cifar10") == found("lpla-cifar10")
    assert load("quickstart").name == "quickstart"
    (tmp_path / "quickstart.yaml").write_text(QUICKSTART.read_text().replace("name: quickstart", "name: mine"))
    assert load("quickstart").name == load("quickstart.yaml").name == "mine"  # a file that is here wins
    with pytest.raises(UserError, match="quickstat is no file; give an existing config .*, or one of .*quickstart, "):
        load("quickstat")


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
        ({"encoders.target.epochs": "many"}, "encoders.target.epochs = 'many': allowed is a whole number"),
        ({"encoders.target.epochs": 0}, "encoders.target.epochs = 0: allowed is at least 1"),
        ({"encoders.trained": {"like": "target", "epochs": 0}}, "encoders.trained.epochs = 0: allowed is at least 1"),
        ({"encoders.lpla": {"like": "target", "epoch": 1}}, "unknown key encoders.lpla.epoch; did you mean epochs?"),
        (
            {"encoders.shadow.train_on": "known-nonmember", "encoders.shadow.batch_size": 44},
            "attacks.0.reference = 'shadow' was trained on 'known-nonmember': call it x-member",
        ),
        ({"encoders.target.checkpoints": [500]}, "checkpoints holds 500, allowed: 1 to epochs = 400"),
        ({"encoders.shadow.like": "nobody"}, "like = 'nobody', allowed: target, shadow"),
        ({"encoders.target.like": "shadow"}, "like goes in a circle"),
        ({"encoders.target.train_on": "control"}, "needs the role 'control'; data.roles has target-member"),
        ({"attacks.0.target": "stranger"}, "attacks.0.target = 'stranger', allowed: shadow, target"),
        ({"attacks.0.attack": "encodermi-x"}, "'encodermi-x' is an unknown attack; allowed: encodermi-"),
        ({"queries.views": 1}, "queries.views = 1, but encodermi-t compares pairs of views and needs at least 2"),
        (
            {"attacks.0": {"attack": "encodermi-sequential"}, "queries.feature_precision": "float16"},
            "queries.feature_precision = 'float16', but encodermi-sequential holds exact cosines of the target against "
            "stored ones; leave feature_precision out",
        ),
        ({"queries.outputs": ["pixels"]}, "outputs = 'pixels', allowed: backbone, "),
        ({"queries.outputs": ["logits"]}, "asks for 'logits', but the encoder 'target' has backbone, projection"),
        ({"validity": {"references": ["target"]}}, "a reference saw neither group"),
        ({"validity": {"references": ["nobody"]}}, "validity.references = 'nobody', allowed: "),
        ({"validity": {"factor": 0.5}}, "validity.factor"),
        (
            {"validity": {"output": "backbone"}, "attacks.0.outputs": ["projection"]},
            "validity.output = 'backbone', allowed: projection",
        ),
        (
            {"attacks.0": {"attack": "quantile-regression", "reference": "nonmembers", "fpr": 0.001}},
            "attacks.0: quantile-regression needs 1998 known non-members with its fpr, not 88",
        ),
        ({"attacks.0": {"attack": "lpla", "reference": "audited"}}, "lpla cannot be fitted on 'audited'; it needs"),
        (
            {"attacks.0": {"attack": "combined", "reference": "audited", "reference_count": 9}},
            "attacks.0.reference_count has no meaning for reference = 'audited'; leave it out",
        ),
        (
            {"attacks.0": {"attack": "combined", "parts": "32", "outputs": ["projection"]}},
            "outputs = 'projection', allowed: backbone",
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
        ({"data.near_duplicates": {"distance": 9}}, "data.near_duplicates.distance = 9: allowed is at most"),
        ({"validity": {"fdr": 0}}, "validity.fdr = 0: allowed is a number above 0"),
        ({"seeds": [1, 1]}, "seeds [1, 1] repeat"),
        ({"seeds": []}, "seeds = []: allowed is 1 or more entries"),
        ({"queries": {"outputs": []}}, "queries.outputs = []: allowed is 1 or more entries"),
        ({"defenses": ["output-noise", 1]}, "defenses.0 = 'output-noise': allowed is a section of fields with values"),
        (
            {"defenses": [{"defense": "output-noise", "epoch": "x"}]},
            "defenses.0: epoch = 'x': allowed is a whole number",
        ),
        ({"attacks": [{"target": "target"}]}, "attacks.0.attack is missing"),
        ({"attacks.0.target": {"a": 1}}, "attacks.0.target = {'a': 1}: allowed is text, or a list of it"),
        ({"data.roles.known-member.counts": 1}, "did you mean count? allowed: blend, classes, count, fraction"),
        ({"data.sources.digits.path": 5}, "data.sources.digits.path = 5: allowed is text or a list; put it in quotes"),
        (
            {"encoders.target.optimizer": {"warmup": "x"}},
            "encoders.target.optimizer: warmup = 'x': allowed is a number",
        ),
        ({"encoders.shadow.halves": 10**9}, "encoders.shadow.halves = 1000000000, allowed: an even number, 2 to 1024"),
        ({"attacks": [{"attack": ["lpla"] * 200, "target": ["target"] * 200}]}, "combinations are more than 10,000"),
        ({"data.sources": {"digits": {"kind": "shards", "path": "x/{0..99999999}.tar"}}}, "more than 1,000,000 files"),
        ({"data.sources": {"digits": {"kind": "shards", "path": "x/{9..1}.tar"}}}, "counts down; write {1..9}"),
        ({"data.sources": {"digits": {"kind": "torchvision:CIFAR11"}}}, "torchvision has no data set 'CIFAR11'"),
        ({"name": "../../x"}, "name = '../../x': allowed are letters, digits and . _ + = -, beginning with"),
        ({"encoders.../../../../EVILDIR": {"like": "target"}}, "encoders = '../../../../EVILDIR': allowed are letters"),
        ({"sweep": {"..": [1]}}, "sweep.'..': makes the folder '..'; allowed are letters"),
        (
            {"sweep": {"x": [{"label": "..", "queries.views": 4}]}},
            "sweep.x, point '..': makes the folder '..'; allowed",
        ),
        ({"sweep": {"x": [{"label": "a" * 200, "queries.views": 4}]}}, "at most 120 bytes; give it a label"),
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
    with pytest.raises(
        UserError, match=r"data.sources.pool.path is missing; add to the command: data.sources.pool.path=\.\.\.$"
    ):
        load(str(ROOT / "configs" / "cifar10.yaml"))
    with pytest.raises(UserError, match=r"unknown key data.pathh; did you mean path"):
        load(str(ROOT / "configs" / "cifar10.yaml"), ["data.pathh=shards"])
    both = r"controls.path are missing; add to the command: data.sources.candidates.path=... data.sources.controls"
    with pytest.raises(UserError, match=both):
        load(str(ROOT / "configs" / "clip-audit.yaml"))


@pytest.mark.parametrize(
    ("load_", "expected"),
    [
        ("checkpoint:resnet9", "encoders.target: backbone = 'resnet9', allowed: clip-vit-b"),
        ("torchvision:resnet51", "torchvision has no model 'resnet51'; did you mean resnet50 or"),
        ("open_clip:ViT-B-33", "open_clip has no model 'ViT-B-33'; did you mean ViT-B-32 or"),
        ("timm:resnet5000", "timm has no model 'resnet5000'; did you mean resnet50"),
        ("python:module", "write python:module:function"),
    ],
)
def test_an_architecture_that_does_not_exist_is_told_at_once(load_: str, expected: str) -> None:
    paths = [f"data.sources.{name}.path=x" for name in ("candidates", "controls")]
    asked = [
        f"encoders.target={{load: '{load_}', {'' if load_.startswith('python') else 'weights: w, '}trust_code: true}}",
        "encoders.fresh={load: 'timm:resnet50', fresh: true}",
    ]
    with pytest.raises(UserError, match=re.escape(expected)):
        load(str(ROOT / "configs" / "clip-audit.yaml"), [*paths, *asked])


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seeds=[", "seeds=[: not valid YAML"),
        ("attacks=5", "attacks = 5: allowed is a list of entries"),
        ("encoders.*.epochs=3", "nothing in encoders has the field 'epochs'"),
        ("sweep={1: [2]}", "sweep.1, point 2: unknown key 1; allowed"),
        ("seeds=[1] # one", "what follows # would be lost; put text with # in quotes"),
        ("queries.views=3 # three", "queries.views = '3 # three': allowed is a whole number"),
    ],
)
def test_overrides_that_cannot_be(override: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        load(str(QUICKSTART), [override])
    assert expected in str(caught.value)


def test_everything_of_a_list_that_is_none() -> None:
    with pytest.raises(UserError, match=r"attacks = 5: allowed is a list"):
        load(str(QUICKSTART), ["attacks=5", "attacks.*.views=3"])


def test_a_hash_on_the_command_line_is_a_character() -> None:
    config = load(str(ROOT / "configs" / "cifar10.yaml"), ["data.sources.pool.path=my #1 photos/*.tar"])
    assert config.data.sources["pool"].path == "my #1 photos/*.tar"


def test_the_verdict_rests_on_an_output_that_its_attack_reads() -> None:
    attacks = [{"attack": "encodermi-t", "outputs": ["projection"]}, {"attack": "lpla", "reference": "known"}]
    raw = small_config(attacks=attacks, queries={"views": 2, "outputs": ["backbone", "projection"]})
    assert primary_output(parse(raw, "x")) == "projection"
    assert primary_output(parse(raw | {"validity": {"attack": 1}}, "x")) == "backbone"


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
    demands = {(demand.asking.encoder, demand.asking.outputs): demand.needs for demand in demands_of(config)}
    both = ("backbone", "projection")
    all_needs = {PairwiseSimilarity(), LpNorm()}
    measured = {*all_needs, Embedding()}  # for utility; from the query whose norm is attacked
    assert demands["target", both] == {"target-member": measured, "target-nonmember": measured}
    assert demands["shadow", both] == {
        "target-member": measured,  # the control
        "target-nonmember": measured,
        "shadow-member": {PairwiseSimilarity()},  # LpLA is not fitted on the shadow
        "shadow-nonmember": {PairwiseSimilarity()},
    }
    assert "target-member" not in demands["target", ("backbone",)]
    bank, test = utility_roles(config, "target")
    assert bank == ("target-member",)
    assert "target-member" not in test
