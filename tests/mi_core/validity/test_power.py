"""What an audit can see: the formula against drawn AUCs, the power of the report's own test, and the inverses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm, rankdata

from mi_core.checks import ConfigError
from mi_core.metrics.delong import auc
from mi_core.metrics.membership import tpr_at_fpr
from mi_core.validity.power import _standard_error, detectable_auc, fpr_floor


def drawn_aucs(n_candidate: int, n_control: int, ratio: float, seed: int) -> np.ndarray:
    """6000 AUCs of exponential scores whose means have this ratio, from the ranks."""
    scores = np.random.default_rng(seed).exponential(size=(6000, n_candidate + n_control))
    scores[:, :n_candidate] *= ratio
    above = rankdata(scores, axis=1)[:, :n_candidate].sum(axis=1) - n_candidate * (n_candidate + 1) / 2
    return above / (n_candidate * n_control)


@pytest.mark.parametrize(("n_candidate", "n_control"), [(1, 30), (40, 7), (7, 40)])
@pytest.mark.parametrize("truth", [0.5, 0.7, 0.95])
def test_the_standard_error_is_that_of_exponential_scores(truth: float, n_candidate: int, n_control: int) -> None:
    # of exponentials of means r and 1, the first is larger with probability r / (1 + r)
    drawn = drawn_aucs(n_candidate, n_control, truth / (1 - truth), seed=3)
    assert np.mean(drawn) == pytest.approx(truth, abs=0.015)
    assert np.std(drawn) == pytest.approx(_standard_error(truth, n_candidate, n_control), rel=0.05)


def test_the_standard_error_at_a_half_is_that_of_ranks() -> None:
    for n_candidate, n_control in ((1, 1), (5, 12), (300, 40)):
        expected = math.sqrt((n_candidate + n_control + 1) / (12 * n_candidate * n_control))
        assert _standard_error(0.5, n_candidate, n_control) == pytest.approx(expected)


@pytest.mark.parametrize(("n_candidate", "n_control"), [(50, 50), (200, 200), (1000, 1000), (100, 1000)])
def test_the_interval_excludes_a_half_as_often_as_it_says(n_candidate: int, n_control: int) -> None:
    truth = detectable_auc(n_candidate, n_control)
    assert truth is not None
    member = np.arange(n_candidate + n_control) < n_candidate
    gap = math.sqrt(2) * norm.ppf(truth)
    generator = np.random.default_rng(n_candidate)
    seen = [auc(generator.standard_normal(len(member)) + gap * member, member).low > 0.5 for _ in range(1000)]
    assert 0.76 <= np.mean(seen) <= 0.86


def test_power_and_level_are_what_they_are_called() -> None:
    # at power .5 the alternative's own spread drops out: A - .5 is the quantile times the error at .5
    half = detectable_auc(100, 50, power=0.5, level=0.05)
    assert half == pytest.approx(0.5 + norm.ppf(0.95) * math.sqrt(151 / (12 * 5000)))
    aucs = [detectable_auc(100, 50, power=power) or 1.0 for power in (0.5, 0.8, 0.9, 0.99)]
    assert aucs == sorted(set(aucs))
    assert (detectable_auc(100, 50, level=0.001) or 1.0) > (detectable_auc(100, 50, level=0.05) or 1.0)


def test_more_samples_see_less() -> None:
    per_side = [detectable_auc(n, n) for n in (3, 5, 10, 50, 200, 1000, 10**6)]
    assert all(value is not None for value in per_side)
    assert per_side == sorted(per_side, key=lambda value: -(value or 0.0))
    assert per_side[0] == pytest.approx(1, abs=0.001)
    assert per_side[-1] == pytest.approx(0.5, abs=0.002)
    assert (detectable_auc(50, 100) or 1.0) < (detectable_auc(50, 60) or 1.0)


def test_too_few_samples_see_nothing() -> None:
    assert detectable_auc(2, 2) is None
    assert detectable_auc(1, 10**6) is None  # one candidate is never told from a control at this level
    assert 0.5 - norm.ppf(0.975) * math.sqrt(5 / 48) < 0  # the reason: 2 + 2 give AUC 1 by chance too often


def test_the_floor_is_the_smallest_supported_rate() -> None:
    assert fpr_floor(10**6) == pytest.approx(1e-5)
    assert fpr_floor(9) == fpr_floor(10) == 1.0
    for m in range(10, 300):
        scores, member = np.arange(m + 1.0), np.arange(m + 1) == m
        floor = fpr_floor(m)
        assert tpr_at_fpr(scores, member, floor, seed=0, resamples=1).supported
        assert not tpr_at_fpr(scores, member, 0.999 * floor, seed=0, resamples=1).supported


def test_bad_input() -> None:
    for call, message in (
        (lambda: detectable_auc(0, 5), "n_candidate = 0"),
        (lambda: detectable_auc(5, 0), "n_control = 0"),
        (lambda: detectable_auc(5, 5, power=1.0), r"power = 1.0, allowed: \[0.5, 1\)"),
        (lambda: detectable_auc(5, 5, power=0.4), "power = 0.4"),
        (lambda: detectable_auc(5, 5, level=0.0), r"level = 0.0, allowed: \(0, 0.5\)"),
        (lambda: detectable_auc(5, 5, level=0.5), "level = 0.5"),
        (lambda: fpr_floor(0), "n_control = 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            call()
