"""The share that was used: planted shares are covered, none is not seen, and the pieces equal their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betaincinv
from scipy.stats import beta, betabinom

from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.metrics.intervals import clopper_pearson
from mi_core.records import Estimate
from mi_core.report.model.as_json import part_as_json
from mi_core.validity.sets.share import EDGES, effective_size, least_share, share_p_value, share_used
from tests.raising import refused


@settings(max_examples=60)
@given(st.data())
def test_share_used_holds_the_shares_that_the_contrast_does_not_refute(data: st.DataObject) -> None:
    counts = []
    for _ in range(3):
        n = data.draw(st.integers(5, 300))
        counts.append((data.draw(st.integers(0, n)), n))
    estimate = share_used(counts[0], counts[1], counts[2])
    (a, f, t), limits = [called / n for called, n in counts], [clopper_pearson(*pair) for pair in counts]

    def refuted(share: float) -> bool:
        weights = (1.0, -(1 - share), -share)
        low = high = contrast = a - (1 - share) * f - share * t
        below = above = 0.0
        for weight, rate, (lower, upper) in zip(weights, (a, f, t), limits, strict=True):
            ends = sorted((weight * lower, weight * upper))
            below += (weight * rate - ends[0]) ** 2
            above += (ends[1] - weight * rate) ** 2
        low, high = contrast - math.sqrt(below), contrast + math.sqrt(above)
        return low > 0 or high < 0

    kept = [share for share in np.linspace(0, 1, 201) if not refuted(share)]
    if not estimate.supported:
        assert (estimate.low, estimate.high) == (0, 1)
        return
    assert estimate.low <= min(kept, default=estimate.value) and max(kept, default=estimate.value) <= estimate.high
    for outside in (estimate.low - 1e-3, estimate.high + 1e-3):
        assert not 0 <= outside <= 1 or refuted(outside)


def test_share_used_says_where_it_cannot_tell() -> None:
    same = share_used((40, 100), (30, 100), (30, 100))
    assert same == Estimate(0.5, 0.0, 1.0, 300, supported=False)
    close = share_used((60, 200), (10, 40), (14, 40))
    assert (close.low, close.high, close.supported) == (0.0, 1.0, False)
    above_members = share_used((950, 1000), (50, 1000), (500, 1000))
    assert (above_members.value, above_members.low, above_members.high) == (1.0, 0.0, 1.0)
    assert not above_members.supported


def test_share_used_of_a_backward_threshold_is_that_of_the_others() -> None:
    forward = share_used((300, 1000), (50, 900), (550, 800))
    backward = share_used((700, 1000), (850, 900), (250, 800))
    assert (backward.value, backward.low, backward.high) == pytest.approx((forward.value, forward.low, forward.high))


def planted(
    seed: int, n: int, m: int, share: float, *, gap: float = 3.0, tied: bool = False, groups: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, candidates and groups of equal size: the used ones are shifted by ``gap``; skewed, heavy to the right."""
    generator = np.random.default_rng(seed)
    ids = np.arange(n + m) // groups
    candidate = np.arange(n + m) < n
    used = (generator.random(len(ids)) < share)[ids] & candidate
    scores = np.exp(generator.standard_normal(len(ids))[ids]) + gap * used
    return np.round(scores) if tied else scores, candidate, ids


CASES = [  # share, gap, tied, samples of a group
    (0.0, 0.0, False, 1),
    (0.0, 0.0, True, 1),
    (0.0, 0.0, False, 4),
    (0.1, 20.0, False, 1),
    (0.5, 3.0, False, 1),
    (0.5, 20.0, True, 1),
    (0.5, 20.0, False, 4),
    (1.0, 3.0, False, 1),
]


@pytest.mark.parametrize(("share", "gap", "tied", "groups"), CASES)
def test_least_share_is_below_the_truth(share: float, gap: float, tied: bool, groups: int) -> None:
    draws = 100
    bounds = np.zeros(draws)
    for seed in range(draws):
        scores, candidate, ids = planted(seed, 160, 240, share, gap=gap, tied=tied, groups=groups)
        bounds[seed] = least_share(scores, candidate, groups=ids if groups > 1 else None).low
    assert (bounds <= share).mean() >= 0.95 - 2.6 * math.sqrt(0.05 * 0.95 / draws)
    if gap == 20 and groups == 1:
        assert np.median(bounds) > share - 0.12  # a separated share is nearly all found


@pytest.mark.parametrize(("k", "n", "called", "m"), [(500, 500, 490, 500), (150, 200, 60, 100), (20, 300, 3, 250)])
def test_p_value_equals_the_beta_binomial(k: int, n: int, called: int, m: int) -> None:
    exact = betabinom.cdf(called, m, k, n + 1 - k)  # at share 0
    found = share_p_value(0.0, called, m, betaincinv(k, n + 1 - k, EDGES))
    assert exact <= found <= 1.25 * exact
    draws = np.random.default_rng(0)
    share = 0.2
    simulated = (draws.binomial(m, (1 - share) * beta.rvs(k, n + 1 - k, size=400_000, random_state=1)) <= called).mean()
    found = share_p_value(share, called, m, betaincinv(k, n + 1 - k, EDGES))
    assert simulated - 3 * math.sqrt(simulated / 400_000) <= found <= 1.25 * simulated + 1e-4


def test_least_share_of_perfect_separation() -> None:
    scores, candidate, _ = planted(0, 500, 500, 1.0, gap=1000.0)
    bound = least_share(scores, candidate)
    assert 0.98 < bound.low < 1
    assert bound.threshold == scores[~candidate].max()
    assert part_as_json(bound) == {"low": bound.low, "threshold": bound.threshold, "n": 1000}


def test_least_share_of_no_evidence_has_no_threshold() -> None:
    scores, candidate, _ = planted(0, 100, 100, 0.0)
    assert part_as_json(least_share(scores - 2 * candidate, candidate)) == {"low": 0.0, "n": 200}
    assert least_share(np.ones(200), candidate).low == 0


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_effective_size_is_between_one_and_the_number_of_groups(ids: list[int]) -> None:
    worth = effective_size(np.array(ids))
    assert 1 - 1e-9 <= worth <= len(set(ids)) + 1e-9
    assert worth == pytest.approx(len(ids) ** 2 / sum(ids.count(name) for name in ids))


def test_bad_input() -> None:
    refused(ConfigError, "n of the controls = 0", share_used, (1, 2), (0, 0), (1, 2))
    refused(ConfigError, r"called of the members = 3, allowed: \[0, 2\]", share_used, (1, 2), (0, 1), (3, 2))
    refused(ShapeError, "groups are empty", effective_size, np.array([], dtype=np.int64))
    refused(ShapeError, "groups has shape", effective_size, np.zeros((2, 2), dtype=np.int64))
    refused(ConfigError, "allowed: integers", effective_size, np.zeros(3))
    scores, candidate, _ = planted(0, 10, 10, 0.0)
    with pytest.raises(ShapeError, match="group 0 holds candidates and controls"):
        least_share(scores, candidate, groups=np.arange(20) % 2)
    refused(NumericError, "row 2", least_share, np.where(np.arange(20) == 2, np.inf, scores), candidate)
    refused(ConfigError, "allowed: bool", least_share, scores, candidate.astype(float))
    refused(ShapeError, "got 20 and 0", least_share, scores, candidate | True)
