"""Curves of histograms that are thinned for drawing."""

from __future__ import annotations

import numpy as np

from mi_core.metrics.histograms import ScoreHistograms
from mi_core.report.spread import Spread, thinned


def test_a_thinned_curve_keeps_every_rate_within_a_thousandth_of_itself() -> None:
    generator = np.random.default_rng(0)
    scores = np.sort(generator.normal(size=300_000))
    values, counts = thinned(scores, np.ones(len(scores), np.int64))
    assert len(values) < 30_000 < len(scores)
    assert counts.sum() == len(scores)
    assert np.all(np.diff(values) > 0)
    for at in generator.choice(scores, 200):
        above, below = (scores > at).sum(), (scores <= at).sum()
        told = counts[values > at].sum()
        assert abs(told - above) <= 0.001 * min(above, below) + 1


def test_extreme_scores_stay_single() -> None:
    """A false-positive rate of one in 300,000 is the score of one non-member."""
    scores = np.random.default_rng(1).normal(size=300_000)
    values, counts = thinned(np.sort(scores), np.ones(len(scores), np.int64))
    np.testing.assert_array_equal(values[-300:], np.sort(scores)[-300:])
    np.testing.assert_array_equal(values[:300], np.sort(scores)[:300])
    assert set(counts[:300]) == set(counts[-300:]) == {1}


def test_a_spread_of_histograms_counts_all_samples() -> None:
    generator = np.random.default_rng(2)
    member = np.arange(50_000) < 20_000
    spread = Spread.of(ScoreHistograms.of(generator.normal(size=50_000) + member, member))
    assert (spread.n_member, spread.n_nonmember) == (20_000, 30_000)
    assert len(spread.values) < 40_000
    assert abs(spread.quantile(~spread.member, 0.5)) < 0.03
    assert abs(spread.quantile(spread.member, 0.5) - 1) < 0.03


def test_bins_that_hold_many_samples_are_never_split() -> None:
    values, counts = thinned(np.array([0.0, 1.0, 2.0]), np.array([10**9, 1, 10**9]))
    assert values.tolist() == [0.0, 1.0, 2.0]
    assert counts.tolist() == [10**9, 1, 10**9]
