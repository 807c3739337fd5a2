"""Rates of one run: counted in a loop, low false-positive rates by search, the bootstrap against one drawn plainly."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from mi_core.checks import ConfigError
from mi_core.metrics.membership import accuracy, evaluate, precision, recall, roc_curve, tpr_at_fpr

CASES = st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=4, max_size=40)


def gaussian(n: int, gap: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    member = np.arange(2 * n) < n
    return generator.standard_normal(2 * n) + gap * member, member


def split(cases: list[tuple[int, bool]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([score for score, _ in cases], dtype=np.float64), np.array([truth for _, truth in cases])


@settings(deadline=None, max_examples=80)
@given(CASES, st.integers(0, 9))
def test_rates_equal_scikit_learn(cases: list[tuple[int, bool]], threshold: int) -> None:
    scores, member = split(cases)
    if member.all() or not member.any():
        return
    called = scores >= threshold
    assert accuracy(scores, member, threshold).value == pytest.approx(sklearn_metrics.accuracy_score(member, called))
    assert recall(scores, member, threshold).value == pytest.approx(sklearn_metrics.recall_score(member, called))
    found = precision(scores, member, threshold)
    if called.any():
        assert found is not None
        assert found.value == pytest.approx(sklearn_metrics.precision_score(member, called))
        assert found.n == called.sum()
    else:
        assert found is None


@settings(deadline=None, max_examples=150)
@given(CASES, st.sampled_from([0.01, 0.1, 0.25, 0.29, 0.5, 1.0]))
def test_tpr_at_fpr_is_the_best_allowed(cases: list[tuple[int, bool]], fpr: float) -> None:
    scores, member = split(cases)
    if member.all() or not member.any():
        return
    inside, outside = scores[member], scores[~member]
    best = max(
        (inside >= threshold).mean()
        for threshold in [*scores, scores.max() + 1]
        if (outside >= threshold).sum() <= fpr * len(outside) + 1e-9
    )
    estimate = tpr_at_fpr(scores, member, fpr, seed=0)
    assert estimate.value == pytest.approx(best)
    assert estimate.low <= estimate.value <= estimate.high
    assert estimate.false_positives is not None
    assert estimate.false_positives <= fpr * len(outside) + 1e-9


def test_interval_equals_a_plain_bootstrap_of_both_classes() -> None:
    scores, member = gaussian(500, 1.5, 0)
    inside, outside = scores[member], scores[~member]
    generator = np.random.default_rng(1)
    drawn = []
    for _ in range(1500):
        resampled = np.sort(generator.choice(outside, len(outside)))
        drawn.append((generator.choice(inside, len(inside)) > resampled[-6]).mean())  # 5 of 500 allowed at 1 %
    low, high = np.quantile(drawn, [0.025, 0.975])
    estimate = tpr_at_fpr(scores, member, 0.01, seed=2)
    assert estimate.low == pytest.approx(low, abs=0.03)
    assert estimate.high == pytest.approx(high, abs=0.03)
    assert tpr_at_fpr(scores, member, 0.01, seed=2) == estimate


@pytest.mark.parametrize(("nonmembers", "fpr", "supported"), [(1000, 0.01, True), (999, 0.01, False), (440, 0.1, True)])
def test_a_rate_that_n_cannot_carry_is_marked(nonmembers: int, fpr: float, supported: bool) -> None:
    scores = np.random.default_rng(0).standard_normal(nonmembers + 50)
    estimate = tpr_at_fpr(scores, np.arange(nonmembers + 50) < 50, fpr, seed=0)
    assert estimate.supported is supported
    assert ("supported" in estimate.as_json()) is not supported


def test_roc_curve_ends_in_the_corners() -> None:
    fpr, tpr, thresholds = roc_curve(*gaussian(50, 1, 3))
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    assert (np.diff(fpr) >= 0).all()
    assert thresholds[0] == np.inf


def test_everything_about_one_run_as_json() -> None:
    scores, member = gaussian(440, 2, 4)
    result = evaluate(scores, member, 1.0, seed=0).as_json()
    assert json.loads(json.dumps(result)) == result
    assert result["n_member"] == result["n_nonmember"] == 440
    assert result["tpr_at_fpr"]["0.001"]["supported"] is False
    assert result["accuracy"]["value"] == pytest.approx(((scores >= 1) == member).mean())
    silent = evaluate(scores, member, 99.0, seed=0).as_json()
    assert "precision" not in silent
    assert silent["recall"]["value"] == 0


def test_bad_input() -> None:
    scores, member = gaussian(10, 1, 5)
    with pytest.raises(ConfigError, match="threshold = nan"):
        accuracy(scores, member, float("nan"))
    with pytest.raises(ConfigError, match="fpr = 0"):
        tpr_at_fpr(scores, member, 0, seed=0)
    with pytest.raises(ConfigError, match="resamples = 0"):
        tpr_at_fpr(scores, member, 0.1, seed=0, resamples=0)
