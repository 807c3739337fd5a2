"""An attack that lacks something, or would be judged on samples that it is fitted on, is refused in one line."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.plan.load import load
from tests.pipelines.mistakes import message


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"encoders.shadow.train_on": "known-nonmember", "encoders.shadow.batch_size": 44},
            "attacks.0.reference = 'shadow' was trained on 'known-nonmember': call it x-member",
        ),
        ({"attacks.0.target": "stranger"}, "attacks.0.target = 'stranger', allowed: shadow, target"),
        ({"queries.views": 1}, "queries.views = 1, but encodermi-t compares pairs of views and needs at least 2"),
        (
            {"attacks.0": {"attack": "mean-cosine", "reference": "nonmembers", "fpr": 0.001}},
            "attacks.0: mean-cosine needs 999 known non-members with its fpr, not 88",
        ),
        (
            {"attacks.0": {"attack": "combined", "reference": "audited", "reference_count": 9}},
            "attacks.0.reference_count has no meaning for reference = 'audited'; leave it out",
        ),
    ],
)
def test_mistakes_are_one_line(changes: dict[str, Any], expected: str) -> None:
    text = message(changes)
    assert text.startswith("run.yaml: ")
    assert expected in text


def test_an_attack_on_the_audited_samples_needs_no_known_nonmember() -> None:
    """Also where nobody knows which candidates are members."""
    changes = [
        "data.sources.candidates.path=x",
        "data.sources.controls.path=y",
        "encoders.target.load=checkpoint:conv4",
    ]
    config = load("audit-encoder", [*changes, "attacks=[{attack: combined, reference: audited}]"])
    assert [(attack.attack, attack.reference) for attack in config.attacks] == [("combined", "audited")]
