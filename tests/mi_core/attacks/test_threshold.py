"""The threshold with the fewest errors, against a brute-force search."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mi_core.attacks.threshold import best_threshold, conformal_threshold
from mi_core.records import ALL_CALLED


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=14))
def test_threshold_makes_as_few_errors_as_a_search_over_all(cases: list[tuple[int, bool]]) -> None:
    scores = np.array([score for score, _ in cases], dtype=np.float64)
    member = np.array([truth for _, truth in cases])

    def errors(threshold: float) -> int:
        return sum((score >= threshold) != truth for score, truth in zip(scores, member, strict=True))

    fewest = min(errors(threshold) for threshold in [-1.0, *(scores - 0.5), *scores, *(scores + 0.5)])
    assert errors(best_threshold(scores, member)) == fewest


def test_threshold_between_floats_that_touch() -> None:
    low = 1.0
    high = float(np.nextafter(low, 2))
    assert best_threshold(np.array([low, high]), np.array([False, True])) == high


def test_at_a_rate_of_one_every_sample_is_called_a_member() -> None:
    assert conformal_threshold(np.array([2.0, 1.0]), 1.0, "x") == ALL_CALLED
    assert conformal_threshold(np.empty(0), 1.0, "x") == ALL_CALLED
    assert conformal_threshold(np.array([2.0, 1.0]), 0.99, "x") == np.nextafter(1.0, 2)
