"""AUC and its interval: the pairwise definition, DeLong's and Obuchowski's sums in loops; design effects."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logit
from scipy.stats import t
from sklearn.metrics import roc_auc_score

from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.metrics.delong import auc, auc_difference, design_effect, placements, split_scores
from tests.raising import refused


def gaussian(n: int, gap: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    member = np.arange(2 * n) < n
    return generator.standard_normal(2 * n) + gap * member, member


def kernel(a: float, b: float) -> float:
    return 1.0 if a > b else 0.5 if a == b else 0.0


def loop_covariance(first: np.ndarray, second: np.ndarray, member: np.ndarray) -> tuple[float, float, float]:
    """AUC of both and their covariance, by DeLong's equations 2 to 6 in loops over all pairs."""
    parts = []
    for scores in (first, second):
        inside, outside = scores[member], scores[~member]
        v10 = [sum(kernel(x, y) for y in outside) / len(outside) for x in inside]
        v01 = [sum(kernel(x, y) for x in inside) / len(inside) for y in outside]
        parts.append((v10, v01, sum(v10) / len(v10)))
    (a10, a01, a), (b10, b01, b) = parts
    s10 = sum((x - a) * (y - b) for x, y in zip(a10, b10, strict=True)) / (len(a10) - 1)
    s01 = sum((x - a) * (y - b) for x, y in zip(a01, b01, strict=True)) / (len(a01) - 1)
    return a, b, s10 / len(a10) + s01 / len(a01)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=6, max_size=30))
def test_auc_and_variance_equal_the_loops(cases: list[tuple[int, bool]]) -> None:
    scores = np.array([score for score, _ in cases], dtype=np.float64)
    member = np.array([truth for _, truth in cases])
    if min(member.sum(), (~member).sum()) < 2:
        return
    value, _, variance = loop_covariance(scores, scores, member)
    v10, v01 = placements(scores, member)
    assert auc(scores, member).value == pytest.approx(value)
    assert auc(scores, member).value == pytest.approx(roc_auc_score(member, scores))
    assert v10.var(ddof=1) / len(v10) + v01.var(ddof=1) / len(v01) == pytest.approx(variance)


def test_difference_is_paired() -> None:
    base, member = gaussian(120, 1.0, 2)
    noise = np.random.default_rng(3).standard_normal((2, len(member)))
    first, second = base + 0.4 * noise[0], base + 0.8 * noise[1]
    a, b, covariance = loop_covariance(first, second, member)
    _, _, va = loop_covariance(first, first, member)
    _, _, vb = loop_covariance(second, second, member)
    estimate = auc_difference(first, second, member)
    half = 1.96 * np.sqrt(va + vb - 2 * covariance)
    assert estimate.value == pytest.approx(a - b)
    assert (estimate.high - estimate.low) / 2 == pytest.approx(
        half, rel=0.05
    )  # moderate AUC: the plain paired interval
    alone = np.hypot(auc(first, member).high - a, b - auc(second, member).low)
    assert half < 0.8 * alone  # ignoring the pairing would be wider


def test_extremes_keep_an_honest_interval() -> None:
    member = np.arange(40) < 20
    perfect = auc(member.astype(float), member)
    assert (perfect.value, perfect.high) == (1.0, 1.0)
    assert perfect.low == pytest.approx(0.025 ** (1 / 20))
    flat = auc(np.zeros(40), member)
    assert flat.low < 0.5 < flat.high
    assert auc(-member.astype(float), member).high == pytest.approx(1 - 0.025 ** (1 / 20))


def clustered_loops(first: np.ndarray, second: np.ndarray, member: np.ndarray, groups: np.ndarray) -> float:
    """The covariance of two AUCs by Obuchowski's S10, S01 and S11 in loops; a sum over the share outside its group."""
    sums, m, k = [], int(member.sum()), int((~member).sum())
    for scores in (first, second):
        inside, outside = scores[member], scores[~member]
        area = np.mean([[kernel(x, y) for y in outside] for x in inside])
        v10 = {i: np.mean([kernel(scores[i], y) for y in outside]) - area for i in np.flatnonzero(member)}
        v01 = {j: np.mean([kernel(x, scores[j]) for x in inside]) - area for j in np.flatnonzero(~member)}
        parts = (v10, v01)
        sums.append(
            [
                tuple(
                    sum(v[i] for i in v if groups[i] == group) / np.mean([groups[i] != group for i in v]) for v in parts
                )
                for group in np.unique(groups)
            ]
        )
    i10, i01, i = len(np.unique(groups[member])), len(np.unique(groups[~member])), len(np.unique(groups))
    both = list(zip(*sums, strict=True))
    s10 = i10 / ((i10 - 1) * m) * sum(a[0] * b[0] for a, b in both)
    s01 = i01 / ((i01 - 1) * k) * sum(a[1] * b[1] for a, b in both)
    s11 = i / (i - 1) * sum(a[0] * b[1] + a[1] * b[0] for a, b in both)
    return s10 / m + s01 / k + s11 / (m * k)


def width_on_logits(scores: np.ndarray, member: np.ndarray, groups: np.ndarray | None = None) -> float:
    estimate = auc(scores, member, groups)
    return float(logit(estimate.high) - logit(estimate.low)) / 2


@pytest.mark.parametrize("seed", range(4))
def test_groups_of_both_classes_equal_the_loops(seed: int) -> None:
    generator = np.random.default_rng(seed)
    groups, member = generator.integers(0, 12, 60) * 5 - 9, generator.random(60) < 0.4
    first, second = np.round(generator.normal(size=(2, 60)) + 0.6 * member + 0.2 * groups, 1)
    va, vb, covariance = (
        clustered_loops(*both, member, groups) for both in ((first, first), (second, second), (first, second))
    )
    value, shares = auc(first, member).value, np.where(member, 1 / member.sum(), 1 / (~member).sum())
    squares = np.array([shares[groups == group].sum() ** 2 for group in np.unique(groups)])
    inside, outside = first[member], first[~member]
    added = np.zeros(60)
    added[member] = [np.mean([kernel(x, y) for y in outside]) - value for x in inside] / member.sum()
    added[~member] = [np.mean([kernel(x, y) for x in inside]) - value for y in outside] / (~member).sum()
    sums = np.array([added[groups == group].sum() for group in np.unique(groups)])
    normal, tailed = squares.sum() ** 2 / (squares**2).sum(), 3 * (sums**2).sum() ** 2 / (sums**4).sum()
    quantile = t.ppf(0.975, min(normal, tailed) - 2)
    assert width_on_logits(first, member, groups) == pytest.approx(quantile * np.sqrt(va) / (value * (1 - value)))
    a, b = auc(first, member, groups), auc(second, member, groups)
    rho = covariance / np.sqrt(va * vb)
    below, above = a.value - a.low, b.high - b.value
    reach = np.sqrt(below**2 + above**2 - 2 * rho * below * above)
    assert a.value - b.value - auc_difference(first, second, member, groups).low == pytest.approx(reach)


def test_groups_at_the_extremes_count_once() -> None:
    member = np.arange(40) < 20
    perfect = auc(member.astype(float), member, np.arange(40) // 4)
    assert perfect.low == pytest.approx(0.025 ** (1 / 5))
    mixed = auc(member.astype(float), member, np.arange(40) % 10)  # 10 groups make 5 pairs of different groups
    assert mixed.low == pytest.approx(0.025 ** (1 / 5))
    shared = np.repeat(np.arange(20.0), 2)  # a member and a non-member of each group tie: their sums cancel
    cancelled = auc(shared, np.arange(40) % 2 == 0, np.arange(40) // 2)
    assert (cancelled.value, cancelled.low) == pytest.approx((0.5, 0.5 * 0.025 ** (1 / 10)))


def test_bad_input() -> None:
    scores, member = gaussian(5, 1, 0)
    with pytest.raises(ShapeError, match="needs 2 groups of each class, the members are of 1"):
        auc(scores, member, np.maximum(np.arange(10), 4))
    refused(ShapeError, "groups has shape", auc_difference, scores, scores, member, np.arange(9))
    refused(ShapeError, "member has shape", auc, scores, member[:-1])
    refused(ConfigError, "allowed: bool", auc, scores, member.astype(int))
    refused(NumericError, "row 3", auc, np.where(np.arange(10) == 3, np.nan, scores), member)
    refused(ShapeError, "both classes", split_scores, scores, np.ones(10, dtype=bool))
    refused(ShapeError, "2 samples of each class", auc, scores, np.arange(10) < 1)


SIMULATIONS, SHARDS, EACH, DRAWN = 200, 200, 30, 30  # shards of either side, samples of a shard, shards that are read


def test_the_effect_is_the_ratio_of_two_variances_by_slow_sums() -> None:
    generator = np.random.default_rng(1)
    member = np.arange(60) < 24
    shard = np.where(member, np.arange(60) // 6, 4 + np.arange(60) % 9)
    scores = np.round(generator.standard_normal(60) + generator.standard_normal(13)[shard] + member, 1)
    by_shard, alone = 0.0, 0.0
    for side in (True, False):
        own, others = scores[member == side], scores[member != side]
        placed = np.array([np.mean((others < one) + 0.5 * (others == one)) for one in own])
        shards = shard[member == side]
        alone += placed.var(ddof=1) / len(placed)
        names = np.unique(shards)
        for name in names:
            rows = shards == name
            moved = (placed[rows] - placed.mean()).sum() / len(placed)
            by_shard += moved**2 * len(names) / (len(names) - 1)
    expected = by_shard / alone
    assert expected > 1.3
    assert design_effect(scores, member, shard) == pytest.approx(expected)


def test_an_auc_without_variance_has_an_effect_of_one() -> None:
    member = np.arange(40) < 20
    assert design_effect(member * 1.0, member, np.arange(40) // 5) == 1
