"""What an audit can see: the formula against drawn AUCs, the power of the report's own test, and the inverses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm, rankdata

from mi_core.checks import ConfigError
from mi_core.metrics.delong import auc
from mi_core.metrics.membership import tpr_at_fpr
from mi_core.validity.power import SHARES, _standard_errors, detectable_auc, fpr_floor, needed_images, verdict_power
from mi_core.validity.sets.dataset import dataset_test
from mi_core.validity.verdict import CHOICE, LEVEL, LOT, judge


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
    assert np.std(drawn) == pytest.approx(_standard_errors(np.array(truth), n_candidate, n_control), rel=0.05)


def test_the_standard_error_at_a_half_is_that_of_ranks() -> None:
    for n_candidate, n_control in ((1, 1), (5, 12), (300, 40)):
        expected = math.sqrt((n_candidate + n_control + 1) / (12 * n_candidate * n_control))
        assert _standard_errors(np.array(0.5), n_candidate, n_control) == pytest.approx(expected)


def drawn_verdicts(n_candidate: int, n_control: int, truth: float, draws: int, seed: int) -> float:
    """How often the rule itself says leak, of normal scores that correlate over attack and checks."""
    member = np.arange(n_candidate + n_control) < n_candidate
    gap = math.sqrt(2) * norm.ppf(truth)
    generator = np.random.default_rng(seed)
    leaks = 0
    for _ in range(draws):
        scores = math.sqrt(0.4) * generator.standard_normal((4, len(member)))
        scores += math.sqrt(0.6) * generator.standard_normal(len(member))
        judged = judge(
            scores[0] + gap * member, *scores[1:3], member, semantic_auc=auc(scores[3], member), trained=True
        )
        leaks += judged.verdict == "leak"
    return leaks / draws


@pytest.mark.parametrize(("n_candidate", "n_control"), [(150, 150), (500, 350)])
def test_the_power_is_that_of_the_verdict(n_candidate: int, n_control: int) -> None:
    """Correlated checks help a little, so what is promised is not less than what is found."""
    truth = detectable_auc(n_candidate, n_control)
    assert truth is not None
    assert 0.76 <= drawn_verdicts(n_candidate, n_control, truth, 200, seed=n_candidate) <= 0.96
    weak = 0.5 + 0.7 * (truth - 0.5)
    assert abs(drawn_verdicts(n_candidate, n_control, weak, 200, 1) - verdict_power(n_candidate, n_control, weak)) < 0.1


def test_the_power_by_lot_is_that_of_the_randomisation_test() -> None:
    truth = detectable_auc(120, 120, by=LOT)
    assert truth is not None
    member, gap = np.arange(240) < 120, math.sqrt(2) * norm.ppf(truth)
    found = [
        dataset_test(
            np.random.default_rng(seed).standard_normal(240) + gap * member, member, seed=seed, permutations=999
        )
        for seed in range(250)
    ]
    assert 0.72 <= np.mean([one.permutation_p <= LEVEL for one in found if one.permutation_p is not None]) <= 0.88


def test_what_makes_a_leak_easier_to_find() -> None:
    def least(**changed: Any) -> float:
        return detectable_auc(**{"n_candidate": 400, "n_control": 400, **changed}) or 1.1

    aucs = [least(power=power) for power in (0.5, 0.8, 0.9, 0.99)]
    assert aucs == sorted(set(aucs))
    assert least(by=LOT) < least(factor=1) < least() < least(factor=3)
    assert least(n_control=300) > least() > least(n_candidate=4000, n_control=4000)
    per_side = [detectable_auc(n, n) or 1.1 for n in (30, 100, 500, 10**4, 10**6)]
    assert per_side == sorted(per_side, reverse=True) and per_side[-1] < 0.51
    shares = [detectable_auc(10**4, 10**4, share=share) for share in SHARES]
    assert shares[0] is not None and shares[1] is not None and shares[2] is None
    assert shares[1] - 0.5 == pytest.approx(10 * (shares[0] - 0.5), rel=0.02)  # a tenth used: a tenth of the excess


def test_too_few_samples_find_nothing() -> None:
    assert detectable_auc(8, 8) is None
    assert detectable_auc(1, 10**6, by=LOT) is None
    assert verdict_power(100, 100, 0.5) == 0.0


def test_the_images_needed_are_the_inverse() -> None:
    for auc_used, by in ((0.6, CHOICE), (0.52, LOT), (0.8, CHOICE)):
        needed = needed_images(auc_used, by=by)
        assert needed is not None
        assert verdict_power(needed, needed, auc_used, by=by) >= 0.8
        assert verdict_power(int(0.85 * needed), int(0.85 * needed), auc_used, by=by) < 0.8
    assert needed_images(0.500001) is None


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
        (lambda: detectable_auc(5, 5, share=0.0), r"share = 0.0, allowed: \(0, 1\]"),
        (lambda: detectable_auc(5, 5, factor=0.5), "factor = 0.5"),
        (lambda: verdict_power(5, 5, 0.4), "auc = 0.4"),
        (lambda: verdict_power(5, 5, 0.6, by="vote"), "by = 'vote', allowed: choice, lot"),
        (lambda: needed_images(0.5), "auc = 0.5"),
        (lambda: fpr_floor(0), "n_control = 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            call()
