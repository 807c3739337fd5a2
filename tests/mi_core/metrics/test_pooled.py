"""The mean over runs: its interval covers, narrows with the number of runs, and keeps the marks."""

from __future__ import annotations

import pytest

from mi_core.checks import ConfigError, ShapeError
from mi_core.metrics.pooled import difference, pool, pooled_count
from mi_core.records import Estimate
from tests.raising import refused


def test_counts_add_up_and_marks_stay() -> None:
    runs = [Estimate(0.2, 0.1, 0.3, 50, False, 1), Estimate(0.4, 0.3, 0.5, 70, True, 2)]
    pooled = pool(runs)
    assert (pooled.n, pooled.false_positives, pooled.supported) == (120, 3, False)
    assert pool(runs[:1]) == runs[0]
    assert pool([Estimate(0.2, 0.1, 0.3, 5)] * 2).false_positives is None
    refused(ShapeError, "0 runs", pool, [])


def test_the_same_samples_again_tell_no_more_about_them() -> None:
    """Candidates that a user gives, asked with other views in every seed: their error is common to all."""
    pooled = pool([Estimate(0.7, 0.6, 0.8, 18, True, 3), Estimate(0.8, 0.7, 0.92, 18, True, 5)], overlap=1)
    assert (pooled.value, pooled.low, pooled.high) == pytest.approx((0.75, 0.65, 0.86))
    assert (pooled.n, pooled.false_positives) == (18, 5)


def test_a_difference_reaches_as_far_as_the_root_of_the_summed_squares() -> None:
    found = difference(Estimate(0.6, 0.5, 0.7, 100), Estimate(0.8, 0.75, 0.85, 50))
    reach = (0.1**2 + 0.05**2) ** 0.5
    assert (found.value, found.low, found.high, found.n) == pytest.approx((0.2, 0.2 - reach, 0.2 + reach, 50))
    lopsided = difference(Estimate(0.6, 0.5, 0.61, 100), Estimate(0.8, 0.79, 0.95, 50))
    assert lopsided.low == pytest.approx(0.2 - (0.01**2 + 0.01**2) ** 0.5)  # what lies between the two
    assert lopsided.high == pytest.approx(0.2 + (0.15**2 + 0.1**2) ** 0.5)


def test_what_recurs_counts_between_once_and_every_time() -> None:
    runs = [Estimate(0.7, 0.6, 0.8, 100, True, 30), Estimate(0.7, 0.6, 0.8, 100, True, 30)]
    half = pool(runs, overlap=0.5)
    assert (half.n, half.false_positives) == (133, 40)
    assert half.high - half.value == pytest.approx(0.1 * (0.5 * (1 + 0.5)) ** 0.5)
    assert pool(runs, overlap=0) == pool(runs)
    assert pooled_count([100, 90]) == 190
    assert pooled_count([100, 90], 1) == 100
    refused(ConfigError, r"overlap = 1\.5", pool, runs, overlap=1.5)
