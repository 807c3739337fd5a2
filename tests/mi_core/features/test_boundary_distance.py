"""HopSkipJump against the known distance to a plane, and at its edges."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from mi_core.checks import ConfigError
from mi_core.features.boundary_distance import hop_skip_jump

SHAPE = (3, 12, 12)
WIDTH = math.prod(SHAPE)
COUNT = 24


def linear(seed: int = 0) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """Weights of a two-class linear classifier whose boundary runs through the middle of the cube."""
    weights = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(seed)) / math.sqrt(WIDTH)
    return weights, lambda images: ((images.flatten(1) - 0.5) @ weights.T).argmax(dim=1)


def images(count: int = COUNT) -> torch.Tensor:
    return 0.3 + 0.4 * torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(1))


def streams(count: int = COUNT) -> torch.Tensor:
    return torch.arange(count) * 7919


def test_it_comes_close_to_the_distance_from_a_plane() -> None:
    weights, predict = linear()
    given = images()
    normal = weights[0] - weights[1]
    true = ((given.flatten(1) - 0.5) @ normal).abs() / normal.norm()
    labels = predict(given)
    ratios = []
    for iterations in (1, 7, 25):
        found = hop_skip_jump(predict, given, labels, streams(), iterations=iterations, queries=20_000)
        assert (predict(found.images) != labels).all()
        assert found.images.min() >= 0
        assert found.images.max() <= 1
        torch.testing.assert_close((found.images - given).flatten(1).norm(dim=1), found.distance)
        ratio = found.distance / true
        assert ratio.min() > 0.999  # nothing is nearer than the plane
        ratios.append(float(ratio.median()))
    assert ratios[0] > ratios[1] > ratios[2]
    assert ratios[1] < 1.5
    assert ratios[2] < 1.08


def test_an_image_finds_the_same_in_whatever_company() -> None:
    _, predict = linear()
    given, labels = images(), predict(images())
    whole = hop_skip_jump(predict, given, labels, streams(), iterations=3)
    alone = hop_skip_jump(predict, given[5:6], labels[5:6], streams()[5:6], iterations=3, batch=17)
    torch.testing.assert_close(alone.distance, whole.distance[5:6], rtol=1e-4, atol=1e-5)
    assert alone.queries.tolist() == whole.queries[5:6].tolist()


@pytest.mark.parametrize("queries", [150, 333, 1000])
def test_the_budget_holds_for_every_image_and_what_is_told_was_asked(queries: int) -> None:
    _, predict = linear()
    asked = 0

    def counting(points: torch.Tensor) -> torch.Tensor:
        nonlocal asked
        asked += len(points)
        return predict(points)

    found = hop_skip_jump(counting, images(), predict(images()), streams(), iterations=40, queries=queries)
    assert int(found.queries.max()) <= queries
    assert int(found.queries.sum()) == asked
    assert (predict(found.images) != predict(images())).all()


def test_what_is_misclassified_costs_one_query_and_lies_at_zero() -> None:
    _, predict = linear()
    labels = predict(images())
    labels[::2] = 1 - labels[::2]
    found = hop_skip_jump(predict, images(), labels, streams(), iterations=2)
    assert (found.distance[::2] == 0).all()
    assert (found.queries[::2] == 1).all()
    assert (found.distance[1::2] > 0).all()
    torch.testing.assert_close(found.images[::2], images()[::2])


def test_where_nothing_of_another_class_is_found_the_distance_is_the_largest() -> None:
    found = hop_skip_jump(
        lambda points: torch.zeros(len(points), dtype=torch.int64), images(2), torch.zeros(2), streams(2)
    )
    assert found.distance.tolist() == pytest.approx([math.sqrt(WIDTH)] * 2)
    assert found.queries.tolist() == [101, 101]


def test_a_class_that_fine_noise_never_meets_is_found() -> None:
    """Fine noise has the same mean everywhere; a classifier of the mean is met only by large patches."""

    def bright(points: torch.Tensor) -> torch.Tensor:
        return (points.flatten(1).mean(dim=1) > 0.6).long()

    given = images(6)
    found = hop_skip_jump(bright, given, torch.zeros(6, dtype=torch.int64), streams(6), iterations=10, queries=5000)
    true = (0.6 - given.flatten(1).mean(dim=1)) * math.sqrt(WIDTH)
    assert (found.distance / true).max() < 1.3


def test_no_image_and_mistakes() -> None:
    _, predict = linear()
    assert len(hop_skip_jump(predict, images(0), torch.zeros(0), streams(0)).distance) == 0
    with pytest.raises(ConfigError, match="queries = 20"):
        hop_skip_jump(predict, images(), predict(images()), streams(), queries=20)
    with pytest.raises(ConfigError, match="iterations = 0"):
        hop_skip_jump(predict, images(), predict(images()), streams(), iterations=0)
