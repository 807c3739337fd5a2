"""Evidence from histograms is that of the scores rounded down to their bins, and close to that of the scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.metrics import histograms
from mi_core.metrics.histograms import Histogram, ScoreHistograms, lower_ends
from mi_core.metrics.intervals import worth_of
from mi_core.validity.conformal import conformal_p_values, p_values_of_histograms, q_values, q_values_of_histograms
from mi_core.validity.dataset import (
    MOST_RELABELLED,
    DatasetTest,
    dataset_test,
    dataset_test_of_groups,
    dataset_test_of_histograms,
)
from mi_core.validity.posterior import posterior, posterior_of_histograms
from mi_core.validity.share import least_share, least_share_of_histograms


def drawn(count: int, effect: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores around .95, as cosines of embeddings are, and which belong to candidates: two of five."""
    generator = np.random.default_rng(seed)
    candidate = np.arange(count) % 5 < 2
    return 0.95 + 0.01 * (generator.gumbel(size=count) + effect * candidate), candidate


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Histograms of at most 300 bins."""
    monkeypatch.setattr(histograms, "MOST", 300)


def rounded(scores: np.ndarray, both: ScoreHistograms) -> np.ndarray:
    return lower_ends(both.codes_of(scores), both.members.dropped)


@pytest.mark.parametrize("effect", [0.0, 0.4])
def test_p_values_and_q_values_of_ties(few: None, effect: float) -> None:
    scores, candidate = drawn(4000, effect)
    both = ScoreHistograms.of(scores, candidate)
    coarse = rounded(scores, both)
    expected = conformal_p_values(coarse[candidate], coarse[~candidate])
    p_values = p_values_of_histograms(both.members, both.nonmembers)
    row = np.searchsorted(both.members.codes, both.codes_of(scores[candidate]))
    assert p_values[row] == pytest.approx(expected, abs=1e-12)
    q = q_values_of_histograms(p_values, both.members.counts)
    assert q[row] == pytest.approx(q_values(expected), abs=1e-12)
    fine = conformal_p_values(scores[candidate], scores[~candidate])
    assert (p_values[row] >= fine - 1e-12).all()  # never too small


@pytest.mark.parametrize("scale", [1.0, -1e6])
def test_p_values_and_q_values_of_a_million(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    monkeypatch.setattr(histograms, "MOST", 2**17)  # fewer than there are scores
    scores, candidate = drawn(1_000_000, 1.0 if scale > 0 else -1.0)
    scores = scale * (scores - 0.95)
    both = ScoreHistograms.of(scores, candidate)
    assert len(both.members.codes) < candidate.sum() / 2
    p_values = p_values_of_histograms(both.members, both.nonmembers)
    row = np.searchsorted(both.members.codes, both.codes_of(scores[candidate]))
    exact = conformal_p_values(scores[candidate], scores[~candidate])
    assert (p_values[row] >= exact - 1e-12).all()
    assert (p_values[row] - exact).max() < 1e-4
    q, expected = q_values_of_histograms(p_values, both.members.counts)[row], q_values(exact)
    assert (q >= expected - 1e-12).all()
    assert (q - expected).max() < 0.01  # a few samples far out, where bins are wide
    for level in (0.05, 0.1, 0.3):
        flagged, exactly = np.count_nonzero(q <= level), np.count_nonzero(expected <= level)
        assert exactly * 0.999 <= flagged <= exactly
    assert np.count_nonzero(q <= 0.3) > 50


def test_p_values_stay_valid_without_a_difference(few: None) -> None:
    below = np.zeros(3)
    for seed in range(300):
        scores, candidate = drawn(500, 0.0, seed)
        both = ScoreHistograms.of(scores, candidate)
        p_values = np.repeat(p_values_of_histograms(both.members, both.nonmembers), both.members.counts)
        below += [(p_values <= level).mean() / 300 for level in (0.01, 0.05, 0.2)]
    assert (below <= np.array([0.01, 0.05, 0.2]) * 1.1).all()


def same(found: DatasetTest, expected: DatasetTest, within: float) -> None:
    for name in ("statistic", "df", "welch_p", "reversed_p"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=within, abs=1e-12)
    assert found.effect is not None
    assert expected.effect is not None
    for name in ("value", "low", "high"):
        assert getattr(found.effect, name) == pytest.approx(getattr(expected.effect, name), rel=within)
    assert replace(found, statistic=0, df=0, welch_p=0, reversed_p=0, effect=None, needed=None) == DatasetTest(
        expected.candidates, expected.controls, None, None, 0, 0, 0, 0, None, None, None, None
    )


@pytest.mark.parametrize("effect", [0.003, 0.1])
def test_the_test_of_a_million(effect: float) -> None:
    scores, candidate = drawn(MOST_RELABELLED + 5, effect)
    both = ScoreHistograms.of(scores, candidate)
    found = dataset_test_of_histograms(both.members, both.nonmembers)
    expected = dataset_test(scores, candidate, seed=0)
    same(found, expected, 1e-4)
    assert found.needed is not None
    assert expected.needed is not None
    assert found.needed.value == pytest.approx(expected.needed.value, rel=1e-3)


def test_the_test_of_few_bins_has_exact_means(few: None) -> None:
    scores, candidate = drawn(20_000, 0.1)
    both = ScoreHistograms.of(scores, candidate)
    expected = replace(dataset_test(scores, candidate, seed=0), permutation_p=None, permutations=None)
    same(dataset_test_of_histograms(both.members, both.nonmembers), expected, 0.01)


def sums_of(scores: np.ndarray, group: np.ndarray) -> np.ndarray:
    rows = np.unique(group, return_inverse=True)[1]
    return np.stack([np.bincount(rows, part) for part in (np.ones(len(scores)), scores, scores**2)])


@pytest.mark.parametrize("offset", [0.0, 0.95, -1e4])
@pytest.mark.parametrize("groups", [9, 300])
def test_the_test_of_groups_from_their_sums(offset: float, groups: int) -> None:
    """All of it, the permutation test too, whatever number is near the scores."""
    generator = np.random.default_rng(groups)
    group = np.repeat(np.arange(groups), generator.integers(1, 8, groups))
    candidate = group < groups // 2
    scores = generator.standard_gamma(2, groups)[group] + generator.normal(size=len(group)) + 0.3 * candidate
    expected = dataset_test(scores, candidate, seed=3, groups=group, permutations=500)
    found = dataset_test_of_groups(
        *(sums_of(scores[rows] + offset, group[rows]) for rows in (candidate, ~candidate)), seed=3, permutations=500
    )
    assert found.direction == expected.direction
    numbers = [
        {name: part for name, part in vars(one).items() if isinstance(part, int | float)} for one in (found, expected)
    ]
    assert "permutation_p" in numbers[0]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-6)
    assert found.effect is not None
    assert expected.effect is not None
    for name in ("value", "low", "high"):
        assert getattr(found.effect, name) == pytest.approx(getattr(expected.effect, name), rel=1e-6)
    assert found.needed == expected.needed


def test_what_a_test_of_groups_cannot_tell() -> None:
    constant = sums_of(np.full(60, 0.3), np.arange(60) // 4)
    with pytest.raises(NumericError, match="t is undefined"):
        dataset_test_of_groups(constant, constant, seed=0)
    for few in (constant[:, :1], constant[:, :0]):
        with pytest.raises(ShapeError, match=f"2 groups on each side, got {few.shape[1]} of the controls"):
            dataset_test_of_groups(constant, few, seed=0)
    with pytest.raises(ShapeError, match="sums of the candidates has shape"):
        dataset_test_of_groups(constant[:2], constant, seed=0)
    with pytest.raises(NumericError, match="sums of the controls is not finite"):
        dataset_test_of_groups(constant, np.where(constant == 4, np.nan, constant), seed=0)
    with pytest.raises(ConfigError, match="permutations = 0"):
        dataset_test_of_groups(constant, constant, seed=0, permutations=0)


@pytest.mark.parametrize("effect", [1.0, 5.0])
def test_the_least_share_of_groups(effect: float) -> None:
    scores, candidate = drawn(4000, effect)
    group = np.arange(4000) // 5 * 2 + candidate  # 3 controls and 2 candidates of each 5
    both = ScoreHistograms.of(scores, candidate)
    worths = [worth_of(np.unique(group[rows], return_counts=True)[1] * 1.0) for rows in (candidate, ~candidate)]
    found = least_share_of_histograms(both.members, both.nonmembers, (worths[0], worths[1]))
    expected = least_share(rounded(scores, both), candidate, groups=group)
    assert found == expected
    assert found.low < least_share(scores, candidate).low


def test_what_a_test_cannot_tell() -> None:
    constant = Histogram.of(np.full(10, 0.3))
    with pytest.raises(NumericError, match="t is undefined"):
        dataset_test_of_histograms(constant, constant)
    with pytest.raises(ShapeError, match="got 1 of the controls"):
        dataset_test_of_histograms(constant, Histogram.of(np.ones(1)))
    nothing = Histogram.of(np.empty(0))
    for compute in (least_share_of_histograms, p_values_of_histograms, lambda a, b: posterior_of_histograms(a, b, 0.1)):
        with pytest.raises(ShapeError, match="candidates and"):
            compute(constant, nothing)


@pytest.mark.parametrize("effect", [0.0, 1.0, 5.0])
def test_the_least_share(few: None, effect: float) -> None:
    scores, candidate = drawn(5000, effect)
    both = ScoreHistograms.of(scores, candidate)
    found = least_share_of_histograms(both.members, both.nonmembers)
    assert found == least_share(rounded(scores, both), candidate)
    assert found.low == pytest.approx(least_share(scores, candidate).low, abs=0.02)


def test_posteriors_of_many() -> None:
    scores, candidate = drawn(300_000, 1.0)
    both = ScoreHistograms.of(scores, candidate)
    found = posterior_of_histograms(both.members, both.nonmembers, 0.3)
    row = np.searchsorted(both.members.codes, both.codes_of(scores[candidate]))
    expected = posterior(scores[candidate], scores[~candidate], 0.3, seed=0)
    assert np.abs(found[row] - expected).mean() < 0.002
    assert np.abs(found[row] - expected).max() < 0.05
    assert (np.diff(found) >= 0).all()
    assert found @ both.members.counts / both.members.n <= 0.3 + 1e-12
