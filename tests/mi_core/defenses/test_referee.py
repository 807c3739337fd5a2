"""What noise and DP-SGD promise, and what the audit of one run assumes, against Google's accounting library."""

from __future__ import annotations

import math
from functools import cache

import pytest

from mi_core.defenses.base import numbers
from mi_core.defenses.dp_sgd import ORDERS, DpSgd, DpSgdParameters
from mi_core.defenses.privacy import calibrated, guarantee
from mi_core.validity.one_run import gaussian_epsilon, gaussian_mu
from tests.mi_core.defenses.classifiers import classifier, digits

dp_accounting = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed: the extra dev has it")
pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
rdp = pytest.importorskip("dp_accounting.rdp")

DELTA = 1e-5
of_gaussian_noise = cache(pld.from_gaussian_mechanism)  # a second each


@pytest.mark.parametrize("ratio", [0.05, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-7, 1e-5, 1e-2])
def test_gaussian_noise(ratio: float, delta: float) -> None:
    """Its numbers are rounded up by the step of its grid."""
    ours = guarantee("gaussian", 1.0, ratio, delta=delta).epsilon
    theirs = of_gaussian_noise(1.0, sensitivity=ratio).get_epsilon_for_delta(delta)
    assert ours <= theirs + 1e-6
    assert ours == pytest.approx(theirs, rel=2e-3, abs=2e-4)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 5.0])
def test_noise_for_an_epsilon(epsilon: float) -> None:
    scale = calibrated("gaussian", epsilon, 0.3, delta=DELTA).scale
    theirs = pld.from_gaussian_mechanism(scale, sensitivity=0.3).get_delta_for_epsilon(epsilon)
    assert theirs == pytest.approx(DELTA, rel=5e-3)
    scale = calibrated("laplace", epsilon, 0.3).scale
    laplace = pld.from_laplace_mechanism(scale, sensitivity=0.3)
    assert laplace.get_delta_for_epsilon(epsilon + 1e-4) < 1e-12 < laplace.get_delta_for_epsilon(0.99 * epsilon)


@pytest.mark.parametrize(("noise", "batch_size", "epochs"), [(1.0, 60, 3), (2.0, 120, 6), (8.0, 300, 4)])
def test_dp_sgd(noise: float, batch_size: int, epochs: int) -> None:
    """By the same divergences the same epsilon; above the tight one, by no more than its docstring says."""
    data = digits()
    part = type(data)(data.images[:600], data.labels[:600])
    settings = DpSgdParameters(noise_multiplier=noise, batch_size=batch_size, epochs=epochs)
    found = numbers(DpSgd(settings).fit(classifier(), part))
    assert (found["steps"], found["sample_rate"]) == (epochs * 600 // batch_size, batch_size / 600)
    assert (found["delta"], found["noise_multiplier"]) == (DELTA, noise)
    step = dp_accounting.PoissonSampledDpEvent(found["sample_rate"], dp_accounting.GaussianDpEvent(noise))
    accountant = rdp.RdpAccountant(ORDERS)
    accountant.compose(step, int(found["steps"]))
    assert found["epsilon_rdp"] == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-3)
    tight = pld.from_gaussian_mechanism(noise, sampling_prob=found["sample_rate"]).self_compose(int(found["steps"]))
    assert 1.0 < found["epsilon_rdp"] / tight.get_epsilon_for_delta(DELTA) < 1.35


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_mechanism_that_the_bounds_are_simulated_on(epsilon: float) -> None:
    """Randomised response that is right with probability 1 / (1 + e^-epsilon) has exactly this epsilon."""
    theirs = pld.from_randomized_response(2 / (1 + math.exp(epsilon)), 2)
    assert theirs.get_epsilon_for_delta(0) == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize("mu", [0.2, 1.0, 2.5])
def test_epsilon_of_gaussian_differential_privacy(mu: float) -> None:
    theirs = pld.from_gaussian_mechanism(1 / mu)
    assert gaussian_epsilon(mu, DELTA) == pytest.approx(theirs.get_epsilon_for_delta(DELTA), rel=2e-3)
    assert gaussian_mu(theirs.get_epsilon_for_delta(DELTA), DELTA) == pytest.approx(mu, rel=2e-3)


def test_several_gaussian_releases_are_one() -> None:
    """mu of 3 and 4 together are mu of 5, as for steps of training and for heads that are released one by one."""
    theirs = pld.from_gaussian_mechanism(1 / 0.3).compose(pld.from_gaussian_mechanism(1 / 0.4))
    assert gaussian_epsilon(0.5, DELTA) == pytest.approx(theirs.get_epsilon_for_delta(DELTA), rel=2e-3)
