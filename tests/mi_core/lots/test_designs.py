"""p-values and e-values of lots, against every possible draw."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import combine_pvalues, wilcoxon

from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.lots.designs import (
    aligned,
    any_time_p_value,
    chosen_bets,
    chosen_p_value,
    held_back_bets,
    held_back_p_value,
    joined_p_value,
    normal_scores,
    wealth,
)
from tests.raising import refused

STRATA = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 2])


def all_draws() -> list[np.ndarray]:
    """Every way to hold back 1 of 4, 2 of 5 and none of 1."""
    drawn = []
    for first, second in product(combinations(range(4), 1), combinations(range(4, 9), 2)):
        held = np.zeros(10, dtype=bool)
        held[[*first, *second]] = True
        drawn.append(held)
    return drawn


def test_the_p_value_is_that_of_all_draws() -> None:
    scores = np.random.default_rng(1).standard_normal(10) + STRATA
    normal = normal_scores(aligned(scores, STRATA))
    draws = all_draws()
    sums = np.array([normal[held].sum() for held in draws])
    for held in draws[::7]:
        exact = (sums <= normal[held].sum() + 1e-9).mean()
        assert held_back_p_value(scores, held, STRATA, seed=0) == pytest.approx(exact, abs=0.006)


def test_the_wealth_is_worth_one_on_average_over_all_draws_after_every_bet() -> None:
    rng = np.random.default_rng(3)
    order, waves = rng.permutation(10), np.array([0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    scores = np.round(rng.standard_normal(10), 1)
    paths = [
        np.cumsum(held_back_bets(scores[order], held[order], STRATA[order], waves, (4, 5, 1), (1, 2, 0)), axis=0)
        for held in all_draws()
    ]
    np.testing.assert_allclose(np.exp(paths).mean(axis=0), 1, rtol=1e-10)
    assert np.std(np.exp(paths), axis=0).max() > 0.1  # they are bets


def test_the_wealth_of_units_that_were_not_all_asked_is_worth_one_too() -> None:
    scores = np.random.default_rng(4).standard_normal(10)
    rows = np.array([0, 5, 6, 2])
    paths = [
        np.cumsum(held_back_bets(scores[rows], held[rows], STRATA[rows], np.zeros(4, int), (4, 5, 1), (1, 2, 0)), 0)
        for held in all_draws()
    ]
    np.testing.assert_allclose(np.exp(paths).mean(axis=0), 1, rtol=1e-10)


CAPTIONS = np.array([[0.3, 0.1, 0.2], [0.5, 0.5, 0.1], [1.0, -2, 0], [0.2, 0.2, 0.2], [0.1, 0.9, 0.4]])
THROWS = np.array(list(product(range(3), repeat=len(CAPTIONS))))


def test_the_bets_on_captions_are_worth_one_on_average() -> None:
    waves = np.array([0, 0, 0, 1, 1])
    paths = [np.cumsum(chosen_bets(CAPTIONS, each, waves), axis=0) for each in THROWS]
    np.testing.assert_allclose(np.exp(paths).mean(axis=0), 1, rtol=1e-10)
    assert np.std(np.exp(paths), axis=0).max() > 0.1


def test_a_bet_does_not_know_the_scores_of_later_waves() -> None:
    scores = np.random.default_rng(5).standard_normal(40)
    held, strata, waves = np.arange(40) % 4 == 0, np.zeros(40, int), np.repeat([0, 1], 20)
    changed = scores.copy()
    changed[20:] = 7
    first, second = (held_back_bets(one, held, strata, waves, (40,), (10,)) for one in (scores, changed))
    assert (first[:20] == second[:20]).all() and (first[20:] != second[20:]).any()


def test_captions_are_tested_against_all_throws_of_the_dice() -> None:
    others = (CAPTIONS.sum(axis=1, keepdims=True) - CAPTIONS) / 2
    normal = normal_scores((CAPTIONS - others).ravel()).reshape(CAPTIONS.shape)
    sums = normal[np.arange(len(CAPTIONS)), THROWS].sum(axis=1)
    for chosen, own in list(zip(THROWS, sums, strict=True))[::40]:
        exact = (sums >= own - 1e-9).mean()
        assert chosen_p_value(CAPTIONS, chosen, seed=0) == pytest.approx(exact, abs=0.006)


def test_two_captions_are_tested_like_signed_ranks() -> None:
    pairs = np.random.default_rng(6).normal([0.4, 0], size=(60, 2))
    found = chosen_p_value(pairs, np.zeros(60, int), seed=0)
    assert found == pytest.approx(wilcoxon(pairs[:, 0] - pairs[:, 1], alternative="greater").pvalue, rel=0.5)


def test_what_was_used_is_found_and_the_opposite_is_not() -> None:
    rng = np.random.default_rng(7)
    held = np.arange(300) % 5 == 0
    scores, strata = rng.standard_normal(300) + 1.0 * ~held, np.arange(300) % 3
    sizes, back = np.bincount(strata), np.bincount(strata[held])
    assert held_back_p_value(scores, held, strata, seed=0) <= 2e-5
    assert held_back_p_value(-scores, held, strata, seed=0) > 0.99
    up, down = (
        any_time_p_value(wealth(held_back_bets(one, held, strata, np.arange(300) // 50, sizes, back)))
        for one in (scores, -scores)
    )
    assert up < 1e-6 and down > 0.3
    captions, first = rng.normal([0.5, 0, 0, 0, 0, 0], size=(300, 6)), np.zeros(300, int)
    assert chosen_p_value(captions, first, seed=0) <= 2e-5 < 0.99 < chosen_p_value(-captions, first, seed=0)
    assert any_time_p_value(wealth(chosen_bets(captions, first, first))) < 1e-6


def test_alignment_leaves_strata_alone_that_differ_by_chance() -> None:
    strata, values = np.repeat(np.arange(50), 2), np.random.default_rng(9).standard_normal(100)
    kept = np.corrcoef(values, aligned(values, strata))[0, 1]
    removed = aligned(values + 9 * strata, strata)
    assert kept > 0.95
    assert abs(np.corrcoef(removed, strata)[0, 1]) < 0.1


def test_fishers_method_is_that_of_scipy() -> None:
    some = [0.03, 0.4, 0.002]
    assert joined_p_value(some) == pytest.approx(combine_pvalues(some).pvalue)
    refused(ConfigError, "no p-value", joined_p_value, [])
    refused(ConfigError, r"p-value = 0\.0", joined_p_value, [0.0, 0.5])


def test_nothing_drawn_shows_nothing() -> None:
    nothing = np.zeros(4, dtype=bool)
    assert held_back_p_value(np.arange(4.0), nothing, np.zeros(4, int), seed=0) == 1
    assert held_back_p_value(np.ones(8), np.arange(8) < 4, np.zeros(8, int), seed=0) == 1
    assert chosen_p_value(np.arange(5.0)[:, None] * np.ones(6), np.zeros(5, int), seed=0) == 1
    assert any_time_p_value(np.array([])) == 1


def test_wrong_arrays_are_refused() -> None:
    scores, held, strata = np.arange(4.0), np.array([True, False, False, False]), np.zeros(4, int)
    with pytest.raises(ShapeError):
        held_back_p_value(scores, held[:3], strata, seed=0)
    with pytest.raises(NumericError):
        held_back_p_value(np.array([0, np.nan, 0, 0]), held, strata, seed=0)
    with pytest.raises(ConfigError, match="not boolean"):
        held_back_p_value(scores, held.astype(int), strata, seed=0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="waves do not ascend"):
        held_back_bets(scores, held, strata, np.array([1, 0, 0, 0]), (4,), (1,))
    refused(ConfigError, "fewer units", held_back_bets, scores, held, strata, strata, (3,), (1,))
    refused(ConfigError, "fewer units", held_back_bets, scores, held, strata, strata, (9,), (0,))
