"""The metrics against loops written from their formulas, and thresholds against trying all."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mi_core.attacks import ATTACKS
from mi_core.attacks.metric import best_balanced_threshold, posteriors, revealed
from mi_core.records import Features, LabelledFeatures

LOGITS = np.random.default_rng(0).normal(0, 3, (40, 5)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 5, 40)


def slow(name: str, logits: np.ndarray, label: int) -> float:
    """Song and Mittal, section 3.2.2, one sample, in plain Python."""
    total = sum(math.exp(float(value)) for value in logits)
    p = [math.exp(float(value)) / total for value in logits]
    if name == "metric-corr":
        return float(max(range(5), key=lambda index: p[index]) == label)
    if name == "metric-conf":
        return p[label]
    if name == "metric-loss":
        return math.log(p[label])
    if name == "metric-ent":
        return sum(value * math.log(value) for value in p)
    others = sum(p[index] * math.log(1 - p[index]) for index in range(5) if index != label)
    return (1 - p[label]) * math.log(p[label]) + others


def features(logits: np.ndarray = LOGITS, labels: np.ndarray = LABELS) -> Features:
    return Features(np.array([f"pool/{row}" for row in range(len(logits))]), {"embedding": logits}, labels=labels)


@pytest.mark.parametrize("name", ["metric-corr", "metric-conf", "metric-loss", "metric-ent", "metric-ment"])
def test_metrics_are_their_formulas(name: str) -> None:
    expected = [slow(name, row, label) for row, label in zip(LOGITS, LABELS.tolist(), strict=True)]
    np.testing.assert_allclose(ATTACKS[name]().statistic(features()), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["metric-conf", "metric-loss", "metric-ent", "metric-ment"])
def test_certain_predictions_stay_finite(name: str) -> None:
    values = ATTACKS[name]().statistic(features(np.array([[1000.0, 0, 0], [1000.0, 0, 0]]), np.array([0, 1])))
    assert np.isfinite(values).all()
    if name == "metric-ment":  # sure and wrong is as far from a member as can be: 2 x 30 log 10
        np.testing.assert_allclose(values, [0, -60 * math.log(10)])


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=30))
def test_the_threshold_is_the_best_of_all(pairs: list[tuple[int, bool]]) -> None:
    values = np.array([value for value, _ in pairs], dtype=float)
    member = np.array([inside for _, inside in pairs])
    if not 0 < member.sum() < len(member):
        return

    def balanced(threshold: float) -> float:
        return ((values >= threshold)[member].mean() + (values < threshold)[~member].mean()) / 2

    chosen = best_balanced_threshold(values, member)
    assert chosen in values
    assert balanced(chosen) == pytest.approx(max(balanced(value) for value in values))


def test_thresholds_are_those_of_the_class() -> None:
    """Two classes with values on different scales: only thresholds of their own tell members apart."""
    confidence = np.array([0.3, 0.4, 0.5, 0.6, 0.8, 0.85, 0.9, 0.95])
    labels = np.array([0] * 4 + [1] * 4)
    logits = np.log(np.where(np.arange(2) == labels[:, None], confidence[:, None], 1 - confidence[:, None]))
    member = np.array([False, False, True, True] * 2)
    attack = ATTACKS["metric-conf"]()
    attack.fit(LabelledFeatures(features(logits, labels), member))
    np.testing.assert_allclose(attack.state()["class_thresholds"], [0.5, 0.9])
    assert ((attack.score(features(logits, labels)) >= attack.threshold) == member).all()
    common = ATTACKS["metric-conf"](ATTACKS["metric-conf"].Parameters(per_class=False))
    common.fit(LabelledFeatures(features(logits, labels), member))
    np.testing.assert_allclose(common.score(features(logits, labels)), confidence)
    assert ((common.score(features(logits, labels)) >= common.threshold) == member).mean() < 1


def test_a_class_that_the_shadow_has_on_one_side_only_takes_the_common_threshold() -> None:
    logits = np.random.default_rng(2).normal(0, 1, (60, 3))
    labels = np.arange(60) % 3
    member = (np.arange(60) // 3 % 2 == 0) & (labels != 2)
    attack = ATTACKS["metric-conf"]()
    attack.fit(LabelledFeatures(features(logits, labels), member))
    values = attack.statistic(features(logits, labels))
    assert attack.state()["class_thresholds"][2] == best_balanced_threshold(values, member)


def test_few_revealed_posteriors() -> None:
    found = posteriors(LOGITS)
    shown = revealed(found, 2)
    np.testing.assert_allclose(shown.sum(axis=1), 1)
    np.testing.assert_allclose(np.sort(shown)[:, -2:], np.sort(found)[:, -2:])
    np.testing.assert_allclose(np.sort(shown)[:, 0], (1 - np.sort(found)[:, -2:].sum(axis=1)) / 3)
    assert revealed(found, 5) is found
    np.testing.assert_allclose(revealed(np.array([[0.25, 0.25, 0.25, 0.25]]), 1), 0.25)
