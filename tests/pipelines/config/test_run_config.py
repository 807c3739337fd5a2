"""The fields of a config: every mistake in one is one line that names field, value and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pipelines.mistakes import message


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"quieries": {}}, "unknown key quieries; did you mean queries? allowed: attacks, attribute_inference, "),
        ({"encoders.target.epoch": 3}, "unknown key encoders.target.epoch; did you mean epochs?"),
        ({"attacks.1.learningrate": 3}, "unknown key attacks.1.learningrate; did you mean learning_rate?"),
        ({"encoders.target.augmentation.crop": 1}, "unknown setting 'crop', allowed: crop_scale"),
        ({"encoders.target.backbone": "resnet9"}, "encoders.target: backbone = 'resnet9', allowed: clip-vit-b, conv4"),
        ({"encoders.target.epochs": "many"}, "encoders.target.epochs = 'many': allowed is a whole number"),
        ({"queries.chunk": 0}, "queries.chunk = 0: allowed is at least 1 or auto"),
        ({"queries.chunk": 1.5}, "queries.chunk = 1.5: allowed is a whole number or auto"),
        ({"encoders.target.epochs": 0}, "encoders.target.epochs = 0: allowed is at least 1"),
        ({"encoders.trained": {"like": "target", "epochs": 0}}, "encoders.trained.epochs = 0: allowed is at least 1"),
        ({"encoders.lpla": {"like": "target", "epoch": 1}}, "unknown key encoders.lpla.epoch; did you mean epochs?"),
        ({"encoders.target.checkpoints": [500]}, "checkpoints holds 500, allowed: 1 to epochs = 400"),
        ({"encoders.shadow.like": "nobody"}, "like = 'nobody', allowed: target, shadow"),
        ({"encoders.target.like": "shadow"}, "like goes in a circle"),
        ({"attacks.0.attack": "encodermi-x"}, "'encodermi-x' is an unknown attack; allowed: encodermi-"),
        ({"queries.outputs": ["pixels"]}, "outputs = 'pixels', allowed: backbone, "),
        ({"validity": {"factor": 0.5}}, "validity.factor"),
        ({"attacks.0": {"attack": "lpla", "reference": "audited"}}, "lpla cannot be fitted on 'audited'; it needs"),
        (
            {"attacks.0": {"attack": "combined", "caption": True, "outputs": ["backbone"]}},
            "outputs = 'backbone', allowed: projection",
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
        ({"data.sources": {"digits": {"kind": "torchvision:CIFAR11"}}}, "torchvision has no data set 'CIFAR11'"),
        ({"name": "../../x"}, "name = '../../x': allowed are letters, digits and . _ + = -, beginning with"),
        ({"encoders.../../../../EVILDIR": {"like": "target"}}, "encoders = '../../../../EVILDIR': allowed are letters"),
    ],
)
def test_mistakes_are_one_line(changes: dict[str, Any], expected: str) -> None:
    text = message(changes)
    assert text.startswith("run.yaml: ")
    assert expected in text
