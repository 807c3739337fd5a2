"""Rates of one run: counted in a loop, low false-positive rates by search, the bootstrap drawn plainly; by class."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom
from sklearn import metrics as sklearn_metrics

from mi_core.checks import ConfigError, ShapeError
from mi_core.metrics.delong import auc
from mi_core.metrics.intervals import clopper_pearson, rate
from mi_core.metrics.membership import accuracy, by_class, evaluate, precision, recall, tpr_at_fpr
from mi_core.report.model.as_json import part_as_json
from tests.mi_core.metrics.test_delong import gaussian
from tests.raising import refused

CASES = st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=4, max_size=40)


def split(cases: list[tuple[int, bool]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([score for score, _ in cases], dtype=np.float64), np.array([truth for _, truth in cases])


@settings(max_examples=80)
@given(CASES, st.integers(0, 9))
def test_rates_equal_scikit_learn(cases: list[tuple[int, bool]], threshold: int) -> None:
    scores, member = split(cases)
    if member.all() or not member.any():
        return
    called = scores >= threshold
    assert accuracy(scores, member, threshold).value == pytest.approx(sklearn_metrics.accuracy_score(member, called))
    assert recall(scores, member, threshold).value == pytest.approx(sklearn_metrics.recall_score(member, called))
    found = precision(scores, member, threshold)
    if called.any():
        assert found.value == pytest.approx(sklearn_metrics.precision_score(member, called))
        assert found.n == called.sum()
    else:
        assert found is None


@settings(max_examples=150)
@given(CASES, st.sampled_from([0.01, 0.1, 0.25, 0.29, 0.5, 1.0]))
def test_tpr_at_fpr_is_the_best_allowed(cases: list[tuple[int, bool]], fpr: float) -> None:
    scores, member = split(cases)
    if member.all() or not member.any():
        return
    inside, outside = scores[member], scores[~member]
    best = max(
        (inside >= threshold).mean()
        for threshold in [*scores, scores.max() + 1]
        if (outside >= threshold).sum() <= fpr * len(outside) + 1e-9
    )
    estimate = tpr_at_fpr(scores, member, fpr, seed=0)
    assert estimate.value == pytest.approx(best)
    assert estimate.low <= estimate.value <= estimate.high
    assert estimate.false_positives is not None
    assert estimate.false_positives <= fpr * len(outside) + 1e-9


def test_interval_joins_where_the_threshold_lies_and_the_rate_above_it() -> None:
    generator = np.random.default_rng(3)
    many, few = np.sort(generator.standard_normal(200_000))[::-1], np.sort(generator.standard_normal(2000))[::-1]
    certain = tpr_at_fpr(np.r_[few[:300] + 0.5, many], np.arange(200_300) < 300, 0.01, seed=0)  # of the threshold
    assert (certain.low, certain.high) == pytest.approx(clopper_pearson(round(300 * certain.value), 300), abs=0.012)
    unsure = tpr_at_fpr(np.r_[many + 2, few], np.arange(202_000) < 200_000, 0.01, seed=0, resamples=20_000)
    least, most = binom(2000, 0.01).ppf([0.025, 0.975]).astype(int)
    expected = (many + 2 > few[least - 1]).mean(), (many + 2 > few[most]).mean()
    assert (unsure.low, unsure.high) == pytest.approx(expected, abs=0.008)
    none = tpr_at_fpr(np.r_[np.zeros(40), np.ones(40)], np.arange(80) < 40, 0.01, seed=0)
    assert (none.value, none.low, none.high) == (0, 0, pytest.approx(clopper_pearson(0, 40)[1], abs=0.03))


@pytest.mark.parametrize(("nonmembers", "fpr", "supported"), [(1000, 0.01, True), (999, 0.01, False), (440, 0.1, True)])
def test_a_rate_that_n_cannot_carry_is_marked(nonmembers: int, fpr: float, supported: bool) -> None:
    scores = np.random.default_rng(0).standard_normal(nonmembers + 50)
    estimate = tpr_at_fpr(scores, np.arange(nonmembers + 50) < 50, fpr, seed=0)
    assert estimate.supported is supported
    assert ("supported" in estimate.as_json()) is not supported


def test_everything_about_one_run_as_json() -> None:
    scores, member = gaussian(440, 2, 4)
    result = part_as_json(evaluate(scores, member, 1.0, seed=0))
    assert json.loads(json.dumps(result)) == result
    assert result["n_member"] == result["n_nonmember"] == 440
    assert result["tpr_at_fpr"]["0.001"]["supported"] is False
    assert result["accuracy"]["value"] == pytest.approx(((scores >= 1) == member).mean())
    silent = part_as_json(evaluate(scores, member, 99.0, seed=0))
    assert "precision" not in silent
    assert silent["recall"]["value"] == 0


def clustered(seed: int, kinds: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """40 groups of very different sizes that share half of their variance; of one class or of both."""
    generator = np.random.default_rng(seed)
    groups = np.repeat(np.arange(40), generator.integers(1, 30, 40))
    member = groups % 2 == 0 if kinds == "one class" else (groups % 3 == 0) | (generator.random(len(groups)) < 0.3)
    return generator.normal(size=40)[groups] + generator.normal(size=len(groups)) + 1.5 * member, member, groups


@pytest.mark.parametrize("kinds", ["one class", "both classes"])
@pytest.mark.parametrize("fpr", [0.05, 0.3])
def test_interval_equals_a_plain_bootstrap_of_groups(kinds: str, fpr: float) -> None:
    scores, member, groups = clustered(0, kinds)
    generator = np.random.default_rng(1)
    rows = {group: np.flatnonzero(groups == group) for group in range(40)}
    kind = {group: (member[own].any(), (~member[own]).any()) for group, own in rows.items()}
    drawn = []
    for _ in range(1200):
        taken = []
        for same in set(kind.values()):
            of_kind = [group for group in rows if kind[group] == same]
            taken += [rows[group] for group in generator.choice(of_kind, len(of_kind))]
        chosen = np.concatenate(taken)
        inside, outside = scores[chosen][member[chosen]], np.sort(scores[chosen][~member[chosen]])[::-1]
        drawn.append((inside > outside[int(fpr * len(outside) + 1e-9)]).mean())
    low, high = np.quantile(drawn, [0.025, 0.975])
    estimate = tpr_at_fpr(scores, member, fpr, seed=3, groups=groups, resamples=4000)
    fixed = recall(scores, member, np.nextafter(np.sort(scores[~member])[-1 - int(fpr * (~member).sum())], 9), groups)
    assert estimate.low == pytest.approx(min(low, fixed.low), abs=0.03)
    assert estimate.high == pytest.approx(max(high, fixed.high), abs=0.03)
    assert tpr_at_fpr(scores, member, fpr, seed=3, groups=groups, resamples=4000) == estimate


def test_the_design_effect_of_a_precision_is_that_of_the_jackknife() -> None:
    """Its variances by leaving out one group, and one sample, at a time give the effective sample size."""
    generator = np.random.default_rng(4)
    groups, member = np.arange(600) // 4, np.arange(600) < 300
    scores = generator.normal(size=150)[groups] + 0.5 * generator.normal(size=600) + member
    variances = []
    for units in (groups, np.arange(600)):
        left_out: dict[bool, list[float]] = {True: [], False: []}
        for unit in np.unique(units):
            kept = units != unit
            called = kept & (scores >= 1)
            left_out[bool(member[units == unit][0])].append((called & member).sum() / called.sum())
        variances.append(sum(len(part) * np.var(part) for part in left_out.values()))
    estimate = precision(scores, member, 1.0, groups)
    effective = estimate.n * variances[1] / variances[0]
    assert effective < 0.5 * estimate.n
    expected = clopper_pearson(estimate.value * effective, effective)
    assert (estimate.low, estimate.high) == pytest.approx(expected, abs=0.01)


def test_groups_reach_every_metric() -> None:
    scores, member, groups = clustered(2, "both classes")
    alone, grouped = evaluate(scores, member, 0.8, seed=0), evaluate(scores, member, 0.8, seed=0, groups=groups)
    assert grouped.precision is not None
    assert grouped.precision == precision(scores, member, 0.8, groups)
    assert grouped.accuracy == accuracy(scores, member, 0.8, groups) != alone.accuracy
    assert grouped.recall == recall(scores, member, 0.8, groups) != alone.recall
    assert grouped.auc != alone.auc
    assert grouped.tpr_at_fpr["0.01"] == tpr_at_fpr(scores, member, 0.01, seed=0, groups=groups)
    whole = tpr_at_fpr(scores, member, 1.0, seed=0, groups=groups)
    assert (whole.value, whole.low) == (1, recall(scores, member, scores.min(), groups).low)


def test_bad_input() -> None:
    scores, member = gaussian(10, 1, 5)
    refused(ShapeError, "groups has shape", tpr_at_fpr, scores, member, 0.1, seed=0, groups=np.arange(3))
    refused(ConfigError, "allowed: integers", accuracy, scores, member, 0.5, np.linspace(0, 1, 20))
    refused(ConfigError, "threshold = nan", accuracy, scores, member, float("nan"))
    refused(ConfigError, "fpr = 0", tpr_at_fpr, scores, member, 0, seed=0)
    refused(ConfigError, "resamples = 0", tpr_at_fpr, scores, member, 0.1, seed=0, resamples=0)


def test_every_class_by_itself() -> None:
    generator = np.random.default_rng(0)
    classes = generator.integers(0, 3, 600)
    member = generator.random(600) < 0.5
    scores = generator.standard_normal(600) + 2.0 * (member & (classes == 2)) + 5.0 * classes
    found = by_class(scores, member, classes, 10.0)
    assert list(found) == [0, 1, 2]
    for number, result in found.items():
        rows = classes == number
        assert result.auc == auc(scores[rows], member[rows])
        inside = [score >= 10.0 for score, one, here in zip(scores, member, rows, strict=True) if one and here]
        outside = [score >= 10.0 for score, one, here in zip(scores, member, rows, strict=True) if not one and here]
        assert result.recall == rate(sum(inside), len(inside))
        assert result.false_positive_rate == rate(sum(outside), len(outside))
        assert (result.n_member, result.n_nonmember) == (len(inside), len(outside))
    assert found[2].auc.low > 0.8 > found[0].auc.high


def test_small_classes_and_samples_without_one_are_left_out() -> None:
    member = np.arange(40) % 2 == 0
    classes = np.where(np.arange(40) < 32, 0, 7)  # class 7: 4 and 4
    classes[:4] = -1
    found = by_class(np.arange(40.0), member, classes, 5.0)
    assert list(found) == [0]
    assert found[0].n_member + found[0].n_nonmember == 28
    refused(ShapeError, "classes has shape", by_class, np.arange(40.0), member, classes[:3], 5.0)
