"""Parts of a config that do not fit each other: one line names the field, the value and the remedy."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pipelines.errors import UserError
from pipelines.plan.load import load
from tests.pipelines.mistakes import ROOT, message


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"encoders.target.train_on": "control"}, "needs the role 'control'; data.roles has target-member"),
        ({"sweep": {"..": [1]}}, "sweep.'..': makes the folder '..'; allowed are letters"),
        (
            {"sweep": {"x": [{"label": "..", "queries.views": 4}]}},
            "sweep.x, point '..': makes the folder '..'; allowed",
        ),
        ({"sweep": {"x": [{"label": "a" * 200, "queries.views": 4}]}}, "at most 120 bytes; give it a label"),
        ({"queries.outputs": ["logits"]}, "asks for 'logits', but the encoder 'target' has backbone, projection"),
        ({"validity": {"references": ["target"]}}, "a reference saw neither group"),
        ({"validity": {"references": ["nobody"]}}, "validity.references = 'nobody', allowed: "),
        (
            {"validity": {"output": "backbone"}, "attacks.0.outputs": ["projection"]},
            "validity.output = 'backbone', allowed: projection",
        ),
        (
            {"data.roles.calibration-member": {"from": "target-member", "count": 9}},
            "data.roles.calibration-member is a part of target-member; take it from a source",
        ),
        (
            {"data.roles.calibration-member": {"from": "digits", "count": 9}},
            "data.roles.calibration-member: target was not trained on it; add it to encoders.target.train_on",
        ),
    ],
)
def test_mistakes_are_one_line(changes: dict[str, Any], expected: str) -> None:
    text = message(changes)
    assert text.startswith("run.yaml: ")
    assert expected in text


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
