"""Metrics from sums over groups are those of the grouped scores; the interval of a TPR is near the bootstrap's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mi_core.checks import ConfigError, ShapeError
from mi_core.metrics import delong, membership
from mi_core.metrics.group_sums import (
    auc_difference_of_groups,
    auc_of_groups,
    metrics_of_groups,
    tpr_at_fpr_of_groups,
)
from mi_core.metrics.histograms import ScoreHistograms
from mi_core.metrics.intervals import GroupSizes
from mi_core.metrics.membership import LOW_FPRS
from mi_core.records import Estimate


def drawn(kind: str, groups: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores that a group shares for the most part, who is a member, and the group: 1 to 9 samples in each."""
    generator = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), generator.integers(1, 10, groups))
    member = group % 2 == 0 if kind == "one class" else generator.random(len(group)) < 0.4
    scores = generator.normal(size=groups)[group] + 0.6 * generator.normal(size=len(group)) + 0.8 * member
    return scores, member, group * 7 - 3


class Passes:
    """What two passes over the shards find, summed by group and class as a database would."""

    def __init__(self, scores: np.ndarray, member: np.ndarray, group: np.ndarray) -> None:
        self.member, self.rows = member, np.unique(group, return_inverse=True)[1]
        self.both = ScoreHistograms.of(scores, member)
        self.codes = self.both.codes_of(scores)
        self.sizes = GroupSizes(self.sums(np.ones(len(scores))))

    def sums(self, values: np.ndarray) -> np.ndarray:
        sums = np.zeros((2, self.rows.max() + 1))
        np.add.at(sums, (1 - self.member.astype(int), self.rows), values)
        return sums

    @property
    def placed(self) -> np.ndarray:
        values = np.empty(len(self.codes))
        for inside, rows in ((True, self.member), (False, ~self.member)):
            values[rows] = self.both.placements(self.codes[rows], of_members=inside)
        return self.sums(values)

    def above(self, fpr: float) -> np.ndarray:
        return self.sums(self.codes > self.both.threshold(fpr))


def close(found: Estimate | None, expected: Estimate | None, within: float = 1e-12) -> None:
    assert found is not None
    assert expected is not None
    assert [found.value, found.low, found.high] == pytest.approx(
        [expected.value, expected.low, expected.high], abs=within
    )
    assert (found.n, found.supported) == (expected.n, expected.supported)


@pytest.mark.parametrize("kind", ["one class", "both classes"])
@pytest.mark.parametrize("seed", range(3))
def test_all_but_the_bootstrap_equal_those_of_the_samples(kind: str, seed: int) -> None:
    scores, member, group = drawn(kind, 300, seed)
    passes = Passes(scores, member, group)
    expected = membership.evaluate(scores, member, 1.0, seed=0, groups=group)
    above = {fpr: passes.above(fpr) for fpr in LOW_FPRS}
    found = metrics_of_groups(passes.both, passes.placed, passes.sums(scores >= 1), above, 1.0, passes.sizes, seed=0)
    for name in ("accuracy", "precision", "recall", "auc"):
        close(getattr(found, name), getattr(expected, name))
    assert (found.n_member, found.n_nonmember, found.threshold) == (member.sum(), (~member).sum(), 1.0)
    for fpr, estimate in expected.tpr_at_fpr.items():
        mine = found.tpr_at_fpr[fpr]
        assert (mine.value, mine.n, mine.supported, mine.false_positives) == (
            pytest.approx(estimate.value),
            estimate.n,
            estimate.supported,
            estimate.false_positives,
        )
    assert found.as_json().keys() == expected.as_json().keys()


@pytest.mark.parametrize("kind", ["one class", "both classes"])
def test_the_difference_of_two_attacks(kind: str) -> None:
    scores, member, group = drawn(kind, 200, 1)
    other = 0.5 * scores + np.random.default_rng(2).normal(size=len(scores))
    first, second = Passes(scores, member, group), Passes(other, member, group)
    found = auc_difference_of_groups(first.placed, second.placed, first.sizes)
    close(found, delong.auc_difference(scores, other, member, group))
    assert found != delong.auc_difference(scores, other, member)


def test_sums_of_shards_add_up() -> None:
    """A group may lie in several shards: its sums are those of all of them."""
    scores, member, group = drawn("both classes", 120, 4)
    passes = Passes(scores, member, group)
    placed = np.empty(len(scores))
    for inside, rows in ((True, member), (False, ~member)):
        placed[rows] = passes.both.placements(passes.codes[rows], of_members=inside)
    shard = np.random.default_rng(0).integers(0, 5, len(scores))
    parts = [passes.sums(np.where(shard == number, placed, 0)) for number in range(5)]
    close(auc_of_groups(np.sum(parts, axis=0), passes.sizes), delong.auc(scores, member, group))


def test_a_perfect_attack_and_constant_scores() -> None:
    group, member = np.arange(400) // 4, np.arange(400) < 200
    for scores in (member * 1.0, np.zeros(400)):
        passes = Passes(scores, member, group)
        close(auc_of_groups(passes.placed, passes.sizes), delong.auc(scores, member, group))
    none_called = metrics_of_groups(
        passes.both,
        passes.placed,
        passes.sums(scores > 9),
        {fpr: passes.above(fpr) for fpr in LOW_FPRS},
        9.5,
        passes.sizes,
        seed=0,
    )
    assert none_called.precision is None


@pytest.mark.parametrize("kind", ["one class", "both classes"])
@pytest.mark.parametrize("fpr", [0.01, 0.1])
def test_the_interval_is_near_that_of_the_bootstrap(kind: str, fpr: float) -> None:
    ratios = []
    for seed in range(10):
        scores, member, group = drawn(kind, 1500, 30 + seed)
        passes = Passes(scores, member, group)
        found = tpr_at_fpr_of_groups(passes.both, passes.above(fpr), passes.sizes, fpr, seed=seed)
        expected = membership.tpr_at_fpr(scores, member, fpr, seed=seed, groups=group, resamples=300)
        alone = membership.tpr_at_fpr(scores, member, fpr, seed=seed)
        assert found.high - found.low > alone.high - alone.low
        ratios.append((found.high - found.low) / (expected.high - expected.low))
    assert 0.9 <= np.mean(ratios) <= 1.5


def test_the_interval_covers_the_truth() -> None:
    """Groups of 6 that share nearly all of their score: without groups the interval would be far too short."""
    fpr, covered, alone = 0.05, [], []
    truth = _truth(fpr, lambda generator, count: _groups(generator, count)[0])
    for seed in range(200):
        generator = np.random.default_rng(seed)
        (inside, first), (outside, second) = _groups(generator, 100), _groups(generator, 150)
        scores, member = np.concatenate([inside + 1.5, outside]), np.arange(1500) < 600
        passes = Passes(scores, member, np.concatenate([first, second + 100]))
        found = tpr_at_fpr_of_groups(passes.both, passes.above(fpr), passes.sizes, fpr, seed=seed)
        single = passes.both.tpr_at_fpr(fpr, seed=seed)
        covered.append(found.low <= truth <= found.high)
        alone.append(single.low <= truth <= single.high)
    assert np.mean(covered) >= 0.94
    assert np.mean(alone) <= 0.8


def _groups(generator: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    group = np.repeat(np.arange(count), 6)
    return generator.normal(size=count)[group] + 0.3 * generator.normal(size=6 * count), group


def _truth(fpr: float, draw: Callable[[np.random.Generator, int], np.ndarray]) -> float:
    generator = np.random.default_rng(99)
    threshold = np.quantile(draw(generator, 300_000), 1 - fpr)
    return float((draw(generator, 300_000) + 1.5 > threshold).mean())


def test_groups_of_one_are_no_groups() -> None:
    scores, member, _ = drawn("both classes", 3000, 5)
    passes = Passes(scores, member, np.arange(len(scores)))
    for fpr in (0.01, 0.2):
        found = tpr_at_fpr_of_groups(passes.both, passes.above(fpr), passes.sizes, fpr, seed=0, resamples=20_000)
        close(found, passes.both.tpr_at_fpr(fpr, seed=0, resamples=20_000), 0.003)
    whole = tpr_at_fpr_of_groups(passes.both, passes.above(1.0), passes.sizes, 1.0, seed=0)
    close(whole, membership.tpr_at_fpr(scores, member, 1.0, seed=0, groups=np.arange(len(scores))))


@pytest.mark.parametrize("copied", ["members", "non-members", "all"])
def test_copies_of_a_sample_tell_nothing_more(copied: str) -> None:
    member = np.arange(500) < 200
    scores = np.random.default_rng(8).normal(size=500) + member
    once = membership.tpr_at_fpr(scores, member, 0.1, seed=0, resamples=20_000)
    many = np.where((copied == "all") | (member == (copied == "members")), 6, 1)
    passes = Passes(np.repeat(scores, many), np.repeat(member, many), np.repeat(np.arange(500), many))
    found = tpr_at_fpr_of_groups(passes.both, passes.above(0.1), passes.sizes, 0.1, seed=0, resamples=20_000)
    assert found.value == pytest.approx(once.value, abs=0.01)
    assert [found.low, found.high] == pytest.approx([once.low, once.high], abs=0.02)
    assert found.high - found.low > 0.99 * (once.high - once.low)


def test_bad_input() -> None:
    scores, member, group = drawn("both classes", 50, 6)
    passes = Passes(scores, member, group)
    above, sizes = passes.above(0.1), passes.sizes
    with pytest.raises(ShapeError, match="placed has shape"):
        auc_of_groups(passes.placed[:, 1:], sizes)
    with pytest.raises(ShapeError, match="above has shape"):
        tpr_at_fpr_of_groups(passes.both, above[0], sizes, 0.1, seed=0)
    with pytest.raises(ShapeError, match="samples above the threshold, the groups"):
        tpr_at_fpr_of_groups(passes.both, above, sizes, 0.2, seed=0)
    with pytest.raises(ShapeError, match="samples, the groups"):
        tpr_at_fpr_of_groups(passes.both, above, GroupSizes(2 * sizes.counts), 0.1, seed=0)
    with pytest.raises(ConfigError, match="fpr = 0"):
        tpr_at_fpr_of_groups(passes.both, above, sizes, 0, seed=0)
    with pytest.raises(ConfigError, match="resamples = 0"):
        tpr_at_fpr_of_groups(passes.both, above, sizes, 0.1, seed=0, resamples=0)
    with pytest.raises(ShapeError, match="called has shape"):
        metrics_of_groups(passes.both, passes.placed, above[:1], {}, 0.5, sizes, seed=0)
    with pytest.raises(ShapeError, match="counts has shape"):
        GroupSizes(above[0])
    with pytest.raises(ShapeError, match="the members are of 0"):
        GroupSizes(np.array([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]))
