"""Clopper-Pearson against SciPy's exact interval; groups against loops and copies."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, t

from mi_core.checks import ConfigError, ShapeError
from mi_core.metrics.intervals import Groups, clopper_pearson, clustered_rate, rate, student_quantile, worth_of
from tests.raising import refused


@pytest.mark.parametrize(("successes", "n"), [(0, 7), (7, 7), (3, 7), (1, 1000), (999, 1000), (440, 880)])
def test_equals_the_exact_interval(successes: int, n: int) -> None:
    expected = binomtest(successes, n).proportion_ci(0.95, method="exact")
    assert clopper_pearson(successes, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_rate_carries_n() -> None:
    estimate = rate(3, 4)
    assert (estimate.value, estimate.n) == (0.75, 4)


@pytest.mark.parametrize(("arguments", "expected"), [((0, 0), "n = 0"), ((5, 4), "successes = 5"), ((-1, 4), "= -1")])
def test_bad_counts(arguments: tuple[int, int], expected: str) -> None:
    refused(ConfigError, expected, clopper_pearson, *arguments)


def pairs_of(count: int) -> Groups:
    """``count`` groups of 2, half of them of members."""
    return Groups.from_codes(np.arange(2 * count) // 2 + 7, np.arange(2 * count) < count)


def test_degrees_of_freedom_count_large_groups() -> None:
    groups = pairs_of(30)
    weights = np.full(30, 2.0)
    assert groups.degrees(weights) == pytest.approx(28)
    assert worth_of(groups.counts[0]) == pytest.approx(15)
    outlier = np.where(np.arange(60) == 5, 10.0, np.resize([1.0, -1.0, 0.5, 0.5], 60))
    sums = outlier.reshape(30, 2).sum(axis=1)
    np.testing.assert_allclose(groups.sums(outlier).sum(axis=0), sums)
    expected = 3 * (sums**2).sum() ** 2 / (sums**4).sum() - 2
    assert groups.degrees(weights, sums) == pytest.approx(max(1, expected)) != groups.degrees(weights)
    assert groups.degrees(weights, np.resize([2.0, -2.0], 30)) == groups.degrees(weights)
    one_large = Groups.from_codes(np.array([0] * 94 + [1, 2, 3] * 2), np.arange(100) % 2 == 0)
    assert one_large.degrees(one_large.counts.sum(axis=0)) == 1
    assert worth_of(one_large.counts.sum(axis=0)) == pytest.approx(100**2 / (94**2 + 3 * 2**2))


def test_clustered_rate_is_that_of_korn_and_graubard() -> None:
    """Members in 15 groups of 4; a sample of each other group shares its group's fate: the effect is found in loops."""
    generator = np.random.default_rng(0)
    member, codes = np.arange(120) < 60, np.arange(120) // 4
    hits = ((generator.random(30)[codes] + generator.random(120)) / 2 > 0.45) & member
    share = hits[member].mean()
    sums = [sum(hits[i] - share for i in range(60) if codes[i] == group) for group in range(15)]
    by_group = 15 / 14 * sum((total / (56 / 60)) ** 2 for total in sums) / 60**2
    effect = by_group / (60 / 59 * share * (1 - share) / 60)
    assert effect > 1.3
    effective = 60 / effect * (t.ppf(0.975, 59) / t.ppf(0.975, 13)) ** 2
    found = clustered_rate(hits, member, Groups.from_codes(codes, member))
    assert (found.value, found.n) == (share, 60)
    assert (found.low, found.high) == pytest.approx(clopper_pearson(share * effective, effective))


def test_a_design_effect_below_one_is_none() -> None:
    member, hits = np.arange(120) < 60, np.arange(120) % 2 == 0
    found = clustered_rate(hits, np.ones(120, dtype=bool), Groups.from_codes(np.arange(120) // 4, member))
    alone = rate(60, 120)
    assert found.low <= alone.low < 0.5 < alone.high <= found.high
    assert found.low == pytest.approx(alone.low, abs=0.01)


@pytest.mark.parametrize("successes", [0, 80])
def test_where_all_agree_a_group_counts_once(successes: int) -> None:
    everything = np.ones(80, dtype=bool)
    found = clustered_rate(everything if successes else ~everything, everything, pairs_of(40))
    once = rate(successes // 2, 40)
    assert found.high - found.low == pytest.approx(once.high - once.low, rel=0.05)
    assert found.high - found.low >= once.high - once.low


def test_the_quantile_is_that_of_t() -> None:
    assert student_quantile(7.5) == pytest.approx(t.ppf(0.975, 7.5))


def test_bad_groups() -> None:
    member = np.arange(6) < 3
    refused(ShapeError, "groups has shape", Groups.from_codes, np.arange(5), member)
    refused(ConfigError, "dtype float64, allowed: integers", Groups.from_codes, np.zeros(6), member)
    refused(ShapeError, "the non-members are of 1", Groups.from_codes, np.array([0, 1, 2, 3, 3, 3]), member)
    nothing = np.zeros(80, dtype=bool)
    refused(ConfigError, "n = 0", clustered_rate, nothing, nothing, pairs_of(40))
    refused(ConfigError, "successes = 80", clustered_rate, ~nothing, np.arange(80) < 9, pairs_of(40))
