"""Contrastive against supervised classifiers, for real: every attack on them, and what embeddings tell besides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pytest

from mi_core.attacks import ATTACKS
from mi_core.attacks.attribute_inference import AttributeInferenceParameters, infer
from mi_core.features.embedding import Embedding
from mi_core.report.contents import schema
from pipelines.audit import run as audit
from pipelines.config.run_config import RunConfig
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import plan_of
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.plan.items import Query, items_in
from pipelines.plan.load import parse
from pipelines.plan.rules import ThreatModel
from pipelines.run.folder import RunFolder
from tests.conftest import report_of, small_config
from tests.pipelines import staged
from tests.pipelines.columns import columns
from tests.pipelines.undrawn import asked_in, plan_in

POSTERIORS = ["metric-corr", "metric-conf", "metric-loss", "metric-ent", "metric-ment", "posterior-nn", "posterior-mlp"]
BASELINES = ["baseline-a", "baseline-b", "baseline-c"]


def classifiers(**sections: Any) -> dict[str, Any]:
    """Task: is a digit above four? Attribute: is it even? Two classifiers and their shadows, one on other data."""
    config = small_config()
    config["data"] |= {
        "attributes": {
            "high": {"from": "class", "values": {"low": [0, 1, 2, 3, 4], "high": [5, 6, 7, 8, 9]}},
            "even": {"from": "class", "values": {"odd": [1, 3, 5, 7, 9], "even": [0, 2, 4, 6, 8]}},
        },
        "label": "high",
    }
    shared = {"objective": "supervised", "backbone": "conv4", "epochs": 2, "batch_size": 30}
    for kind in ("target", "shadow"):
        own = {**shared, "train_on": f"{kind}-member", "parameters": {"classes": 2}}
        frozen = {**own, "start": kind, "parameters": {"classes": 2, "freeze_backbone": True}}
        config["encoders"] |= {f"contrastive-{kind}": frozen, f"supervised-{kind}": {**own, "epochs": 20}}
    known = {"count": 12, "queries": 200, "iterations": 1}
    config["attacks"] = [
        {"attack": POSTERIORS, "target": "supervised-target", "reference": "supervised-shadow"},
        {"attack": POSTERIORS, "target": "contrastive-target", "reference": "contrastive-shadow"},
        {"attack": "label-only", "target": "supervised-target", "reference": "supervised-shadow", **known},
        {
            "attack": "posterior-nn",
            "target": "supervised-target",
            "reference": "supervised-shadow",
            "aggregate": "concatenation",
        },
        {"attack": BASELINES[:2], "target": "contrastive-target", "reference": "contrastive-shadow"},
        {
            "attack": "baseline-c",
            "target": "contrastive-target",
            "reference": "contrastive-shadow",
            "classes": 2,
            "steps": 2,
        },
    ]
    config["attribute_inference"] = [
        {"attribute": "even", "target": ["contrastive-target", "supervised-target"], "learning_rate": 0.1}
    ]
    config["sweep"] = {"attribute_inference.*.share": [0.2, 1.0]}
    config["queries"] |= {"outputs": ["logits"]}
    return config | sections


@pytest.fixture(scope="module")
def run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = staged.prepare(classifiers(), trained_run, tmp_path_factory.mktemp("runs") / "classifiers")
    audit.run(config_of(), str(folder))
    return folder


def config_of(**sections: Any) -> RunConfig:
    return parse(classifiers(**sections), "classifiers.yaml")


@pytest.mark.slow
def test_every_attack_reports_on_both_classifiers(run: Path) -> None:
    found = report_of(run)
    jsonschema.validate(found, schema())
    by_target: dict[str, set[str]] = {}
    for entry in found["attacks"]:
        assert entry["output"] == "logits"
        by_target.setdefault(entry["target"], set()).add(entry["attack"])
        assert entry["n_member"] == (12 if entry["attack"] == "label-only" else 60)
    assert by_target == {
        "supervised-target": {*POSTERIORS, "label-only"},
        "contrastive-target": {*POSTERIORS, *BASELINES},
    }
    assert "classifier" in found["encoders"]["supervised-target"]
    html = (run / "report.html").read_text()
    assert "overfitting level" in html
    assert "Most frequent value" in html


@pytest.mark.slow
def test_scores_are_those_of_the_classifiers_own_answers(run: Path) -> None:
    """The negated cross-entropy, computed here from the weights, the images and the labels of the task."""
    import torch

    from pipelines.data.draw.images import load_images

    config, place = config_of(), RunFolder(str(run)).seed(0)
    loaded = load_images(config.data, Splits.load(place.path), ThreatModel(config).audited_roles)
    model = describe(place, "supervised-target").load(20)
    with torch.no_grad():
        logits = model(torch.from_numpy(loaded.images).float() / 255)["logits"]
    expected = -torch.nn.functional.cross_entropy(logits, torch.tensor(loaded.labels), reduction="none")
    assert set(loaded.labels) == {0, 1}  # the task's classes, not the digits
    position = [attack.attack for attack in config.attacks].index("metric-loss")
    (path,) = (run / "seed-0/attacks").glob(f"metric-loss-{position}-*/scores.parquet")
    table = pq.read_table(path)
    value_of = dict(zip(table["id"].to_pylist(), table["statistic"].to_pylist(), strict=True))
    np.testing.assert_allclose([value_of[name] for name in loaded.ids], expected, atol=1e-4)


@pytest.mark.slow
def test_crafted_images_come_from_the_shadow_for_target_and_shadow_alike(run: Path) -> None:
    config, place = config_of(), RunFolder(str(run)).seed(0)
    queries = items_in(plan_of(config, place).plan, Query)
    crafted = [query for query in queries if query.views is not None and query.views.crafter is not None]
    assert {query.encoder.name for query in crafted} == {"contrastive-target", "contrastive-shadow"}
    assert {query.views.crafter.name for query in crafted} == {"contrastive-shadow"}  # type: ignore[union-attr]
    (measure,) = {query.measure for query in crafted}
    assert measure.kind == "adversarial"
    found = columns(config, place, "contrastive-target", 2, "logits", [measure], ["target-member"])
    assert found[measure].shape == (60, 4)


@pytest.mark.slow
def test_attributes_are_inferred_from_embeddings_beside_guessing(run: Path) -> None:
    """The accuracy is what the attack gives on the embeddings, attributes and roles read here by hand."""
    config, place = config_of(), RunFolder(str(run)).seed(0)
    rows = {row["target"]: row for row in report_of(run)["attribute_inference"]}
    assert set(rows) == {"contrastive-target", "supervised-target"}
    values = Splits.load(place.path).attribute("even")
    for target, row in rows.items():
        epoch = ThreatModel(config).attacked_epochs(target)[-1]
        known, tested = (
            columns(config, place, target, epoch, "backbone", [Embedding()], [role])
            for role in ("target-member", "target-nonmember")
        )
        truth = [np.array([values[name] for name in part.ids]) for part in (known, tested)]
        again = infer(
            known.values["embedding"],
            truth[0],
            tested.values["embedding"],
            truth[1],
            classes=2,
            parameters=AttributeInferenceParameters(learning_rate=0.1),
            seed=0,
        )
        assert row["accuracy"]["value"] == again.accuracy.value
        assert row["majority"]["value"] == pytest.approx(np.mean(truth[1] == np.bincount(truth[0]).argmax()))
        assert (row["n_auxiliary"], row["accuracy"]["n"]) == (60, 60)
    figures = {path.stem for path in (run / "figures").glob("attributes-*")}
    assert {
        "attributes-accuracy", "attributes-sweep-attribute_inference._.share",
        "attributes-map-contrastive-target-backbone-even",
    } <= figures  # fmt: skip
    share = {
        point["label"]: point["attribute_inference"][0]["n_auxiliary"]
        for point in report_of(run)["sweeps"][0]["points"]
    }
    assert share == {"0.2": 12, "1.0": 60}


@pytest.mark.parametrize(
    ("inference", "message"),
    [
        ({"attribute": "odd"}, "attribute_inference.0.attribute = 'odd', allowed: high, even"),
        ({"target": "nobody"}, "attribute_inference.0.target = 'nobody'"),
        ({"test": ["target-member"]}, "'target-member' is both known to the attacker and attacked"),
        ({"test": ["known-member"]}, "'known-member' is both known to the attacker and attacked"),
        ({"output": "pixels"}, "output = 'pixels'"),
        ({"layers": 0}, "layers = 0"),
        ({"output": "projection"}, "asks for 'projection', but the encoder 'contrastive-target' has backbone, logits"),
    ],
)
def test_mistakes_in_attribute_inference(inference: dict[str, Any], message: str) -> None:
    entry = {"attribute": "even", "target": "contrastive-target"} | inference
    with pytest.raises(UserError, match=message):
        config_of(attribute_inference=[entry], sweep={})


def test_members_of_an_encoder_are_asked_of_a_classifier_built_on_it_with_other_data() -> None:
    raw = classifiers()
    raw["data"]["roles"]["downstream-train"] = {"from": "digits", "count": 60}
    for kind in ("target", "shadow"):
        raw["encoders"][f"contrastive-{kind}"]["train_on"] = "downstream-train"
    config = parse(raw, "classifiers.yaml")
    assert ThreatModel(config).member_roles("contrastive-shadow") == ("shadow-member",)
    attack = next(attack for attack in config.attacks if attack.attack == "baseline-a")
    assert ThreatModel(config).reference_roles(attack) == ("shadow-member", "shadow-nonmember")
    asked = asked_in(plan_in(config))["contrastive-shadow", "logits"]
    assert set(asked) >= {"shadow-member", "shadow-nonmember"}
    (fit,) = {judge.score.fit for judge in plan_in(config).judges if judge.attack == attack}
    assert [role.name for role in fit.readings[0].samples.roles] == ["shadow-member", "shadow-nonmember"]
    assert [role.name for role in fit.known_members] == ["shadow-member"]


def test_which_attacks_know_the_classes() -> None:
    assert {name for name, method in ATTACKS.items() if method.labelled} == {*POSTERIORS, "label-only", "baseline-b"}
