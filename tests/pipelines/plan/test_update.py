"""An attack on two versions of an encoder: what its judge reads, and what a config must not say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines.config.run_config import RunConfig
from pipelines.errors import UserError
from pipelines.plan.load import load
from pipelines.plan.rules import ThreatModel
from tests.pipelines.undrawn import plan_in

CONFIG = Path(__file__).parents[3] / "configs/updates-digits.yaml"


def config(*settings: str) -> RunConfig:
    return load(str(CONFIG), settings)


def test_both_versions_are_asked_for_the_same_views_of_the_same_samples() -> None:
    score = plan_in(config(), 0).judges[0].score
    readings: list[Any] = [score.reading, score.fit.readings[0], score.beside[0].reading]
    for reading in readings:
        assert reading.before is not None
        assert reading.before.encoder.name == "before"
        assert reading.before.samples == reading.samples
        for mine, theirs in zip(reading.queries, reading.before.queries, strict=True):
            assert (mine.views, mine.measure, mine.output) == (theirs.views, theirs.measure, theirs.output)
    assert [one.encoder.name for one in readings] == ["target", "target", "others"]
    assert plan_in(config(), 0).judges[1].score.reading.before is None


def test_the_earlier_version_is_no_reference_encoder() -> None:
    chosen = config("validity.references=[]")
    assert ThreatModel(chosen).references_of(chosen.attacks[0]) == ("others",)
    named = config("validity.references=[before]")
    assert ThreatModel(named).references_of(named.attacks[0]) == ()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("attacks.0.before=null", "compares two versions of an encoder: name the earlier one as before"),
        ("attacks.1.before=before", "mean-cosine reads one encoder; leave before out"),
        ("attacks.0.before=target", "is the target; name an earlier version of it"),
        ("attacks.0.before=later", "before = 'later', allowed: "),
        ("encoders.before.train_on=[first-member, target-member]", "was trained on target-member too"),
    ],
)
def test_mistakes_are_one_line(setting: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        config(setting)


def test_a_setting_of_all_attacks_reaches_those_that_compare() -> None:
    assert [attack.before for attack in config("attacks.*.before=others").attacks] == ["others", None]
