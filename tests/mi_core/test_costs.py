"""Intervals of costs cover what they say, and arithmetic with exact numbers stays exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from mi_core.checks import ConfigError, ShapeError
from mi_core.costs import (
    Quantity,
    nodes_for,
    rate,
    thinned,
    total,
    total_of_groups,
    workers_for,
)


def covered(truth: float, quantities: list[Quantity]) -> float:
    return float(np.mean([low <= truth <= high for low, high in (quantity.interval() for quantity in quantities)]))


def test_a_rate_of_equal_pieces_is_the_t_interval_of_their_mean() -> None:
    seconds = np.random.default_rng(0).gamma(4, 0.1, 7)
    found = rate(list(seconds), [20] * 7)
    low, high = stats.ttest_1samp(seconds / 20, 0).confidence_interval(0.95)
    assert found.value == pytest.approx(seconds.mean() / 20)
    assert found.interval() == pytest.approx((low, high))


def test_a_rate_weighs_pieces_by_their_size() -> None:
    assert rate([2.0, 1.0, 1.0], [20, 5, 5]).value == pytest.approx(4 / 30)  # the mean of the ratios would be .167
    with pytest.raises(ShapeError, match="two pieces"):
        rate([1.0], [10])


def test_totals_of_measured_rates_cover_the_truth() -> None:
    generator = np.random.default_rng(1)
    found = []
    for _ in range(2000):
        sizes = generator.integers(20, 40, 6)
        slow = rate(list(0.02 * sizes + generator.normal(0, 0.1, 6)), list(sizes))
        fast = rate(list(0.005 * sizes + generator.normal(0, 0.02, 6)), list(sizes))
        found.append(total([slow * 1000, fast * Quantity(3000.0)]))
    assert 0.94 < covered(35.0, found) < 0.995


def test_the_total_of_some_shards_covers_the_truth() -> None:
    generator = np.random.default_rng(2)
    inside = []
    for _ in range(3000):
        shards = generator.normal(900, 30, 6)
        inside.append(covered(shards.sum(), [total_of_groups(list(generator.choice(shards, 4, replace=False)), 6)]))
    assert 0.93 < np.mean(inside) < 0.97  # without the correction it would be above .99
    assert total_of_groups([900.0], 1).exact
    with pytest.raises(ShapeError, match="1 of 12 groups"):
        total_of_groups([900], 12)


def test_a_share_of_a_sampled_count_covers_the_truth() -> None:
    generator = np.random.default_rng(3)
    shards = generator.poisson(300, 10)
    found = thinned(Quantity(float(shards.sum())), 0.2)
    drawn = [float(generator.binomial(shards.sum(), 0.2)) for _ in range(4000)]
    assert math.sqrt(found.variance) == pytest.approx(np.std(drawn), rel=0.05)
    assert thinned(Quantity(50.0), 1.0) == Quantity(50.0)
    with pytest.raises(ConfigError, match="share"):
        thinned(Quantity(50.0), 1.5)


def test_a_sum_is_as_uncertain_as_if_its_terms_went_together() -> None:
    count = Quantity(100.0, 25.0, 7)
    assert total([count, count * 3]) == count * 4
    assert total([]) == Quantity(0.0)


def test_a_product_of_measured_numbers_covers_the_truth() -> None:
    generator = np.random.default_rng(4)
    found = []
    for _ in range(2000):
        count = total_of_groups(list(generator.normal(100, 5, 4)), 1000)
        found.append(rate(list(generator.normal(2, 0.1, 5)), [1.0] * 5) * count)
    assert 0.93 < covered(200_000, found) < 0.98


def test_exact_numbers_stay_exact_and_bounds_cut() -> None:
    whole = total([Quantity(3.0), Quantity(4.0) * 2, Quantity(5.0) * Quantity(6.0)])
    assert (whole.value, whole.exact, whole.as_json()) == (41.0, True, {"value": 41.0})
    assert Quantity(10.0, 4.0, 3).at_most(8) == Quantity(8)
    assert Quantity(1.0, 100.0, 3).interval()[0] == 0


@pytest.mark.parametrize("gpus", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("actors", "readers"), [(1, 1), (7, 3), (64, 40)])
def test_nodes_are_the_fewest_that_hold_all(actors: int, readers: int, gpus: float) -> None:
    node, cpus, reader = (8.0, 2.0), 1.5, 0.25

    def holds(nodes: int) -> bool:
        places = 0
        for number in range(nodes):
            here = readers // nodes + (number < readers % nodes)
            by_gpu = int(node[1] / gpus) if gpus else actors
            places += min(by_gpu, int((node[0] - here * reader) / cpus))
        return places >= actors

    found = nodes_for(actors, readers, actor=(cpus, gpus), reader_cpus=reader, node=node)
    assert holds(found)
    assert found == 1 or not holds(found - 1)
    with pytest.raises(ConfigError, match="does not hold an actor"):
        nodes_for(actors, readers, actor=(9, gpus), reader_cpus=reader, node=node)


def test_workers_finish_in_time() -> None:
    for seconds in (0.1, 59.9, 60.0, 60.1, 3599.0):
        workers = workers_for(seconds, 60)
        assert seconds / workers <= 60 + 1e-6
        assert workers == 1 or seconds / (workers - 1) > 60
