"""The sampler against heads whose sensitivity is a formula, a peer's minimiser and a proved bound; what seeds add."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression

from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.defenses.sensitivity import ADJACENCIES, Array, HeadTraining, Pair, draw_pairs, pair_distance, train_head
from mi_core.training.optimizers import OptimizerParameters
from tests.mi_core.defenses.classifiers import digits
from tests.raising import refused

Present = npt.NDArray[np.bool_]
DESCENT = OptimizerParameters("sgd", learning_rate=0.5, weight_decay=0.0, momentum=0.0, warmup=0.0)


def blobs(count: int, width: int = 4, classes: int = 3, seed: int = 0) -> tuple[Array, Array]:
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    return generator.normal(0, 1, (count, width)) + np.eye(classes, width)[labels], labels


def mean(inputs: Array, targets: Array, present: Present) -> npt.NDArray[np.float64]:
    return np.asarray(inputs[present].mean(axis=0))


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_mean_moves_by_its_formula(adjacency: str) -> None:
    inputs, targets = blobs(30)
    for pair in draw_pairs(30, 20, adjacency=adjacency, seed=1):
        lost = inputs[pair.left_out]
        gained = inputs[pair.other] if pair.other is not None else inputs.mean(axis=0)
        expected = (gained - lost) / 29
        found = pair_distance(pair, inputs, targets, mean)
        assert found == pytest.approx((np.abs(expected).sum(), math.sqrt((expected**2).sum())), rel=1e-9)


def test_a_trained_head_moves_as_the_peer_s_and_within_the_proved_bound() -> None:
    """With an L2 penalty there is one minimum, whose sensitivity is at most 2 L / (n lambda) in the 2-norm (Chaudhuri,
    Monteleoni, Sarwate, JMLR 2011, corollary 8), L = sqrt(2) |(x, 1)|."""
    count, penalty = 60, 0.1
    inputs, labels = blobs(count)
    training = HeadTraining(classes=3, epochs=600, batch_size=0, optimizer=replace(DESCENT, weight_decay=penalty))
    train = partial(train_head, training=training, seed=0)
    extended = np.hstack([inputs, np.ones((count, 1))])

    def peer(rows: npt.NDArray[np.int64]) -> Array:
        fitted = LogisticRegression(C=1 / (penalty * len(rows)), fit_intercept=False, tol=1e-12, max_iter=5000)
        return np.asarray(fitted.fit(extended[rows], labels[rows]).coef_)

    for pair in draw_pairs(count, 5, seed=2):
        difference = np.subtract(*(peer(rows) for rows in pair.rows(count)))
        one_norm, two_norm = pair_distance(pair, inputs, labels, train)
        assert one_norm == pytest.approx(np.abs(difference).sum(), rel=1e-4)
        assert two_norm == pytest.approx(np.linalg.norm(difference), rel=1e-4)
        assert two_norm < 2 * math.sqrt(2) * np.linalg.norm(extended, axis=1).max() / (penalty * (count - 1))


def test_a_twin_in_the_place_of_a_sample_changes_nothing() -> None:
    """Batches are drawn by entry, so the two trainings are the same to the last bit."""
    inputs, labels = blobs(50)
    inputs[41], labels[41] = inputs[7], labels[7]
    for batch_size in (0, 8):
        train = partial(train_head, training=HeadTraining(classes=3, epochs=3, batch_size=batch_size), seed=0)
        assert pair_distance(Pair(7, 41), inputs, labels, train) == (0.0, 0.0)
        assert pair_distance(Pair(7, 40), inputs, labels, train)[0] > 0


def test_pairs_are_adjacent() -> None:
    assert Pair(1, 3).rows(5).tolist() == [[0, 2, 3, 4], [0, 2, 1, 4]]
    assert Pair(3, 1).rows(5).tolist() == [[0, 1, 2, 4], [0, 3, 2, 4]]
    assert Pair(2, None).rows(4).tolist() == [[0, 1, -1, 3], [0, 1, 2, 3]]


def test_pairs_are_drawn_evenly_and_by_index() -> None:
    pairs = draw_pairs(7, 4200, seed=5)
    assert draw_pairs(7, 10, seed=5) == pairs[:10]
    assert draw_pairs(7, 10, seed=6) != pairs[:10]
    drawn = np.zeros((7, 7))
    for pair in pairs:
        assert pair.other is not None
        drawn[pair.left_out, pair.other] += 1
    assert not drawn.diagonal().any()
    assert stats.chisquare(drawn[~np.eye(7, dtype=bool)]).pvalue > 1e-3
    alone = draw_pairs(7, 700, adjacency="leave-one-out", seed=5)
    assert stats.chisquare(np.bincount([pair.left_out for pair in alone], minlength=7)).pvalue > 1e-3
    assert {pair.other for pair in alone} == {None}


def test_a_head_learns_and_all_at_once_is_one_batch() -> None:
    data = digits()
    inputs, labels = data.images.numpy().reshape(-1, 64) / 255, data.labels.numpy()
    weights = train_head(
        inputs[:1200],
        labels[:1200],
        np.ones(1200, dtype=bool),
        training=HeadTraining(epochs=20, batch_size=64, optimizer=OptimizerParameters(learning_rate=0.01)),
        seed=0,
    )
    called = (inputs[1200:] @ weights[:640].reshape(10, 64).T + weights[640:]).argmax(axis=1)
    assert (called == labels[1200:]).mean() > 0.85
    inputs, labels, present = inputs[:300], labels[:300], np.arange(300) % 3 > 0
    once, batch = (HeadTraining(epochs=10, batch_size=size) for size in (0, 300))
    whole = train_head(inputs, labels, present, training=once, seed=1)
    np.testing.assert_allclose(train_head(inputs, labels, present, training=batch, seed=1), whole, rtol=0, atol=1e-12)
    left = train_head(inputs[present], labels[present], np.ones(200, dtype=bool), training=once, seed=1)
    np.testing.assert_array_equal(left, whole)


def test_a_pair_is_a_task_that_can_be_sent() -> None:
    inputs, labels = blobs(30)
    train = partial(train_head, training=HeadTraining(classes=3, epochs=3, batch_size=8), seed=4)
    task = partial(pair_distance, draw_pairs(30, 1, seed=0)[0], inputs, labels, train)
    assert pickle.loads(pickle.dumps(task))() == task()


def test_mistakes_are_named() -> None:
    inputs, labels = blobs(10)
    there, training = np.ones(10, dtype=bool), HeadTraining(classes=3, epochs=2)
    train = partial(train_head, training=training, seed=0)
    with pytest.raises(ConfigError, match="adjacency = 'any', allowed: leave-one-out, replace-one"):
        draw_pairs(10, 1, adjacency="any", seed=0)
    refused(ConfigError, "count = 2, allowed", draw_pairs, 2, 1, seed=0)
    refused(ConfigError, "pairs = 0, allowed", draw_pairs, 10, 0, seed=0)
    refused(ShapeError, "targets has shape", pair_distance, Pair(0, 1), inputs, labels[:5], train)
    with pytest.raises(NumericError, match="the weights without sample 3 are not finite"):
        pair_distance(Pair(3, 1), inputs, labels, lambda *_: np.full(4, np.nan))
    with pytest.raises(ConfigError, match="label 2 is not within 0 to 1; set classes"):
        train_head(inputs, labels, there, training=HeadTraining(classes=2), seed=0)
    refused(ShapeError, "no sample to train a head on", train_head, inputs, labels, ~there, training=training, seed=0)
    refused(ConfigError, "epochs = 0", HeadTraining, epochs=0)
