"""Epsilon against the best attack, the calibrations against each other, gamma against a plain search."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from scipy import stats
from scipy.optimize import brentq, minimize_scalar

from mi_core.checks import ConfigError
from mi_core.defenses.convex_head import sensitivity_bound
from mi_core.defenses.privacy import (
    NORMS,
    _delta,
    calibrated,
    guarantee,
    pairs_for_gamma,
    random_dp_gamma,
    rescaled_epsilon,
    standard_deviation,
    utility_loss,
)
from tests.raising import refused


def highest_tpr(epsilon: float, delta: float, fpr: float) -> float:
    """The largest true-positive rate that (epsilon, delta) allows a membership attack at a false-positive rate.

    min(e^epsilon FPR + delta, 1 - e^-epsilon (1 - delta - FPR), 1): the definition, for what the attack calls members
    and for what it does not (Kairouz, Oh, Viswanath, "The composition theorem for differential privacy", ICML 2015,
    theorem 2.1).
    """
    return min(math.exp(epsilon) * fpr + delta, 1 - math.exp(-epsilon) * (1 - delta - fpr), 1.0)


def slow_epsilon(scales: Sequence[float], distance: float, weights: int, delta: float) -> float:
    """Epsilon between N(a, s^2 I) and N(b, t^2 I), s unlike t: where one is likelier by e^epsilon is a ball.

    Its centre is (a / s^2 - b / t^2) / k with k = 1 / s^2 - 1 / t^2, so its masses are noncentral chi-squared.
    """

    def larger(s: float, t: float, epsilon: float) -> float:
        k = 1 / s**2 - 1 / t**2
        radius = (weights * math.log(t / s) + distance**2 / (2 * s**2 * t**2 * k) - epsilon) / (k / 2)
        mass = stats.ncx2.cdf if k > 0 else stats.ncx2.sf
        first = mass(radius / s**2, weights, (distance / (t**2 * k) / s) ** 2)
        return float(first - math.exp(epsilon) * mass(radius / t**2, weights, (distance / (s**2 * k) / t) ** 2))

    first, second = scales
    both = ((first, second), (second, first))
    return max(float(brentq(lambda epsilon, s=s, t=t: larger(s, t, epsilon) - delta, 0, 20)) for s, t in both)


DENSITIES = {"logistic": stats.logistic, "laplace": stats.laplace, "gaussian": stats.norm}


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 0.9, 3.0, 30.0, 1000.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_the_analytic_rule_is_exact_and_its_own_inverse(epsilon: float, delta: float) -> None:
    found = calibrated("gaussian", epsilon, 0.3, delta=delta)
    assert (found.epsilon, found.delta) == (epsilon, delta)
    assert _delta(0.3 / found.scale, epsilon) <= delta * (1 + 1e-9)
    assert _delta(0.3 / (found.scale * 0.999), epsilon) > delta
    assert guarantee("gaussian", found.scale, 0.3, delta=delta).epsilon == pytest.approx(epsilon, rel=1e-7)


def test_the_analytic_rule_needs_less_noise_than_the_classic_one() -> None:
    for epsilon in (0.1, 0.5, 0.99):
        classic, analytic = (
            calibrated("gaussian", epsilon, 2.0, delta=1e-5, rule=rule) for rule in ("classic", "analytic")
        )
        assert classic.scale**2 == pytest.approx(2 * math.log(1.25 / 1e-5) * 2.0**2 / epsilon**2)
        assert guarantee("gaussian", classic.scale, 2.0, delta=1e-5, rule="classic").epsilon == pytest.approx(epsilon)
        assert 0.5 * classic.scale < analytic.scale < classic.scale


def test_where_a_little_noise_is_none_and_much_noise_is_enough() -> None:
    for mechanism in NORMS:
        assert guarantee(mechanism, 0.0, 1.0).epsilon == math.inf
        assert guarantee(mechanism, 1e200, 1e-200).epsilon < 1e-300
    assert guarantee("gaussian", 1e6, 1.0, delta=1e-5).epsilon == 0.0  # delta alone covers it
    assert guarantee("gaussian", 1e-200, 1e200).epsilon == math.inf
    assert guarantee("gaussian", 1e-6, 1.0).epsilon == pytest.approx(5e11, rel=1e-4)  # half the squared ratio


def test_the_classic_rule_is_refused_where_it_is_not_proved() -> None:
    with pytest.raises(ConfigError, match="epsilon = 1, but the classic Gaussian rule is proved below 1 only"):
        calibrated("gaussian", 1.0, 1.0, rule="classic")
    refused(ConfigError, r"epsilon = 4\.845, but the classic", guarantee, "gaussian", 1.0, 1.0, rule="classic")
    sigma = math.sqrt(2 * math.log(1.25 / 1e-5)) / 10
    assert _delta(1 / sigma, 10.0) > 2e-5  # and rightly so: twice the delta that the rule would promise


def test_deviations_are_those_of_the_distributions_and_differ_at_equal_epsilon() -> None:
    for mechanism, distribution in DENSITIES.items():
        assert standard_deviation(mechanism, 0.3) == pytest.approx(distribution(scale=0.3).std())
    logistic, laplace = (
        standard_deviation(mechanism, calibrated(mechanism, 0.7, 0.01).scale) for mechanism in ("logistic", "laplace")
    )
    assert logistic**2 / laplace**2 == pytest.approx(1.6449, abs=1e-4)


@pytest.mark.parametrize("mechanism", ["logistic", "laplace", "gaussian"])
def test_the_best_attack_on_the_mechanism_stays_below_the_bound_and_comes_close(mechanism: str) -> None:
    """The likelihood ratio test of z against z + sensitivity, whose rates are known: thresholds are the quantiles."""
    noise, sensitivity = DENSITIES[mechanism](scale=1.0), 0.8
    bounds = [guarantee(mechanism, 1.0, sensitivity, delta=delta) for delta in (1e-5, 1e-3, 0.05)]
    for fpr in (1e-4, 0.01, 0.1, 0.3, 0.5, 0.9):
        tpr = noise.sf(noise.isf(fpr) - sensitivity)  # these ratios rise with z: no test is more powerful
        allowed = [highest_tpr(bound.epsilon, bound.delta, fpr) for bound in bounds]
        assert all(tpr <= limit + 1e-12 for limit in allowed)
    near = highest_tpr(bounds[0].epsilon, bounds[0].delta, 1e-4)
    if mechanism == "laplace":
        assert noise.sf(noise.isf(1e-4) - sensitivity) == pytest.approx(near, rel=1e-9)
    half = highest_tpr(bounds[0].epsilon, 0.0, 0.9)
    assert half == pytest.approx(
        1 - math.exp(-bounds[0].epsilon) * 0.1
    )  # the second side of the definition binds there


GAMMAS = {250: 0.106, 500: 0.077, 1000: 0.056, 5000: 0.027, 20000: 0.014}
PAIRS = {0.1: 285, 0.05: 1305, 0.02: 9498, 0.01: 41971}


@pytest.mark.parametrize(("pairs", "gamma"), GAMMAS.items())
def test_gamma_of_pairs_is_the_table_and_the_minimum_of_a_search(pairs: int, gamma: float) -> None:
    assert round(random_dp_gamma(pairs), 3) == gamma
    search = minimize_scalar(
        lambda log: math.exp(log) + math.sqrt(-log / (2 * pairs)), bounds=(-30, -1), method="bounded"
    )
    assert random_dp_gamma(pairs) == pytest.approx(search.fun, rel=1e-6)


@pytest.mark.parametrize(("gamma", "pairs"), PAIRS.items())
def test_pairs_for_gamma_are_the_table_and_no_fewer_do(gamma: float, pairs: int) -> None:
    assert pairs_for_gamma(gamma) == pairs
    assert random_dp_gamma(pairs) <= gamma < random_dp_gamma(pairs - 1)


def test_utility_loss_and_what_it_refuses() -> None:
    assert utility_loss(0.9, 0.9) == 0.0
    assert utility_loss(0.0, 0.9) == 1.0
    assert utility_loss(0.99, 0.9) == pytest.approx(-0.1)
    refused(ConfigError, r"utility without noise = 0\.0", utility_loss, 0.5, 0.0)
    refused(ConfigError, "utility with noise = nan", utility_loss, math.nan, 0.5)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_what_cannot_be_is_named(bad: float) -> None:
    refused(ConfigError, "sensitivity = ", guarantee, "logistic", 1.0, bad)
    refused(ConfigError, "epsilon = ", calibrated, "laplace", bad, 1.0)
    refused(ConfigError, "delta = ", guarantee, "gaussian", 1.0, 1.0, delta=bad)
    refused(ConfigError, "gamma = ", pairs_for_gamma, bad)


def test_names_that_do_not_exist() -> None:
    refused(ConfigError, "mechanism = 'cauchy', allowed: gaussian, laplace, logistic", guarantee, "cauchy", 1.0, 1.0)
    refused(ConfigError, "mechanism = 'cauchy'", standard_deviation, "cauchy", 1.0)
    refused(ConfigError, "rule = 'exact', allowed: analytic, classic", calibrated, "gaussian", 1.0, 1.0, rule="exact")
    refused(ConfigError, "pairs = 0", random_dp_gamma, 0)


@pytest.mark.parametrize(("images", "weights"), [(20, 1), (100, 2), (250, 1280), (1000, 640)])
def test_noise_of_two_scales_is_told_apart_by_balls(images: int, weights: int) -> None:
    scales = (1 / images, 1 / (images - 1))
    expected = slow_epsilon(scales, 0.3 / images, weights, 1e-5)
    assert rescaled_epsilon(scales, 0.3 / images, weights) == pytest.approx(expected, rel=1e-6)
    assert rescaled_epsilon(scales[::-1], 0.3 / images, weights) == pytest.approx(expected, rel=1e-6)


def test_noise_of_one_scale_is_that_of_the_analytic_rule() -> None:
    plain = guarantee("gaussian", 2.0, 0.5).epsilon
    assert rescaled_epsilon((2.0, 2.0), 0.5, 50) == pytest.approx(plain)
    assert rescaled_epsilon((2.0, 2.0 * (1 + 1e-8)), 0.5, 50) == pytest.approx(plain, rel=1e-5)


def test_the_epsilon_of_a_replaced_image_is_too_small_for_one_that_is_missing() -> None:
    """250 images, ten classes of 128 weights: the promise of epsilon 1 is one of 1.34."""
    found = []
    for images in (250, 1000, 10**6):
        distances = [sensitivity_bound(1e-4, count) for count in (images, images - 1)]
        scales = [calibrated("gaussian", 1.0, distance).scale for distance in distances]
        found.append(rescaled_epsilon((scales[0], scales[1]), distances[0], 1280))
    assert found == pytest.approx([1.338, 1.034, 1.000], abs=5e-4)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (((0.0, 1.0), 1.0, 5), "scale = 0"),
        (((1.0, math.inf), 1.0, 5), "scale = inf"),
        (((1.0, 2.0), 0.0, 5), "sensitivity = 0"),
        (((1.0, 2.0), 1.0, 0), "weights = 0"),
    ],
)
def test_impossible_noise_of_two_scales_is_refused(
    arguments: tuple[tuple[float, float], float, int], expected: str
) -> None:
    refused(ConfigError, expected, rescaled_epsilon, *arguments)
    refused(ConfigError, "delta = 1", rescaled_epsilon, (1.0, 2.0), 1.0, 5, delta=1.0)
