"""Memorisation against loops from its definition and formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t as student

from mi_core.attacks.memorisation import memorisation, moderated, pairs_of
from mi_core.checks import NumericError, ShapeError
from tests.raising import refused


def halves(pairs: int, images: int, generator: np.random.Generator) -> np.ndarray:
    """(2 P, N) which shadow saw which image."""
    found = [generator.permutation(images) % 2 == 0 for _ in range(pairs)]
    return np.array([side for half in found for side in (half, ~half)])


def test_values_by_a_loop_over_images_and_shadows() -> None:
    """Out-mean of the distances less in-mean, after each encoder's own level; the interval is that of paired draws."""
    generator = np.random.default_rng(0)
    inside = halves(3, 8, generator)
    distance = generator.uniform(0, 1, (6, 8))
    found = memorisation(-distance, inside)
    level = [[distance[k][x] - sum(distance[k]) / 8 for x in range(8)] for k in range(6)]
    every = []
    for x in range(8):
        out = [level[k][x] for k in range(6) if not inside[k][x]]
        saw = [level[k][x] for k in range(6) if inside[k][x]]
        assert found.value[x] == pytest.approx(sum(out) / 3 - sum(saw) / 3)
        draws = []
        for pair in range(3):
            first, second = level[2 * pair][x], level[2 * pair + 1][x]
            draws.append(second - first if inside[2 * pair][x] else first - second)
        every.append(draws)
    variance, degrees = moderated(np.array([np.var(draws, ddof=1) for draws in every]), 2)
    for x, draws in enumerate(every):
        margin = student.ppf(0.975, degrees) * math.sqrt(variance[x] / 3)
        assert (found.low[x], found.high[x]) == pytest.approx((np.mean(draws) - margin, np.mean(draws) + margin), 1e-4)
        assert found.p_value[x] == pytest.approx(student.sf(np.mean(draws) / math.sqrt(variance[x] / 3), degrees), 1e-4)
    means = [np.mean([draws[pair] for draws in every]) for pair in range(3)]
    margin = student.ppf(0.975, 2) * np.std(means, ddof=1) / math.sqrt(3)
    assert (found.mean.value, found.mean.low) == pytest.approx((np.mean(means), np.mean(means) - margin))
    assert (found.mean.high, found.mean.n, found.pairs) == (pytest.approx(np.mean(means) + margin), 8, 3)


def test_the_order_of_shadows_does_not_matter_and_one_without_a_counterpart_is_left_out() -> None:
    generator = np.random.default_rng(1)
    inside = halves(4, 10, generator)
    alignment = generator.normal(0, 1, (8, 10))
    found = memorisation(alignment, inside)
    order = generator.permutation(8)
    np.testing.assert_allclose(memorisation(alignment[order], inside[order]).value, found.value)
    assert pairs_of(inside[[0, 2, 4, 1, 5]]) == [(0, 3), (2, 4)]
    alone = np.vstack([inside, halves(1, 10, generator)[:1]])
    np.testing.assert_array_equal(memorisation(np.vstack([alignment, alignment[:1]]), alone).high, found.high)


def test_moderated_variances_by_the_formulas_of_the_paper() -> None:
    """Section 6.2: digamma and trigamma by their series, and d0 by bisection."""

    def polygamma(order: int, x: float) -> float:
        terms = np.arange(20_000)
        if order:
            return float(np.sum(1 / (x + terms) ** 2) + 1 / (x + len(terms)))
        return float(math.log(x + len(terms)) - np.sum(1 / (x + terms)) - 0.5 / (x + len(terms)))

    generator = np.random.default_rng(2)
    d = 3
    variances = 2.0 / generator.chisquare(6, 50) * generator.chisquare(d, 50) / d
    e = [math.log(one) - polygamma(0, d / 2) + math.log(d / 2) for one in variances]
    wanted = np.var(e, ddof=1) - polygamma(1, d / 2)
    low, high = 0.01, 1000.0
    for _ in range(45):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if polygamma(1, middle) > wanted else (low, middle)
    d0 = 2 * low
    prior = math.exp(np.mean(e) + polygamma(0, d0 / 2) - math.log(d0 / 2))
    found, degrees = moderated(variances, d)
    assert degrees == pytest.approx(d0 + d, rel=1e-4)
    np.testing.assert_allclose(found, [(d0 * prior + d * one) / (d0 + d) for one in variances], rtol=1e-4)


def test_variances_that_differ_by_chance_alone_become_one() -> None:
    found, degrees = moderated(np.random.default_rng(3).chisquare(3, 4000) / 3, 3)
    assert degrees > 100
    assert found.min() > 0.85 and found.max() < 1.15


def test_what_it_refuses_and_what_is_constant() -> None:
    inside = halves(2, 6, np.random.default_rng(7))
    refused(ShapeError, "inside", memorisation, np.zeros((4, 6)), inside[:, :5])
    refused(NumericError, "memorisation needs 2 pairs of shadows .* got 1", memorisation, np.zeros((2, 6)), inside[:2])
    refused(NumericError, "alignment", memorisation, np.full((4, 6), np.nan), inside)
    flat = memorisation(np.full((4, 6), 0.3), inside)
    np.testing.assert_allclose((flat.value, flat.low, flat.high), 0, atol=1e-9)
    np.testing.assert_allclose(flat.p_value, 0.5)
