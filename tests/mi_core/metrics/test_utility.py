"""kNN against a loop and scikit-learn, the probe on what it can and cannot learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.metrics.intervals import rate
from mi_core.metrics.pooled import difference
from mi_core.metrics.utility import classifier_accuracy, knn_accuracy, linear_probe
from tests.raising import refused


def clusters(count: int, seed: int, spread: float = 0.6) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(3, 8, count)  # labels need not start at 0
    centres = np.random.default_rng(99).normal(size=(8, 6))
    return (centres[labels] + generator.normal(0, spread, (count, 6))).astype(np.float32), labels


@pytest.mark.parametrize("k", [1, 5, 20])
def test_knn_equals_a_weighted_vote_by_scikit_learn(k: int) -> None:
    bank, bank_labels = clusters(200, 0)
    test, test_labels = clusters(150, 1)
    referee = KNeighborsClassifier(k, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.1))
    referee.fit(bank.astype(float), bank_labels)
    expected = (referee.predict(test.astype(float)) == test_labels).mean()
    estimate = knn_accuracy(bank, bank_labels, test, test_labels, k=k)
    assert estimate.value == pytest.approx(expected)
    assert estimate.n == 150
    assert 0.4 < estimate.value < 1


def test_the_probe_reads_what_is_linear_and_nothing_else() -> None:
    bank, bank_labels = clusters(300, 2)
    test, test_labels = clusters(300, 3)
    assert linear_probe(bank, bank_labels, test, test_labels).value > 0.75
    chance = linear_probe(bank, bank_labels, test, np.random.default_rng(0).permutation(test_labels))
    assert chance.low < 0.25 < chance.high + 0.05


@pytest.mark.parametrize("spread", [0.6, 2.0])
def test_the_probe_is_that_of_scikit_learn(spread: float) -> None:
    bank, bank_labels = clusters(250, 5, spread)
    test, test_labels = clusters(400, 6, spread)
    bank, test = (np.hstack([part, np.ones((len(part), 1), dtype=np.float32)]) for part in (bank, test))  # one is flat
    referee = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000, tol=1e-8)).fit(bank, bank_labels)
    expected = (referee.predict(test) == test_labels).mean()
    assert linear_probe(bank, bank_labels, test, test_labels).value == pytest.approx(expected, abs=0.003)


def test_classifiers_and_how_much_they_overfit() -> None:
    logits = np.array([[3.0, 1.0], [0.0, 2.0], [1.0, 0.5], [0.1, 0.2]], dtype=np.float32)
    assert classifier_accuracy(logits, np.array([0, 1, 1, 1])).value == 0.75
    train, test = rate(95, 100), rate(60, 200)
    level = difference(test, train)
    assert (level.value, level.n) == (pytest.approx(0.65), 100)
    assert level.low == pytest.approx(0.65 - np.hypot(0.95 - train.low, test.high - 0.3))
    assert level.high == pytest.approx(0.65 + np.hypot(train.high - 0.95, 0.3 - test.low))
    refused(ShapeError, "no image to judge a classifier on", classifier_accuracy, logits[:0], np.zeros(0, dtype=int))
    refused(NumericError, "logit", classifier_accuracy, np.full((1, 2), np.nan), np.zeros(1, dtype=int))


def test_bad_input() -> None:
    bank, labels = clusters(20, 4)
    refused(ConfigError, "k = 21", knn_accuracy, bank, labels, bank, labels, k=21)
    refused(ShapeError, "D=6", knn_accuracy, bank, labels, bank[:, :5], labels, k=1)
    refused(ShapeError, "20 labelled and 0 test", linear_probe, bank, labels, bank[:0], labels[:0])
    refused(ShapeError, "needs 2 classes", linear_probe, bank, np.zeros(20, dtype=int), bank, labels)
    refused(NumericError, "row 0", knn_accuracy, np.full_like(bank, np.nan), labels, bank, labels, k=1)
