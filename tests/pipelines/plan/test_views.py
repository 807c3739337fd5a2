"""What an attacker reads, and which output the verdict rests on."""

from __future__ import annotations

from pipelines.plan.load import parse
from pipelines.plan.rules import primary_output
from tests.conftest import small_config


def test_the_verdict_rests_on_an_output_that_its_attack_reads() -> None:
    attacks = [{"attack": "encodermi-t", "outputs": ["projection"]}, {"attack": "lpla", "reference": "known"}]
    raw = small_config(attacks=attacks, queries={"views": 2, "outputs": ["backbone", "projection"]})
    assert primary_output(parse(raw, "x")) == "projection"
    assert primary_output(parse(raw | {"validity": {"attack": 1}}, "x")) == "backbone"
