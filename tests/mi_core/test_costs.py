"""Ranges of costs reach from the smallest to the largest that was measured, and known numbers stay known."""

from __future__ import annotations

import pytest

from mi_core.checks import ConfigError, ShapeError
from mi_core.costs import Range, largest, nodes_for, rate, total, total_of_groups, workers_for
from tests.raising import refused


def test_a_rate_weighs_pieces_by_their_size_and_reaches_from_the_fastest_to_the_slowest() -> None:
    found = rate([2.0, 1.0, 3.0], [20, 5, 5])
    assert (found.value, found.low, found.high) == (6 / 30, 0.1, 0.6)  # the mean of the ratios would be .3
    for amounts, sizes in (([], []), ([1.0], [0]), ([1.0, 2.0], [1])):
        refused(ShapeError, "pieces of work", rate, amounts, sizes)


def test_the_total_of_some_shards_takes_the_others_as_the_smallest_up_to_the_largest() -> None:
    found = total_of_groups([80, 90, 110, 120], 6)
    assert (found.value, found.low, found.high) == (600, 400 + 2 * 80, 400 + 2 * 120)
    assert total_of_groups([900.0], 1) == Range.exact(900.0)
    assert total_of_groups([900.0], 3) == Range.exact(2700.0)  # one shard says nothing of the others' spread
    for sampled, groups in (([], 1), ([1.0, 2.0], 1)):
        refused(ShapeError, "groups cannot give a total", total_of_groups, sampled, groups)


def test_costs_by_hand() -> None:
    plain, large = rate([0.02 * 50, 0.03 * 50], [50, 50]), rate([2.0 * 10, 1.0 * 10], [10, 10])
    found = total([plain * 9_000, large * Range(100, 90, 120)])
    assert found.value == pytest.approx(0.025 * 9_000 + 1.5 * 100)
    assert (found.low, found.high) == pytest.approx((0.02 * 9_000 + 1.0 * 90, 0.03 * 9_000 + 2.0 * 120))


def test_things_side_by_side_take_as_long_as_the_slowest() -> None:
    assert largest([Range(5, 1, 9), Range(4, 3, 12)]) == Range(5, 3, 12)
    assert largest([]) == total([]) == Range.exact(0.0)


def test_known_numbers_stay_known_and_bounds_cut() -> None:
    whole = total([Range.exact(3.0), Range.exact(4.0) * 2, Range.exact(5.0) * Range.exact(6.0)])
    assert whole == Range.exact(41.0)
    assert Range(10.0, 7.0, 12.0).at_most(8) == Range(8, 7.0, 8)


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
