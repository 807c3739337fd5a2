"""The trials that no other one beats, and the one that is chosen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.metrics.pareto import least_within, pareto_front, weighted
from tests.raising import refused

COSTS = st.integers(1, 12).flatmap(lambda n: arrays(np.float64, (n, 2), elements=st.integers(0, 4).map(float)))


@given(COSTS)
def test_the_front_is_what_no_trial_beats_by_the_definition(costs: np.ndarray) -> None:
    def beats(one: np.ndarray, other: np.ndarray) -> bool:
        return all(a <= b for a, b in zip(one, other, strict=True)) and any(
            a < b for a, b in zip(one, other, strict=True)
        )

    expected = [not any(beats(other, own) for other in costs) for own in costs]
    assert pareto_front(costs).tolist() == expected


@given(COSTS, st.integers(0, 4))
def test_what_is_chosen_is_on_the_front_and_within_the_bound_if_anything_is(costs: np.ndarray, allowed: int) -> None:
    losses, leaks = list(costs[:, 0]), list(costs[:, 1])
    chosen = least_within(losses, leaks, allowed)
    assert pareto_front(costs)[chosen]
    if min(leaks) <= allowed:
        assert leaks[chosen] <= allowed
        assert losses[chosen] == min(loss for loss, leak in zip(losses, leaks, strict=True) if leak <= allowed)
    else:
        assert leaks[chosen] == min(leaks)


def test_both_in_one_number() -> None:
    assert weighted(0.25, 0.5, 2.0) == 1.25
    refused(ConfigError, "weight", weighted, 0.1, 0.1, -1)


def test_what_is_no_cost_is_refused() -> None:
    refused(NumericError, "not a number", pareto_front, np.array([[0.0, np.nan]]))
    with pytest.raises(ShapeError):
        pareto_front(np.zeros(3))
    refused(ShapeError, "0 losses", least_within, [], [], 0.5)
