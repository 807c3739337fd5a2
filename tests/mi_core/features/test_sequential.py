"""What a stopping rule asks and sees, against loops."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from mi_core.checks import ShapeError
from mi_core.features.pairwise_similarity import pairwise_similarity
from mi_core.features.sequential import StoppingRule, by_views, stopped

VIEWS = 6


def embeddings(count: int = 40, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.normal(0, 1, (count, VIEWS, 8)) + 2 * generator.normal(0, 1, (count, 1, 8))


def loop(views: np.ndarray) -> float:
    """Mean of -log(1 - cosine) over the pairs of some views (V, D)."""
    found = []
    for one, two in combinations(views, 2):
        cosine = float(one @ two / (np.linalg.norm(one) * np.linalg.norm(two)))
        found.append(-math.log(1 - cosine))
    return sum(found) / len(found)


def test_the_statistic_is_that_of_a_loop_over_pairs_of_the_first_views() -> None:
    images = embeddings()
    found = by_views(pairwise_similarity(torch.tensor(images)).numpy())
    expected = [[loop(views[:first]) for first in range(2, VIEWS + 1)] for views in images]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_equal_views_give_a_finite_statistic() -> None:
    assert by_views(np.ones((2, 3))).tolist() == pytest.approx(np.full((2, 2), 4 * math.log(10)))


@pytest.mark.parametrize("width", [0.0, 0.3, 1.0, 50.0])
def test_a_rule_stops_as_a_loop_over_views_does(width: float) -> None:
    statistics = by_views(pairwise_similarity(torch.tensor(embeddings(seed=1))).numpy())
    middles = np.median(statistics, axis=0)[:-1]
    rule = StoppingRule(tuple(middles - width), tuple(middles + width / 2))
    assert rule.views == VIEWS
    expected = []
    for row in statistics:
        stage = 0
        while stage < VIEWS - 2 and rule.low[stage] < row[stage] < rule.high[stage]:
            stage += 1
        expected.append([stage + 2, row[stage]])
    np.testing.assert_array_equal(stopped(statistics, rule), expected)
    if width == 0.3:
        assert len(np.unique(np.array(expected)[:, 0])) >= 4  # otherwise little was tried


def test_two_views_leave_nothing_to_decide() -> None:
    assert stopped(np.array([[0.5]]), StoppingRule((), ())).tolist() == [[2, 0.5]]


def test_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match="1 bounds below and 2 above"):
        StoppingRule((0.0,), (1.0, 2.0))
    with pytest.raises(ShapeError, match="statistics of 4 views, the stopping rule is of 3"):
        stopped(np.zeros((1, 3)), StoppingRule((0.0,), (1.0,)))
