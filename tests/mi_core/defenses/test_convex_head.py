"""The head with a proved sensitivity: its optimum, and distances that never exceed the bound and come near it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from mi_core.checks import ConfigError, NumericError
from mi_core.defenses.convex_head import TOLERANCE, UnitLinear, sensitivity_bound, solve_head
from tests.raising import refused


def data(count: int = 60, width: int = 8, classes: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, count)
    return generator.normal(size=(count, width)) * 7 + np.eye(classes, width)[labels] * 9, labels


def unit(embeddings: np.ndarray) -> np.ndarray:
    return embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)


@pytest.mark.parametrize("penalty", [0.001, 0.1])
def test_the_optimum_is_that_of_scikit_learn(penalty: float) -> None:
    embeddings, labels = data()
    peer = LogisticRegression(C=1 / (penalty * len(labels)), fit_intercept=False, tol=1e-10, max_iter=10_000)
    theirs = peer.fit(unit(embeddings), labels).coef_
    np.testing.assert_allclose(solve_head(embeddings, labels, classes=4, penalty=penalty), theirs, atol=1e-4)


def test_a_search_that_stops_short_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many samples, differences of the objective are lost in rounding before the gradient is short enough."""
    embeddings, labels = data(count=500)
    expected = solve_head(embeddings, labels, classes=4, penalty=0.001)
    stopped = []

    def early(*arguments: Any, options: dict[str, Any], **settings: Any) -> Any:
        found = minimize(*arguments, options=options | {"gtol": 1e-5}, **settings)
        stopped.append(np.linalg.norm(arguments[0](found.x)[1]))
        return found

    monkeypatch.setattr("scipy.optimize.minimize", early)
    found = solve_head(embeddings, labels, classes=4, penalty=0.001)
    assert stopped[0] > 10 * TOLERANCE
    assert np.linalg.norm(found - expected) <= 2 * TOLERANCE / 0.001


@pytest.mark.parametrize("penalty", [0.003, 0.03, 0.3])
def test_no_pair_of_data_sets_is_further_apart_than_the_bound(penalty: float) -> None:
    """Random samples are replaced by random ones, and by the worst of those tried: opposite, of another class."""
    embeddings, labels = data(count=40)
    whole = solve_head(embeddings, labels, classes=4, penalty=penalty)
    bound, generator = sensitivity_bound(penalty, 40), np.random.default_rng(1)
    for row in range(20):
        for other, label in (
            (generator.normal(size=8), generator.integers(4)),
            (-embeddings[row], (labels[row] + 1) % 4),
        ):
            changed, relabelled = embeddings.copy(), labels.copy()
            changed[row], relabelled[row] = other, label
            apart = solve_head(changed, relabelled, classes=4, penalty=penalty) - whole
            assert np.linalg.norm(apart) <= bound
            assert np.abs(apart).sum() <= sensitivity_bound(penalty, 40, weights=32)


def test_leaving_a_sample_out_moves_the_optimum_no_further() -> None:
    """The larger data set is the one that counts."""
    embeddings, labels = data(count=40)
    whole = solve_head(embeddings, labels, classes=4, penalty=0.001)
    for row in range(20):
        rest = np.arange(40) != row
        apart = solve_head(embeddings[rest], labels[rest], classes=4, penalty=0.001) - whole
        assert np.linalg.norm(apart) <= sensitivity_bound(0.001, 40)


def test_the_bound_is_met_within_a_factor_of_three() -> None:
    """One sample alone against its opposite of another class, with a penalty so large that posteriors stay even."""
    penalty = 50.0
    one = solve_head(np.array([[1.0, 0.0]]), np.array([0]), classes=2, penalty=penalty)
    other = solve_head(np.array([[-1.0, 0.0]]), np.array([1]), classes=2, penalty=penalty)
    same = solve_head(np.array([[1.0, 0.0]]), np.array([1]), classes=2, penalty=penalty)
    assert np.linalg.norm(one - other) < 1e-9  # the same decision: an opposite of the other class says nothing new
    assert sensitivity_bound(penalty, 1) / 3 < np.linalg.norm(one - same) <= sensitivity_bound(penalty, 1)


def test_lengths_do_not_count() -> None:
    embeddings, labels = data()
    longer = embeddings * np.random.default_rng(2).uniform(0.1, 9, (len(embeddings), 1))
    one, two = (solve_head(each, labels, classes=4, penalty=0.01) for each in (embeddings, longer))
    np.testing.assert_allclose(one, two, atol=2 * TOLERANCE / 0.01)
    head = UnitLinear(8, 4, bias=False).double()
    head.load_state_dict({"weight": torch.tensor(one)})
    with torch.inference_mode():
        torch.testing.assert_close(head(torch.tensor(embeddings)), head(torch.tensor(longer)))
        np.testing.assert_allclose(head(torch.tensor(longer)).numpy(), unit(embeddings) @ one.T)


def test_mistakes_are_named() -> None:
    embeddings, labels = data()
    refused(ConfigError, "penalty", solve_head, embeddings, labels, classes=4, penalty=0)
    refused(ConfigError, "label 3 is not within 0 to 2", solve_head, embeddings, labels, classes=3, penalty=1)
    embeddings[5] = 0
    refused(NumericError, "embedding 5 has no direction", solve_head, embeddings, labels, classes=4, penalty=1)
