"""Evidence from histograms is that of the scores rounded down to their bins, and close to that of the scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mi_core.checks import NumericError, ShapeError
from mi_core.metrics import histograms
from mi_core.metrics.histograms import Histogram, ScoreHistograms, lower_ends
from mi_core.validity.conformal import conformal_p_values, p_values_of_histograms, q_values, q_values_of_histograms
from mi_core.validity.dataset import MOST_RELABELLED, DatasetTest, dataset_test, dataset_test_of_histograms
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
