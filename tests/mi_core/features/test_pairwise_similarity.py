"""Pairwise similarities against loops over pairs, and against SciPy's definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial import distance

from mi_core.checks import ConfigError, ShapeError
from mi_core.features.pairwise_similarity import pairwise_similarity
from tests.raising import refused


@pytest.mark.parametrize(
    ("metric", "oracle"),
    [
        ("cosine", lambda a, b: float(np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)))),
        ("correlation", lambda a, b: 1 - distance.correlation(a, b)),
        ("euclidean", lambda a, b: -distance.euclidean(a, b)),
        ("log-distance", lambda a, b: -np.log(distance.cosine(a, b))),
    ],
)
def test_equals_a_loop_over_pairs(metric: str, oracle: object) -> None:
    views = torch.randn(6, 10, 16, generator=torch.Generator().manual_seed(0)) * 3 + 1
    result = pairwise_similarity(views, metric)
    assert result.shape == (6, 45)
    for row in range(6):
        pairs = [(i, j) for i in range(10) for j in range(i + 1, 10)]
        expected = [oracle(views[row, i].double().numpy(), views[row, j].double().numpy()) for i, j in pairs]  # type: ignore[operator]
        np.testing.assert_allclose(result[row], expected, atol=2e-6, rtol=1e-6)


def test_near_views_keep_their_distance() -> None:
    base = 1000 + torch.randn(1, 1, 64, generator=torch.Generator().manual_seed(1))
    views = torch.cat([base, base + 1e-2], dim=1)  # a matrix product in float32 would cancel here
    assert float(pairwise_similarity(views, "euclidean")) == pytest.approx(-1e-2 * 8, rel=2e-2)


def test_identical_and_zero_views() -> None:
    same = torch.ones(1, 3, 4)
    assert pairwise_similarity(same).tolist() == [[1, 1, 1]]
    assert pairwise_similarity(same, "correlation").tolist() == [[0, 0, 0]]
    assert pairwise_similarity(same, "euclidean").tolist() == [[0, 0, 0]]
    assert pairwise_similarity(same, "log-distance").tolist() == [[pytest.approx(-np.log(1e-4))] * 3]
    assert pairwise_similarity(torch.zeros(1, 2, 4)).tolist() == [[0]]


def test_bad_input() -> None:
    refused(ConfigError, "views = 1, but a similarity needs a pair", pairwise_similarity, torch.zeros(3, 1, 4))
    with pytest.raises(ConfigError, match="metric = 'dot', allowed: correlation, cosine, euclidean"):
        pairwise_similarity(torch.zeros(3, 2, 4), "dot")
    refused(ShapeError, "views has shape", pairwise_similarity, torch.zeros(3, 4))
