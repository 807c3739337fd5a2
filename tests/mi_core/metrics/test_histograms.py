"""Metrics from histograms are those of the scores rounded down to their bins, and close to those of the scores."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest

from mi_core.checks import NumericError, ShapeError
from mi_core.metrics import delong, histograms, membership
from mi_core.metrics.histograms import (
    Histogram,
    PlacementSums,
    ScoreHistograms,
    auc_difference,
    codes_of,
    lower_ends,
)
from mi_core.records import Estimate

Draw = Callable[[np.random.Generator, np.ndarray], np.ndarray]
SCORES: dict[str, Draw] = {
    "normal": lambda generator, member: generator.normal(size=len(member)) + 0.3 * member,
    "ties": lambda generator, member: np.round(generator.normal(size=len(member)) + member),
    "heavy tails": lambda generator, member: generator.standard_cauchy(len(member)) + member,
    "log-likelihoods": lambda generator, member: -(10 ** generator.uniform(-3, 6, len(member))) / (1 + member),
    "close to 1": lambda generator, member: 1 - 10 ** (generator.normal(size=len(member)) - 3 - 0.2 * member),
    "constant": lambda _, member: np.full(len(member), 0.5),
}


def drawn(name: str, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores, and which belong to members: a third."""
    member = np.arange(count) % 3 == 0
    return SCORES[name](np.random.default_rng(seed), member), member


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Histograms of at most 512 bins, so that thousands of scores fall into common ones."""
    monkeypatch.setattr(histograms, "MOST", 512)


def close(found: Estimate, expected: Estimate, within: float) -> None:
    assert [found.value, found.low, found.high] == pytest.approx(
        [expected.value, expected.low, expected.high], abs=within
    )
    assert (found.n, found.supported) == (expected.n, expected.supported)


def rounded(scores: np.ndarray, both: ScoreHistograms) -> np.ndarray:
    return lower_ends(both.codes_of(scores), both.members.dropped)


@pytest.mark.parametrize("dropped", [0, 20, 41])
def test_bins_keep_the_order_and_are_narrow(dropped: int) -> None:
    generator = np.random.default_rng(0)
    scores = np.sort(np.concatenate([generator.standard_cauchy(20_000), 10.0 ** generator.uniform(-30, 30, 2000)]))
    codes = codes_of(scores, dropped)
    assert (np.diff(codes.astype(np.int64)) >= 0).all()
    ends = lower_ends(codes, dropped)
    assert (codes_of(ends, dropped) == codes).all()
    assert (ends <= scores).all()
    assert (scores - ends <= np.abs(scores) * 2.0 ** (dropped - 52)).all()
    for bad in (np.nan, np.inf):
        with pytest.raises(NumericError, match="scores"):
            codes_of(np.array([0.0, bad]))


@pytest.mark.parametrize("name", SCORES)
def test_metrics_of_histograms_are_those_of_rounded_scores(few: None, name: str) -> None:
    scores, member = drawn(name, 3000)
    both = ScoreHistograms.of(scores, member)
    coarse = rounded(scores, both)
    assert max(len(both.members.codes), len(both.nonmembers.codes)) <= 512
    close(both.auc(), delong.auc(coarse, member), 1e-12)
    for fpr in (0.0001, 0.001, 0.01, 0.3, 1.0):
        found = both.tpr_at_fpr(fpr, seed=3)
        expected = membership.tpr_at_fpr(coarse, member, fpr, seed=3)
        close(found, expected, 0)
        assert found.false_positives == expected.false_positives


@pytest.mark.parametrize("name", SCORES)
def test_a_million_samples(name: str) -> None:
    scores, member = drawn(name, 1_000_000)
    both = ScoreHistograms.of(scores, member)
    close(both.auc(), delong.auc(scores, member), 1e-6)
    threshold = float(np.quantile(scores, 0.7))
    called = int((scores[member] >= threshold).sum()), int((scores[~member] >= threshold).sum())
    found = both.metrics(called, threshold, seed=0)
    expected = membership.evaluate(scores, member, threshold, seed=0)
    assert found.accuracy == expected.accuracy
    assert found.precision == expected.precision
    assert found.recall == expected.recall
    for fpr, estimate in expected.tpr_at_fpr.items():
        close(found.tpr_at_fpr[fpr], estimate, 1e-3)


@pytest.mark.parametrize("count", [3000, 300_000])
def test_the_difference_of_two_attacks(count: int) -> None:
    first, member = drawn("normal", count)
    second = 0.6 * first + drawn("heavy tails", count, seed=1)[0]
    both = ScoreHistograms.of(first, member), ScoreHistograms.of(second, member)
    parts = np.array_split(np.arange(count), 7)
    sums = [PlacementSums.of((first[rows], second[rows]), member[rows], both) for rows in parts]
    whole = sums[0]
    for part in sums[1:]:
        whole += part
    found = auc_difference(*both, whole)
    close(found, delong.auc_difference(rounded(first, both[0]), rounded(second, both[1]), member), 1e-9)
    close(found, delong.auc_difference(first, second, member), 1e-6)
    with pytest.raises(ShapeError, match="the first histograms hold"):
        auc_difference(*both, sums[0])


@pytest.mark.parametrize("name", SCORES)
def test_histograms_add_up_in_any_order(few: None, name: str) -> None:
    scores, _ = drawn(name, 10_000)
    whole = Histogram.of(scores)
    assert len(whole.codes) <= 512
    parts = [Histogram.of(part) for part in np.array_split(scores, 9)]
    halves = [Histogram.total(parts[:3]), Histogram.total(parts[3:])]
    nothing = Histogram.of(np.empty(0))
    for some in (parts, parts[::-1], halves, [whole, nothing]):
        joined = Histogram.total(some)
        assert joined.dropped == whole.dropped
        assert (joined.codes == whole.codes).all()
        assert (joined.counts == whole.counts).all()
        assert joined.totals == pytest.approx(whole.totals)
    assert Histogram.total([]).n == nothing.n == 0
    assert whole.n == 10_000
    assert whole.totals.sum() == pytest.approx(scores.sum())


def test_many_are_summed_at_once(few: None) -> None:
    """Parts of one score and of many: more bins in all than are gathered at once."""
    scores = drawn("heavy tails", 20_000)[0]
    cuts = np.concatenate([np.arange(40), np.arange(40, 20_000, 77)])
    found = Histogram.total(Histogram.of(part) for part in np.split(scores, cuts))
    whole = Histogram.of(scores)
    assert found.dropped == whole.dropped
    assert (found.codes == whole.codes).all()
    assert (found.counts == whole.counts).all()
    assert found.totals == pytest.approx(whole.totals)
    assert Histogram.total([]).n == 0


@pytest.mark.parametrize("name", ["heavy tails", "close to 1"])
def test_an_eighth_of_the_bins_hardly_moves_an_auc(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all bins no two of a million scores share one."""
    monkeypatch.setattr(histograms, "MOST", 2**17)
    first, member = drawn(name, 1_000_000)
    second = drawn(name, 1_000_000, seed=1)[0] + 0.3 * first
    both = ScoreHistograms.of(first, member), ScoreHistograms.of(second, member)
    assert max(len(one.nonmembers.codes) for one in both) <= 2**17
    estimate, expected = both[0].auc(), delong.auc(first, member)
    close(estimate, expected, 1e-6)
    assert estimate.high - estimate.low == pytest.approx(expected.high - expected.low, rel=1e-4)
    found = auc_difference(*both, PlacementSums.of((first, second), member, both))
    close(found, delong.auc_difference(first, second, member), 1e-6)


def test_a_histogram_survives_a_file() -> None:
    scores = drawn("close to 1", 5000)[0]
    whole = Histogram.of(scores)
    assert whole.n == 5000  # kept on the histogram, and not to be written
    file = io.BytesIO()
    np.savez(file, **whole.arrays())
    file.seek(0)
    again = Histogram.from_arrays(np.load(file))
    assert (again + Histogram.of(scores)).counts.tolist() == (2 * whole.counts).tolist()
    assert (again.codes == whole.codes).all()
    assert (again.totals == whole.totals).all()
    assert again.dropped == whole.dropped


def test_what_cannot_be_told() -> None:
    with pytest.raises(ShapeError, match="got 1 members and 2 non-members"):
        ScoreHistograms.of(np.zeros(3), np.array([True, False, False]))
