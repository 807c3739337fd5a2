"""Candidates against controls: Welch's formula, relabelling, the effect and its needs."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.report.model.as_json import part_as_json
from mi_core.validity.sets import dataset
from mi_core.validity.sets.dataset import dataset_test
from tests.raising import refused


def loop_variance(values: np.ndarray, groups: np.ndarray) -> tuple[float, int]:
    """Linearised variance of a mean (Cochran, equation 9.29) in a loop over groups; and the number of groups."""
    mean, names = values.mean(), sorted(set(groups.tolist()))
    sums = [sum(value - mean for value in values[groups == name]) for name in names]
    return sum(x**2 for x in sums) / len(values) ** 2 * len(names) / (len(names) - 1), len(names)


def loop_welch(scores: np.ndarray, candidate: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    (va, ga), (vb, gb) = (loop_variance(scores[rows], groups[rows]) for rows in (candidate, ~candidate))
    t = (scores[candidate].mean() - scores[~candidate].mean()) / math.sqrt(va + vb)
    return t, (va + vb) ** 2 / (va**2 / (ga - 1) + vb**2 / (gb - 1))


def loop_permutation_p(scores: np.ndarray, candidate: np.ndarray, groups: np.ndarray) -> float:
    """The exact p-value over all ways to call as many groups candidates."""
    names = np.unique(groups)
    chosen = len(np.unique(groups[candidate]))
    observed = loop_welch(scores, candidate, groups)[0]
    drawn = [
        loop_welch(scores, np.isin(groups, names[list(pick)]), groups)[0]
        for pick in itertools.combinations(range(len(names)), chosen)
    ]
    return float(np.mean(np.array(drawn) >= observed - 1e-9))


def grouped(
    seed: int, groups: tuple[int, int], *, sizes: int = 5, tie: float = 0.8, skewed: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, candidates and groups; ``tie`` is the correlation within a group, group sizes are 1 to ``sizes``."""
    generator = np.random.default_rng(seed)
    ids = np.repeat(np.arange(sum(groups)), generator.integers(1, sizes + 1, sum(groups)))
    draw = generator.standard_exponential if skewed else generator.standard_normal
    scores = math.sqrt(tie) * draw(sum(groups))[ids] + math.sqrt(1 - tie) * draw(len(ids))
    return scores, ids < groups[0], ids


@settings(max_examples=60)
@given(st.integers(2, 30), st.integers(2, 30), st.floats(0.1, 5), st.floats(-3, 3), st.integers(0, 1000))
def test_welch_equals_the_referee(n: int, m: int, spread: float, shift: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    inside, outside = shift + spread * generator.standard_normal(n), generator.standard_exponential(m)
    referee = stats.ttest_ind(inside, outside, equal_var=False, alternative="greater")
    result = dataset_test(np.append(inside, outside), np.arange(n + m) < n, seed=0, permutations=1)
    assert (result.statistic, result.df) == (pytest.approx(referee.statistic), pytest.approx(referee.df))
    assert result.welch_p == pytest.approx(referee.pvalue, rel=1e-6)
    assert result.reversed_p == pytest.approx(1 - referee.pvalue, abs=1e-12)
    assert (result.candidates, result.controls) == (n, m)


def test_groups_enter_as_the_formula_says() -> None:
    scores, candidate, ids = grouped(3, (12, 17))
    result = dataset_test(scores, candidate, seed=0, groups=ids - 7, permutations=9)
    assert (result.statistic, result.df) == pytest.approx(loop_welch(scores, candidate, ids))
    assert (result.candidate_groups, result.control_groups) == (12, 17)


def test_groups_of_one_change_nothing() -> None:
    scores, candidate, _ = grouped(4, (30, 25))
    alone = part_as_json(dataset_test(scores, candidate, seed=1, permutations=999))
    order = np.random.default_rng(0).permutation(len(scores))
    with_groups = part_as_json(dataset_test(scores, candidate, seed=1, groups=order, permutations=999))
    groups = with_groups.pop("candidate_groups"), with_groups.pop("control_groups")
    assert groups == (alone["candidates"], alone["controls"])
    assert with_groups.pop("permutation_p") == pytest.approx(alone.pop("permutation_p"), abs=0.06)
    for name, part in with_groups.items():
        assert part == (pytest.approx(alone[name]) if isinstance(part, float) else part)


@pytest.mark.parametrize(("n", "m"), [(4, 6), (6, 4)])
@pytest.mark.parametrize("kind", ["continuous", "tied", "groups"])
def test_relabelling_equals_all_relabellings(n: int, m: int, kind: str) -> None:
    scores, candidate, ids = grouped(n + 4, (n, m), sizes=3)  # the group sizes differ
    scores = scores + 0.7 * candidate
    if kind != "groups":
        scores, candidate, ids = (np.round(scores) if kind == "tied" else scores)[: n + m], np.arange(n + m) < n, None
    exact = loop_permutation_p(scores, candidate, np.arange(n + m) if ids is None else ids)
    drawn = dataset_test(scores, candidate, seed=0, groups=ids, permutations=20_000)
    assert drawn.permutation_p == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 20_000) + 1e-4)


def test_relabelling_counts_the_data_where_the_sides_hardly_vary() -> None:
    result = dataset_test(np.array([1, 1 + 1e-9, 1 - 1e-9, 0, 1e-9, -1e-9]), np.arange(6) < 3, seed=0)
    assert result.permutation_p == pytest.approx(1 / 20, abs=0.01)  # 20 relabellings, the data is one


def test_where_no_relabelling_reaches_the_data_p_is_not_zero() -> None:
    scores, candidate, _ = grouped(0, (60, 60))
    assert dataset_test(scores + 5 * candidate, candidate, seed=0, permutations=99).permutation_p == 1 / 100


def test_the_wrong_direction_is_told_and_is_no_evidence() -> None:
    scores, candidate, _ = grouped(0, (60, 60))
    result = dataset_test(scores - 2 * candidate, candidate, seed=0)
    assert result.direction == "lower"
    assert result.reversed_p < 1e-6
    assert min(result.welch_p, result.permutation_p or 0) > 0.99
    assert result.effect is not None and result.effect.high < 0
    assert part_as_json(result)["needed"] == {}
    assert dataset_test(scores + 2 * candidate, candidate, seed=0).direction == "higher"


def loop_hedges(scores: np.ndarray, candidate: np.ndarray, units: int) -> float:
    inside, outside = scores[candidate], scores[~candidate]
    squares = ((inside - inside.mean()) ** 2).sum() + ((outside - outside.mean()) ** 2).sum()
    gap = inside.mean() - outside.mean()
    return float(gap / math.sqrt(squares / (len(scores) - 2)) * (1 - 3 / (4 * (units - 2) - 1)))


def test_effect_and_its_error_equal_the_loop_that_leaves_groups_out() -> None:
    scores, candidate, ids = grouped(1, (9, 14))
    scores = scores + candidate
    effect = dataset_test(scores, candidate, seed=0, groups=ids, permutations=9).effect
    parts = []
    for side in (candidate, ~candidate):
        left = np.array([loop_hedges(scores[ids != out], candidate[ids != out], 10**9) for out in np.unique(ids[side])])
        parts.append((len(left) - 1) / len(left) * ((left - left.mean()) ** 2).sum())
    df = sum(parts) ** 2 / (parts[0] ** 2 / 8 + parts[1] ** 2 / 13)
    assert effect.value == pytest.approx(loop_hedges(scores, candidate, 23))
    assert effect.high - effect.value == pytest.approx(stats.t.ppf(0.975, df) * math.sqrt(sum(parts)))
    assert effect.value - effect.low == pytest.approx(effect.high - effect.value)


@pytest.mark.parametrize(("gap", "spread", "ratio"), [(0.4, 1.0, 1), (0.5, 2.0, 3), (3.0, 1.0, 1)])
def test_needed_candidates_reach_the_power(gap: float, spread: float, ratio: int) -> None:
    generator = np.random.default_rng(11)
    candidate = np.arange(40_000 * (1 + ratio)) < 40_000
    noise = np.where(candidate, spread, 1) * generator.standard_normal(len(candidate))
    noise -= np.where(candidate, noise[candidate].mean(), noise[~candidate].mean())  # so that the effect is the planted
    needed = dataset_test(gap * candidate + noise, candidate, seed=0, permutations=1).needed
    assert needed is not None and needed.value is not None
    n = needed.value
    inside = gap + spread * generator.standard_normal((4000, n))
    outside = generator.standard_normal((4000, n * ratio))
    referee = stats.ttest_ind(inside, outside, axis=1, equal_var=False, alternative="greater").pvalue
    reached = (referee < 0.01).mean()
    assert 0.75 <= reached <= (0.85 if n > 10 else 0.95)  # few samples: one more is a large step
    if n > 10:
        fewer = n * 3 // 4
        referee = stats.ttest_ind(
            inside[:, :fewer], outside[:, : fewer * ratio], axis=1, equal_var=False, alternative="greater"
        ).pvalue
        assert (referee < 0.01).mean() < 0.75


def test_needed_groups_reach_the_power() -> None:
    generator = np.random.default_rng(2)
    ids = np.repeat(np.arange(8000), 4)
    base = generator.standard_normal(8000)[ids] + 0.5 * generator.standard_normal(len(ids))
    base -= np.where(ids < 4000, base[ids < 4000].mean(), base[ids >= 4000].mean())  # so that the effect is the planted
    needed = dataset_test(base + 0.5 * (ids < 4000), ids < 4000, seed=0, groups=ids, permutations=1).needed
    assert needed is not None and needed.value is not None
    n = needed.value
    means = generator.standard_normal((4000, 2 * n)) * math.sqrt(1 + 0.25 / 4)  # of equal groups: one number each
    drawn = stats.ttest_ind(means[:, :n] + 0.5, means[:, n:], axis=1, equal_var=False, alternative="greater").pvalue
    assert 0.75 <= (drawn < 0.01).mean() <= 0.85


def test_needed_follows_the_interval_of_the_effect() -> None:
    scores, candidate, _ = grouped(5, (100, 100), sizes=1)
    sure = dataset_test(scores + 1.5 * candidate, candidate, seed=0, permutations=1).needed
    assert sure is not None and sure.value is not None and sure.low is not None and sure.high is not None
    assert sure.low < sure.value < sure.high
    centred = scores - np.where(candidate, scores[candidate].mean(), scores[~candidate].mean())
    unsure = part_as_json(dataset_test(centred + 0.01 * candidate, candidate, seed=0, permutations=1))["needed"]
    assert set(unsure) == {"value", "low"} and unsure["value"] > 10_000
    assert set(part_as_json(dataset_test(centred - 0.01 * candidate, candidate, seed=0, permutations=1))["needed"]) == {
        "low"
    }


@settings(max_examples=30)
@given(st.integers(0, 1000), st.floats(1e-6, 1e6), st.floats(-5, 5))
def test_unit_and_origin_of_the_scores_do_not_matter(seed: int, unit: float, origin: float) -> None:
    scores, candidate, ids = grouped(seed, (6, 8))
    first = part_as_json(dataset_test(scores, candidate, seed=seed, groups=ids, permutations=99))
    other = part_as_json(dataset_test((scores + origin) * unit, candidate, seed=seed, groups=ids, permutations=99))
    assert other["permutation_p"] == first["permutation_p"]
    assert other["needed"].keys() == first["needed"].keys()
    for name in ("statistic", "df", "welch_p"):
        assert other[name] == pytest.approx(first[name], rel=1e-6)
    assert other["effect"]["ci95"] == pytest.approx(first["effect"]["ci95"], rel=1e-6)


def test_the_seed_decides() -> None:
    scores, candidate, _ = grouped(0, (50, 50))
    first = dataset_test(scores, candidate, seed=3, permutations=999)
    assert first == dataset_test(scores, candidate, seed=3, permutations=999)
    assert first.permutation_p != dataset_test(scores, candidate, seed=4, permutations=999).permutation_p


def test_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, candidate, _ = grouped(0, (50, 50), sizes=1)
    monkeypatch.setattr(dataset, "_WORK", 100 * 1500)
    assert dataset_test(scores, candidate, seed=0).permutations == 1500
    assert dataset_test(scores, candidate, seed=0, permutations=200).permutations == 200
    monkeypatch.setattr(dataset, "_WORK", 1)
    assert dataset_test(scores, candidate, seed=0).permutations == 999
    monkeypatch.setattr(dataset, "MOST_RELABELLED", 99)
    entry = part_as_json(dataset_test(scores, candidate, seed=0))
    assert not {"permutation_p", "permutations", "candidate_groups", "control_groups"} & set(entry)
    assert entry["effect"]["n"] == 100


def test_memory_is_bounded() -> None:
    scores, candidate = np.random.default_rng(0).standard_normal(100_000), np.arange(100_000) < 50_000
    tracemalloc.start()
    dataset_test(scores, candidate, seed=0, permutations=45)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80 * 2**20  # all 45 at once would take 100


def test_a_single_score_that_differs_leaves_the_effect_out() -> None:
    scores = np.zeros(40)
    scores[3] = 1
    result = dataset_test(scores, np.arange(40) < 20, seed=0)
    assert result.permutation_p == pytest.approx(0.5, abs=0.02)
    assert not {"effect", "needed"} & set(part_as_json(result))


def test_bad_input() -> None:
    scores, candidate = np.arange(10.0), np.arange(10) < 5
    refused(ShapeError, "candidate has shape", dataset_test, scores, candidate[:-1], seed=0)
    refused(ConfigError, "allowed: bool", dataset_test, scores, candidate.astype(int), seed=0)
    refused(NumericError, "row 3", dataset_test, np.where(np.arange(10) == 3, np.nan, scores), candidate, seed=0)
    refused(ShapeError, "got 0 and 10", dataset_test, scores, candidate & False, seed=0)
    with pytest.raises(ShapeError, match="2 samples on each side, got 1 of the controls"):
        dataset_test(scores, np.arange(10) < 9, seed=0)
    with pytest.raises(ShapeError, match="2 groups on each side, got 1 of the candidates"):
        dataset_test(scores, candidate, seed=0, groups=np.array([0] * 5 + [1, 2, 3, 4, 5]))
    with pytest.raises(ShapeError, match="group 41 holds candidates and controls"):
        dataset_test(scores, candidate, seed=0, groups=np.array([7, 7, 8, 8, 41, 41, 9, 9, 10, 10]))
    refused(ShapeError, "groups has shape", dataset_test, scores, candidate, seed=0, groups=np.arange(9))
    refused(ConfigError, "allowed: integers", dataset_test, scores, candidate, seed=0, groups=scores)
    refused(ConfigError, "permutations = 0", dataset_test, scores, candidate, seed=0, permutations=0)
    for constant in (np.full(10, 0.1), np.where(candidate, 0.7, 0.1), np.zeros(10)):
        refused(NumericError, "t is undefined", dataset_test, constant, candidate, seed=0)
