"""kNN against a loop and scikit-learn, the probe on what it can and cannot learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.metrics.utility import knn_accuracy, linear_probe


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
    shuffled = np.random.default_rng(0).permutation(test_labels)
    chance = linear_probe(bank, bank_labels, test, shuffled)
    assert chance.low < 0.25 < chance.high + 0.05


def test_bad_input() -> None:
    bank, labels = clusters(20, 4)
    with pytest.raises(ConfigError, match="k = 21"):
        knn_accuracy(bank, labels, bank, labels, k=21)
    with pytest.raises(ShapeError, match="D=6"):
        knn_accuracy(bank, labels, bank[:, :5], labels, k=1)
    with pytest.raises(ShapeError, match="20 labelled and 0 test"):
        linear_probe(bank, labels, bank[:0], labels[:0])
    with pytest.raises(ShapeError, match="needs 2 classes"):
        linear_probe(bank, np.zeros(20, dtype=int), bank, labels)
    with pytest.raises(NumericError, match="row 0"):
        knn_accuracy(np.full_like(bank, np.nan), labels, bank, labels, k=1)
