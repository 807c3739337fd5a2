"""The bounds of one run: against linear programs, printed values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import norm

from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.validity.one_run import (
    Guesses,
    any_time_p_value,
    best_bound,
    corrected_p_value,
    epsilon_bound,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_p_value,
    grid_of,
    guess,
    log_wealth,
    mu_bound,
    p_value,
    tradeoff_p_value,
)
from tests.raising import refused

Coins = tuple[int, ...]
Answer = tuple[int | None, ...]


def worst_mechanism(
    m: int, epsilon: float, delta: float, outputs: Sequence[Answer], bad: Callable[[Coins, Answer], bool]
) -> float:
    """The largest chance of something bad, over every (epsilon, delta)-private mechanism with these outputs.

    A linear program: one unknown for the chance of each output on each way in which m fair coins fall, and one for what
    it exceeds e^epsilon times the chance after a coin was turned over by.
    """
    ways = list(product((0, 1), repeat=m))
    size, pairs = len(outputs), [(s, i) for s in ways for i in range(m)]
    at = {s: k * size for k, s in enumerate(ways)}
    chances = len(ways) * size
    rows = np.zeros((len(pairs) * (size + 1), chances + len(pairs) * size))
    for k, (s, i) in enumerate(pairs):
        other = at[(*s[:i], 1 - s[i], *s[i + 1 :])]
        for j in range(size):
            excess = chances + k * size + j
            rows[k * size + j, [at[s] + j, other + j, excess]] = 1, -math.exp(epsilon), -1
            rows[len(pairs) * size + k, excess] = 1
    limits = np.repeat([0.0, delta], [len(pairs) * size, len(pairs)])
    whole = np.zeros((len(ways), rows.shape[1]))
    wanted = np.zeros(rows.shape[1])
    for k, s in enumerate(ways):
        whole[k, k * size : (k + 1) * size] = 1
        wanted[k * size : (k + 1) * size] = [-float(bad(s, output)) / len(ways) for output in outputs]
    solved = linprog(wanted, rows, limits, whole, np.ones(len(ways)), method="highs")
    assert solved.success
    return float(-solved.fun)


@pytest.mark.parametrize(("m", "r", "v"), [(1, 1, 1), (2, 1, 1), (3, 2, 2), (3, 2, 1), (3, 3, 2), (4, 3, 3)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.1), (0.7, 0.0), (0.7, 0.02), (2.0, 0.1)])
def test_no_mechanism_is_right_more_often_than_the_p_value_and_one_is_as_often(
    m: int, r: int, v: int, epsilon: float, delta: float
) -> None:
    """Every mechanism that guesses r of m coins, whatever it lets depend on what; None: not guessed."""
    outputs = [one for one in product((0, 1, None), repeat=m) if sum(guessed is not None for guessed in one) == r]

    def bad(coins: Coins, answer: Answer) -> bool:
        return sum(guessed == coin for guessed, coin in zip(answer, coins, strict=True)) >= v

    found = worst_mechanism(m, epsilon, delta, outputs, bad)
    assert p_value(Guesses(m, r, v), epsilon, delta) == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize(
    ("found", "delta", "printed", "exact"),
    [(Guesses(1000, 100, 75), 1e-4, 0.673, 0.695), (Guesses(100_000, 1510, 1439), 1e-5, 2.675, 2.803)],
)
def test_bounds_are_above_those_that_the_paper_prints(
    found: Guesses, delta: float, printed: float, exact: float
) -> None:
    """Appendix D, and section 7 with figure 11; their corollary allows delta more than any mechanism makes of it."""
    assert epsilon_bound(found, delta) == pytest.approx(exact, abs=1e-3)
    assert exact > printed


@pytest.mark.parametrize("delta", [0.0, 1e-4])
def test_a_bound_is_where_the_p_value_reaches_the_level(delta: float) -> None:
    found = Guesses(300, 120, 100)
    bound = epsilon_bound(found, delta, 0.9)
    assert p_value(found, bound, delta) <= 0.1 < p_value(found, bound + 1e-6, delta)
    grid = [p_value(found, epsilon, delta) for epsilon in np.linspace(0, bound + 0.3, 200)]
    assert grid == sorted(grid)  # so that no larger epsilon is refuted
    assert epsilon_bound(found, 0.0, 0.9) > epsilon_bound(found, 1e-4, 0.9) > epsilon_bound(found, 1e-4, 0.99)


def test_chance_alone_and_no_guess_show_nothing() -> None:
    for found in (Guesses(100, 60, 30), Guesses(100, 0, 0)):
        assert epsilon_bound(found) == mu_bound(found) == 0
        assert best_bound([found], delta=1e-5, gaussian=True).epsilon == 0


def program(m: int, r: int, v: int, lines: list[tuple[float, float]]) -> float:
    """The largest P[v or more right], where 1 - f is the least of lines a + b x, as a linear program.

    p_i is the chance of i right guesses. For all i, the sum over j > i of j p_j / m is at most 1 - f of the sum over
    j >= i of (r - j) p_j / m.
    """
    rows, limits = [], []
    for i in range(r):
        right = np.array([j / m if j > i else 0.0 for j in range(r + 1)])
        wrong = np.array([(r - j) / m if j >= i else 0.0 for j in range(r + 1)])
        for a, b in lines:
            rows.append(right - b * wrong)
            limits.append(a)
    wanted = [-1.0 if j >= v else 0.0 for j in range(r + 1)]
    solved = linprog(wanted, rows, limits, np.ones((1, r + 1)), [1.0], method="highs")
    assert solved.success
    return float(-solved.fun)


@pytest.mark.parametrize(("m", "r", "v"), [(20, 20, 16), (20, 10, 9), (30, 12, 12), (15, 15, 8)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (1.0, 0.01), (2.0, 0.001)])
def test_the_recursion_solves_the_linear_program(m: int, r: int, v: int, epsilon: float, delta: float) -> None:
    """1 - f of (epsilon, delta): the least of delta + e^epsilon x and 1 - e^-epsilon (1 - delta - x)."""
    grows = math.exp(epsilon)

    def inverse(y: float) -> float:
        return max(0.0, (y - delta) / grows, 1 - delta - grows * (1 - y))

    lines = [(delta, grows), (1 - (1 - delta) / grows, 1 / grows)]
    assert tradeoff_p_value(Guesses(m, r, v), inverse) == pytest.approx(program(m, r, v, lines), rel=1e-6)


@pytest.mark.parametrize(("m", "r", "v", "mu"), [(20, 20, 17, 0.5), (20, 8, 8, 1.0), (16, 16, 12, 0.7)])
def test_the_gaussian_recursion_solves_its_program(m: int, r: int, v: int, mu: float) -> None:
    """1 - f(x) = Phi(Phi^-1(x) + mu), from above by its tangents."""
    lines = []
    for at in np.linspace(-9, 3, 600):
        x, y = norm.cdf(at), norm.cdf(at + mu)
        slope = norm.pdf(at + mu) / norm.pdf(at)
        lines.append((y - slope * x, slope))
    found = program(m, r, v, lines)
    assert gaussian_p_value(Guesses(m, r, v), mu) == pytest.approx(found, rel=2e-3)


def test_mu_and_epsilon_are_converted_both_ways() -> None:
    """Corollary 2.13 of Dong, Roth and Su, written out."""
    epsilon = gaussian_epsilon(0.8, 1e-5)
    found = norm.cdf(-epsilon / 0.8 + 0.4) - math.exp(epsilon) * norm.cdf(-epsilon / 0.8 - 0.4)
    assert found == pytest.approx(1e-5, rel=1e-6)
    assert gaussian_mu(epsilon, 1e-5) == pytest.approx(0.8, rel=1e-9)
    assert 2 * norm.cdf(gaussian_mu(0, 0.01) / 2) - 1 == pytest.approx(0.01, rel=1e-6)  # epsilon 0: delta is all


def test_the_best_of_several_bounds_is_corrected_by_bonferroni() -> None:
    several = [Guesses(200, 20, 18), Guesses(200, 60, 50), Guesses(200, 100, 80), Guesses(200, 200, 120)]
    each = [epsilon_bound(found, 0.0, 1 - 0.05 / 4) for found in several]
    assert best_bound(several).epsilon == pytest.approx(max(each), rel=1e-9)
    assert best_bound(several).guesses == several[int(np.argmax(each))]


def test_a_corrected_p_value_and_bound_agree() -> None:
    several = [Guesses(200, 20, 18), Guesses(200, 60, 50), Guesses(200, 200, 120)]
    for gaussian in (False, True):
        bound = best_bound(several, delta=1e-5, gaussian=gaussian)
        at = corrected_p_value(several, bound.epsilon, 1e-5, gaussian=gaussian)
        assert at == pytest.approx(0.05, rel=1e-3)
        alone = best_bound([bound.guesses], delta=1e-5, gaussian=gaussian)
        assert alone.epsilon > bound.epsilon


def test_guesses_are_the_highest_in_and_the_lowest_out() -> None:
    scores = np.array([0.1, 0.9, 0.5, 0.8, 0.2])
    inside = np.array([False, True, True, False, True])
    ties = np.arange(5)
    assert guess(scores, inside, 2, ties) == Guesses(5, 2, 2)
    assert guess(scores, inside, 3, ties) == Guesses(5, 3, 2)  # the odd one is called in: 0.9 and 0.8
    assert guess(scores, inside, 5, ties) == Guesses(5, 5, 3)
    assert guess(scores, inside, 0, ties) == Guesses(5, 0, 0)


def test_equal_scores_are_guessed_by_the_ties_alone() -> None:
    """Sorted by the coin, as stored samples may be, equal scores would be guessed right."""
    inside = np.arange(1000) < 500
    found = guess(np.zeros(1000), inside[::-1].copy(), 1000, np.random.default_rng(0).permutation(1000))
    assert 430 < found.correct < 570


def test_two_runs_add_up() -> None:
    assert Guesses(10, 4, 3) + Guesses(20, 6, 6) == Guesses(30, 10, 9)


def test_the_grid_is_even_and_distinct() -> None:
    assert grid_of(1000) == (100, 200, 500, 1000)
    assert grid_of(9) == (2, 4, 8)
    assert grid_of(3) == (2,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Guesses(0, 0, 0), "canaries = 0"),
        (lambda: Guesses(5, 6, 0), "guesses of 5 canaries = 6"),
        (lambda: Guesses(5, 3, 4), "correct of 3 guesses = 4"),
        (lambda: grid_of(1), "canaries = 1"),
        (lambda: p_value(Guesses(5, 3, 3), -1), "epsilon = -1"),
        (lambda: p_value(Guesses(5, 3, 3), 1, 2), "delta = 2"),
        (lambda: epsilon_bound(Guesses(5, 3, 3), 0, 1), "confidence = 1"),
        (lambda: mu_bound(Guesses(5, 3, 3), 0), "confidence = 0"),
        (lambda: gaussian_p_value(Guesses(5, 3, 3), -1), "mu = -1"),
        (lambda: gaussian_epsilon(-1, 0.1), "mu = -1"),
        (lambda: gaussian_epsilon(1, 0), "delta = 0"),
        (lambda: gaussian_mu(-1, 0.1), "epsilon = -1"),
        (lambda: best_bound([]), "no number of guesses"),
        (lambda: corrected_p_value([], 1.0), "no number of guesses"),
        (lambda: guess(np.zeros(2), np.ones(2, bool), 3, np.arange(2)), "guesses of 2 canaries = 3"),
    ],
)
def test_what_is_out_of_range_is_named(call: Callable[[], object], message: str) -> None:
    refused(ConfigError, message, call)


def test_arrays_that_cannot_be_guessed_from_are_named() -> None:
    refused(ShapeError, "inside", guess, np.zeros(3), np.ones(2, bool), 1, np.arange(3))
    refused(ShapeError, "ties", guess, np.zeros(3), np.ones(3, bool), 1, np.arange(2))
    refused(NumericError, "scores", guess, np.array([0.0, np.nan]), np.ones(2, bool), 1, np.arange(2))


def test_the_wealth_against_randomised_response_is_worth_one_at_most() -> None:
    """Over every way in which 8 coins may fall, given answers that tell each with the chance that epsilon allows."""
    epsilon, rng = 1.0, np.random.default_rng(0)
    scores, ties = rng.standard_normal(8), rng.permutation(8)
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    likely = scores > np.median(scores)
    mean = np.zeros(8)
    for coins in np.ndindex(*[2] * 8):
        inside = np.array(coins, dtype=bool)
        weight = np.where(inside == likely, right, 1 - right).prod()
        mean += weight * np.exp(log_wealth(scores, inside, ties, epsilon))
    np.testing.assert_allclose(mean, 1, rtol=1e-9)


def test_the_chance_of_a_delta_is_added() -> None:
    path = np.log(np.array([1.0, 50.0, 2.0]))
    assert any_time_p_value(path, 3, 0) == pytest.approx(0.02)
    assert any_time_p_value(path, 3, 0, 1e-3) == pytest.approx(0.023)
    assert any_time_p_value(np.array([-1.0]), 1, 0) == 1
    rich = np.array([40.0])  # so much wealth that some of it may be due to delta
    assert 0.1 / math.e / 40 < any_time_p_value(rich, 10_000, 1, 1e-5) < 0.1 / math.e / 28
    refused(ConfigError, "delta = 2", any_time_p_value, path, 3, 0, 2)
    refused(ConfigError, "epsilon = -1", any_time_p_value, path, 3, -1)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.05), (0.5, 0.02), (1.0, 0.1)])
@pytest.mark.parametrize("count", [0, 3, 6])
def test_no_mechanism_is_found_out_at_any_time_more_often_than_its_p_value(
    epsilon: float, delta: float, count: int
) -> None:
    """Every mechanism that scores 3 canaries by -2, -1, 1 and 2, with its p-value at one of the rarer outcomes."""
    outputs = list(product((-2, -1, 1, 2), repeat=3))

    @cache
    def value(coins: Coins, answer: Answer) -> float:
        scores, inside = np.array(answer, dtype=np.float64), np.array(coins, dtype=bool)
        return any_time_p_value(log_wealth(scores, inside, np.arange(3), epsilon), 3, epsilon, delta)

    values = sorted({value(s, output) for s in product((0, 1), repeat=3) for output in outputs})
    level = values[min(count, len(values) - 1)]
    found = worst_mechanism(3, epsilon, delta, outputs, lambda s, output: value(s, output) <= level)
    assert found <= level * (1 + 1e-9)
