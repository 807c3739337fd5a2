"""The verdict follows its rule in its order, on planted cases and on the boundaries of the rule."""

from __future__ import annotations

import numpy as np
import pytest

from mi_core.records import Estimate
from mi_core.validity.verdict import Validity, doubted, judge, judge_pooled


def scores(gap: float, seed: int, n: int = 300) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(2 * n) + gap * (np.arange(2 * n) < n)


MEMBER = np.arange(600) < 300


@pytest.mark.parametrize(
    ("attack", "blind", "control", "verdict"),
    [
        (2.0, 0.0, 0.0, "leak"),
        (0.0, 0.0, 0.0, "no-evidence"),
        (1.0, 1.0, 0.0, "confounded"),  # the groups differ: the attack is no better than pixels
        (1.0, 0.0, 1.0, "confounded"),  # the same on an encoder that saw neither
        (3.0, 0.6, 0.0, "leak"),  # shifted groups, but the attack is far above what the shift explains
        (-2.0, 0.0, 0.0, "no-evidence"),
    ],
)
def test_planted_cases(attack: float, blind: float, control: float, verdict: str) -> None:
    result = judge(scores(attack, 1), scores(blind, 2), scores(control, 3), MEMBER)
    assert result.verdict == verdict
    assert result.as_json()["verdict"] == verdict


def estimate(low: float, value: float = 0.6) -> Estimate:
    return Estimate(value, low, 0.9, 600)


@pytest.mark.parametrize(
    ("delta", "delta_control", "blind", "control", "verdict"),
    [
        (0.01, 0.01, 0.6, 0.6, "leak"),
        (0.0, 0.01, 0.4, 0.4, "no-evidence"),  # a bound of exactly 0 is not above 0
        (0.01, -0.01, 0.4, 0.51, "confounded"),
        (-0.01, 0.01, 0.51, 0.4, "confounded"),
        (0.01, -0.01, 0.5, 0.5, "no-evidence"),
    ],
)
def test_boundaries(delta: float, delta_control: float, blind: float, control: float, verdict: str) -> None:
    validity = Validity(
        attack_auc=estimate(0.5),
        blind_auc=estimate(blind),
        control_auc=estimate(control),
        delta_auc=estimate(delta),
        delta_control_auc=estimate(delta_control),
    )
    assert validity.verdict == verdict


def test_pooling_gathers_evidence_that_single_seeds_lack() -> None:
    runs = [judge(scores(0.2, seed), scores(0, 50 + seed), scores(0, 90 + seed), MEMBER) for seed in range(12)]
    assert [run.verdict for run in runs].count("leak") < 6
    pooled = judge_pooled(runs)
    assert pooled.verdict == "leak"
    assert pooled.attack_auc.n == 12 * 600
    nothing = [judge(scores(0, s), scores(0, 50 + s), scores(0, 90 + s), MEMBER) for s in range(12)]
    assert judge_pooled(nothing).verdict == "no-evidence"


@pytest.mark.parametrize(
    ("verdict", "recognises", "said"),
    [
        ("no-evidence", False, "undecided"),
        ("no-evidence", True, "no-evidence"),
        ("leak", False, "leak"),
        ("confounded", False, "confounded"),
    ],
)
def test_nothing_found_in_an_encoder_that_does_not_work_is_no_answer(verdict: str, recognises: bool, said: str) -> None:
    assert doubted(verdict, recognises=recognises) == said
