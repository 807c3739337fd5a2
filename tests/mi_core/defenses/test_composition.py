"""Composition against closed forms: of optimal composition, of Gaussian noise, and of both together."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from mi_core.checks import ConfigError
from mi_core.defenses import DEFENSES
from mi_core.defenses.base import Defense, ProviderData, numbers
from mi_core.defenses.composition import Gaussian, Release, SampledGaussian, composed, release_of
from mi_core.defenses.privacy import guarantee, promised
from mi_core.defenses.sensitivity import ADJACENCIES
from tests.mi_core.defenses.classifiers import classifier, digits

DELTA = 1e-5
REPLACE, LEAVE = ADJACENCIES
GRID = 1e-4  # of dp-accounting's privacy losses


@pytest.fixture
def accounting() -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed: the extra dp has it")


def pure(epsilon: float, delta: float = 0.0, adjacencies: tuple[str, ...] = ADJACENCIES, **kinds: Any) -> Release:
    return Release(epsilon, delta, adjacencies, **kinds)


def gaussian(ratio: float, delta: float = DELTA, adjacencies: tuple[str, ...] = ADJACENCIES, **kinds: Any) -> Release:
    epsilon = guarantee("gaussian", 1.0, ratio, delta=delta).epsilon
    return Release(epsilon, delta, adjacencies, Gaussian(ratio), **kinds)


def trained(noise: float, rate: float, steps: int, epsilon: float) -> Release:
    return Release(epsilon, DELTA, (LEAVE,), SampledGaussian(noise, rate, steps))


def searched(delta_at: Callable[[float], float], delta: float, high: float) -> float:
    """The smallest epsilon at a delta, by bisection of a delta that falls with epsilon."""
    low = 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_at(middle) <= delta else (middle, high)
    return high


@pytest.mark.parametrize(("epsilon", "count"), [(0.5, 2), (0.1, 10), (1.0, 5), (0.037, 30)])
@pytest.mark.parametrize("delta", [0.0, 1e-4])
def test_optimal_composition_of_equal_releases(accounting: None, epsilon: float, count: int, delta: float) -> None:
    """Kairouz, Oh, Viswanath (2015), theorem 3.3, at each of its points."""
    compared = 0
    for i in range(1, count // 2 + 1):
        terms = (
            math.comb(count, l) * (math.exp((count - l) * epsilon) - math.exp((count - 2 * i + l) * epsilon))
            for l in range(i)  # noqa: E741 - the letters of the theorem
        )
        own = sum(terms) / (1 + math.exp(epsilon)) ** count
        total = 1 - (1 - delta) ** count * (1 - own)
        if total < count * delta:
            continue  # where the sum of the deltas is above the point
        compared, wanted = compared + 1, (count - 2 * i) * epsilon
        found = composed([pure(epsilon, delta)] * count, delta=total * (1 + 1e-9))
        assert wanted - 1e-6 <= found.epsilon <= wanted + 2 * count * GRID
        assert found.method == "numerical" and found.epsilon < found.basic == pytest.approx(count * epsilon)
    assert compared > 0


def test_optimal_composition_of_different_releases(accounting: None) -> None:
    """Murtagh and Vadhan (2016), theorem 1.5, as the sum over all outcomes of the worst mechanisms."""
    epsilons, delta = (0.1, 0.5, 1.2, 0.3), 0.01

    def delta_at(epsilon: float) -> float:
        whole = 0.0
        for signs in product((1, -1), repeat=len(epsilons)):
            loss = sum(sign * one for sign, one in zip(signs, epsilons, strict=True))
            chance = math.prod(1 / (1 + math.exp(-sign * one)) for sign, one in zip(signs, epsilons, strict=True))
            whole += chance * max(0.0, -math.expm1(epsilon - loss))
        return whole

    found = composed([pure(one) for one in epsilons], delta=delta).epsilon
    wanted = searched(delta_at, delta, sum(epsilons))
    assert wanted <= found <= wanted + 2 * len(epsilons) * GRID
    assert wanted < sum(epsilons) - 0.01


@pytest.mark.parametrize("ratios", [(0.3, 0.4), (1.0, 1.0, 1.0), (0.05, 2.0)])
@pytest.mark.parametrize("delta", [1e-6, 1e-2])
def test_gaussian_noise_adds_in_squares(without_accounting: None, ratios: tuple[float, ...], delta: float) -> None:
    found = composed([gaussian(ratio, delta) for ratio in ratios])
    ratio = math.sqrt(sum(one**2 for one in ratios))
    total = len(ratios) * delta
    assert found.epsilon == pytest.approx(guarantee("gaussian", 1.0, ratio, delta=total).epsilon)
    assert (found.method, found.missing, found.delta) == ("gaussian", False, pytest.approx(total))


@pytest.mark.parametrize(("epsilon", "ratios"), [(0.5, (0.5,)), (1.0, (0.2,)), (0.1, (1.2, 1.6))])
def test_gaussian_noise_beside_a_pure_promise(accounting: None, epsilon: float, ratios: tuple[float, ...]) -> None:
    """The losses of the worst pure mechanism are +-epsilon; those of Gaussian noise have a closed form around each."""
    ratio = math.sqrt(sum(one**2 for one in ratios))

    def of_noise(at: float) -> float:
        return float(norm.cdf(ratio / 2 - at / ratio) - math.exp(at) * norm.cdf(-ratio / 2 - at / ratio))

    def delta_at(at: float) -> float:
        up = 1 / (1 + math.exp(-epsilon))
        return up * of_noise(at - epsilon) + (1 - up) * of_noise(at + epsilon)

    found = composed([*(gaussian(one) for one in ratios), pure(epsilon)])
    wanted = searched(delta_at, len(ratios) * DELTA, 50.0)
    assert wanted - 1e-6 <= found.epsilon <= wanted * 1.002 + 4 * GRID
    assert found.epsilon < found.basic and found.delta == len(ratios) * DELTA


def test_dp_sgd_twice_is_dp_sgd_with_twice_the_steps(accounting: None) -> None:
    short, long = trained(2.0, 0.05, 100, 3.0), trained(2.0, 0.05, 200, 5.0)
    twice, once = composed([short, short]), composed([long], delta=2 * DELTA)
    assert twice.epsilon == pytest.approx(once.epsilon, rel=1e-6)
    assert 1.2 < twice.epsilon / composed([short]).epsilon < 2.0


@pytest.mark.parametrize("order", [1, -1])
def test_dp_sgd_that_samples_everybody_is_gaussian_noise(accounting: None, order: int) -> None:
    """Beside noise of its own kind, whose squares then add; in either order."""
    steps = trained(5.0, 1.0, 9, 4.0)
    found = composed([steps, gaussian(0.8)][::order])
    exact = guarantee("gaussian", 1.0, math.hypot(0.8, math.sqrt(9) / 5), delta=2 * DELTA).epsilon
    assert exact - 1e-6 <= found.epsilon <= exact * 1.002 + 2e-3
    assert found.adjacency == LEAVE


def test_the_sum_bounds_it() -> None:
    """With one epsilon so small that rounding alone would exceed it, and without one."""
    parts = [gaussian(0.3), gaussian(1.0), pure(0.5), pure(1e-6), pure(0.2, 1e-7), trained(4.0, 0.1, 50, 1.0)]
    for first in range(len(parts)):
        for last in range(first + 1, len(parts) + 1):
            found = composed(parts[first:last])
            assert 0 < found.epsilon <= found.basic == pytest.approx(sum(one.epsilon for one in parts[first:last]))
            assert found.delta == pytest.approx(sum(one.delta for one in parts[first:last]))


def test_pure_promises_add_up_where_no_delta_is_allowed(accounting: None) -> None:
    found = composed([pure(0.5), pure(0.25)])
    assert (found.epsilon, found.delta, found.method, found.missing) == (0.75, 0.0, "sum", False)


def test_without_the_library_it_is_the_sum_and_says_so(without_accounting: None) -> None:
    found = composed([gaussian(0.5), pure(0.5), trained(2.0, 0.05, 100, 3.0)])
    assert found.epsilon == found.basic == pytest.approx(gaussian(0.5).epsilon + 3.5)
    assert (found.method, found.missing) == ("sum", True)
    assert not composed([pure(0.5), pure(0.25)]).missing  # it would not help


def test_a_promise_of_nothing_is_not_computed_at_length(accounting: None) -> None:
    steps = trained(0.05, 0.5, 10_000, 1e6)
    found = composed([pure(40.0, DELTA), steps])
    assert (found.epsilon, found.method, found.missing) == (1e6 + 40, "sum", False)
    assert math.isinf(composed([pure(40.0, adjacencies=(REPLACE,)), steps]).epsilon)


def test_promises_about_other_pairs_are_not_mixed() -> None:
    """DP-SGD says nothing of a replaced image, and a sampled replacement nothing of one that is left out."""
    assert composed([gaussian(0.3), gaussian(0.3)]).adjacency == REPLACE
    assert composed([gaussian(0.3, adjacencies=(LEAVE,)), gaussian(0.3)]).adjacency == LEAVE
    mixed = composed([gaussian(0.3, adjacencies=(LEAVE,)), gaussian(0.4, adjacencies=(REPLACE,))])
    assert mixed.adjacency == REPLACE
    exact = guarantee("gaussian", 1.0, math.hypot(0.6, 0.4), delta=2 * DELTA).epsilon
    assert mixed.epsilon == pytest.approx(exact) and mixed.basic == pytest.approx(
        guarantee("gaussian", 1.0, 0.6, delta=DELTA).epsilon + gaussian(0.4).epsilon
    )


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (0.7, 1e-6)])
def test_a_replaced_image_is_two_steps(without_accounting: None, epsilon: float, delta: float) -> None:
    one = pure(epsilon, delta, (LEAVE,), gamma=0.1, sampled=0.3)
    found = composed([one, pure(0.25, 0.0, (REPLACE,))])
    assert found.epsilon == pytest.approx(2 * epsilon + 0.25)
    assert found.delta == pytest.approx((1 + math.exp(epsilon)) * delta)
    assert found.gamma == pytest.approx(0.2)
    assert [part.adjacencies for part in found.parts] == [(REPLACE,), (REPLACE,)]


def test_dp_sgd_about_a_replaced_image(accounting: None) -> None:
    """Where everybody is sampled, it is noise of twice the sensitivity, at the delta that was promised."""
    replaced = pure(1e-4, 0.0, (REPLACE,))
    found = composed([trained(5.0, 1.0, 9, 4.0), replaced])
    exact = guarantee("gaussian", 1.0, 2 * math.sqrt(9) / 5, delta=DELTA).epsilon
    assert (found.adjacency, found.delta) == (REPLACE, DELTA)
    assert exact - 1e-6 <= found.parts[0].epsilon <= exact * 1.002 + 2e-3
    sampled = trained(2.0, 0.05, 100, 3.0)
    once, both = composed([sampled]).epsilon, composed([sampled, replaced]).epsilon
    assert once < both < 2.2 * once


def test_deltas_that_add_up_to_one_promise_nothing(without_accounting: None) -> None:
    """Group privacy of a large epsilon."""
    found = composed([trained(0.5, 0.01, 2000, 20.0), pure(0.1, 0.0, (REPLACE,))])
    assert math.isinf(found.epsilon) and found.delta == 1.0 and found.missing


def test_gammas_add_and_one_sampled_sensitivity_counts_once() -> None:
    one, other = (pure(0.5, gamma=0.077, sampled=sampled) for sampled in (0.3, 0.4))
    assert composed([one, other, pure(0.1)]).gamma == pytest.approx(0.154)
    assert composed([one, one]).gamma == pytest.approx(0.077)
    more = pure(0.5, gamma=0.056, sampled=0.3)  # of more pairs, which gave the same largest distance
    assert composed([one, more]).gamma == composed([more, one]).gamma == pytest.approx(0.077)
    void = composed([pure(0.5, gamma=0.4, sampled=size) for size in (1.0, 2.0, 3.0)])
    assert (void.epsilon, void.gamma, void.delta, void.missing) == (math.inf, 1.0, 0.0, False)
    assert composed([pure(0.1)]).gamma == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_gamma_bounds_the_pairs_that_break_a_promise(seed: int) -> None:
    """Against all pairs of seven samples, counted: distances without one and of a replaced one, above equal bounds."""
    rng, count, bound = np.random.default_rng(seed), 7, 0.3
    without = rng.random(count) < 0.2
    swapped = rng.random((count, count)) < 0.1
    pairs = [(one, other) for one in range(count) for other in range(count) if one != other]
    broken = np.mean([without[one] or without[other] or swapped[one, other] for one, other in pairs])
    leave = pure(0.5, 0.0, (LEAVE,), gamma=float(without.mean()), sampled=bound)
    replaced = pure(0.5, 0.0, (REPLACE,), gamma=float(np.mean([swapped[pair] for pair in pairs])), sampled=bound)
    assert broken <= composed([leave, replaced]).gamma + 1e-12
    assert composed([leave, leave]).gamma == pytest.approx(without.mean())


def test_equal_sensitivities_about_other_pairs_are_two() -> None:
    leave = pure(0.5, 0.0, (LEAVE,), gamma=0.1, sampled=0.3)
    assert composed([leave, pure(0.5, 0.0, (REPLACE,), gamma=0.05, sampled=0.3)]).gamma == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: composed([]), "no release to compose"),
        (lambda: composed([pure(1, 1e-5), pure(1, 1e-5)], delta=1e-5), r"delta = 1e-05, allowed: 2e-05, the sum"),
        (lambda: composed([pure(1)], delta=1.0), "to below 1"),
        (lambda: pure(-1), "epsilon = -1"),
        (lambda: pure(1, adjacencies=()), "names no adjacency, allowed: replace-one, leave-one-out"),
        (lambda: pure(1, adjacencies=("swap",)), "adjacency = 'swap'"),
        (lambda: pure(1, gamma=0.1), "sampled = 0.0, allowed"),
        (lambda: Gaussian(0.0), "ratio = 0.0"),
        (lambda: Release(1.0, 0.0, ADJACENCIES, Gaussian(0.5)), "delta of Gaussian noise = 0.0"),
        (lambda: SampledGaussian(1.0, 1.5, 3), "rate = 1.5"),
    ],
)
def test_mistakes_are_told(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wrong()


def fitted(name: str, **settings: Any) -> tuple[Defense, dict[str, float]]:
    defense = DEFENSES[name](DEFENSES[name].Parameters(**settings))
    data = digits()
    assert data.labels is not None
    return defense, numbers(defense.fit(classifier(), ProviderData(data.images[:80], data.labels[:80])))


CONVEX = {"head": "convex", "penalty": 0.01}
SAMPLED = {"pairs": 3, "epochs": 5, "epsilon": 1.0}


def test_a_convex_head_with_gaussian_noise() -> None:
    """The ratio alone gives the promise back. A calibrated scale shows the number of images, another one does not."""
    defense, told = fitted("additive-gaussian", epsilon=0.7, **CONVEX)
    found = release_of(defense, told)
    assert found is not None and isinstance(found.mechanism, Gaussian)
    assert (found.epsilon, found.delta) == promised(told) == (pytest.approx(0.7), DELTA)
    assert guarantee("gaussian", 1.0, found.mechanism.ratio, delta=DELTA).epsilon == pytest.approx(0.7)
    assert (found.adjacencies, found.gamma) == (ADJACENCIES[:1], 0.0)
    found = release_of(*fitted("additive-gaussian", scale=0.5, **CONVEX))
    assert found is not None and found.adjacencies == ADJACENCIES


@pytest.mark.parametrize("name", ["additive-logistic", "additive-laplace", "additive-gaussian"])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_a_sampled_sensitivity_is_about_the_pairs_that_were_drawn(name: str, adjacency: str) -> None:
    defense, told = fitted(name, adjacency=adjacency, **SAMPLED)
    found = release_of(defense, told)
    assert found is not None
    assert (found.epsilon, found.adjacencies) == (pytest.approx(1.0), (adjacency,))
    assert (found.gamma, found.sampled) == (told["gamma"], told["sensitivity"])
    assert isinstance(found.mechanism, Gaussian) == (name == "additive-gaussian")


def test_dp_sgd_is_composed_as_it_was_run() -> None:
    pytest.importorskip("opacus")
    defense, told = fitted("dp-sgd", noise_multiplier=3.0, batch_size=20, epochs=2)
    expected = SampledGaussian(3.0, 0.25, 8)
    assert release_of(defense, told) == Release(told["epsilon_rdp"], DELTA, (LEAVE,), expected)


@pytest.mark.parametrize("name", ["additive-gaussian", "dp-sgd"])
def test_a_record_that_does_not_tell_the_mechanism_leaves_the_promise(name: str) -> None:
    found = release_of(DEFENSES[name](), {"epsilon": 1.0, "delta": 1e-6})
    assert found is not None and (found.epsilon, found.delta, found.mechanism) == (1.0, 1e-6, None)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("additive-gaussian", {"scale": 0.3}),
        ("additive-gaussian", {"scale": 0.0, "sensitivity": 0.1}),
        ("dp-sgd", {"epsilon_rdp": math.inf, "delta": 1e-5, "noise_multiplier": 0.0, "sample_rate": 0.1, "steps": 9.0}),
        ("output-noise", {"noise_length": 1.0}),
        ("early-stopping", {}),
    ],
)
def test_no_promise_is_no_release(name: str, told: dict[str, float]) -> None:
    assert release_of(DEFENSES[name](), told) is None
