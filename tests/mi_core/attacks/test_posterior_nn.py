"""What enters the networks on posteriors, and the baselines that read a downstream classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mi_core.attacks import ATTACKS
from mi_core.attacks.network import NetworkAttack
from mi_core.checks import ConfigError
from mi_core.records import Features
from tests.raising import refused

LOGITS = np.log(np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.4, 0.4, 0.2]]))
LABELS = np.array([0, 1, 2])
VIEWS = np.stack([LOGITS, np.roll(LOGITS, 1, axis=1)], axis=1)  # (3, 2, 3)


def inputs(name: str, **parameters: Any) -> np.ndarray:
    attack = ATTACKS[name](ATTACKS[name].Parameters(**parameters))
    assert isinstance(attack, NetworkAttack)
    values = {"embedding": LOGITS, "view-embeddings": VIEWS, "adversarial:0.0313725/10/2": VIEWS.reshape(3, -1)}
    return attack._inputs(Features(np.array(["a", "b", "c"]), values, labels=LABELS))


def test_the_two_largest_posteriors_and_whether_the_prediction_is_right() -> None:
    np.testing.assert_allclose(inputs("posterior-nn"), [[0.5, 0.3, 1], [0.7, 0.2, 0], [0.4, 0.4, 0]], atol=1e-6)
    np.testing.assert_allclose(inputs("posterior-nn", top=9)[0], [0.5, 0.3, 0.2, 1], atol=1e-6)


def test_views_are_averaged_or_side_by_side() -> None:
    mean = (np.exp(VIEWS[:, 0]) + np.exp(VIEWS[:, 1])) / 2
    np.testing.assert_allclose(inputs("posterior-nn", aggregate="mean", top=3)[:, :3], -np.sort(-mean), atol=1e-6)
    # the second view of the first image has .2 .5 .3, so class 1 instead of 0
    both = inputs("posterior-nn", aggregate="concatenation")
    np.testing.assert_allclose(both[0], [0.5, 0.3, 1, 0.5, 0.3, 0], atol=1e-6)
    assert ATTACKS["posterior-nn"](ATTACKS["posterior-nn"].Parameters(aggregate="mean")).queries_per_sample(7) == 7


def test_the_released_network_has_a_relu_on_its_outputs() -> None:
    attack = ATTACKS["posterior-nn"](ATTACKS["posterior-nn"].Parameters(variant="released"))
    assert isinstance(attack, NetworkAttack)
    network: Any = attack._network(3)
    with torch.no_grad():
        network[0][-1].weight.zero_()
        network[0][-1].bias.copy_(torch.tensor([-1.0, -2.0]))
        assert network(torch.rand(4, 3)).abs().max() == 0  # both outputs are cut off
        network[0][-1].bias.copy_(torch.tensor([1.0, 3.0]))
        torch.testing.assert_close(network(torch.rand(4, 3)), torch.full((4, 1), 2.0))
    assert (attack._training().learning_rate, ATTACKS["posterior-nn"]()._training().learning_rate) == (1e-3, 0.05)


def test_a_class_below_0_is_named() -> None:
    attack = ATTACKS["posterior-mlp"]()
    assert isinstance(attack, NetworkAttack)
    samples = Features(np.array(["a", "b", "c"]), {"embedding": LOGITS}, labels=np.array([-1, 0, 2]))
    refused(ConfigError, "is given classes -1 to 2 for 3 posteriors, 0 to 2", attack._inputs, samples)


def test_all_posteriors_and_the_class() -> None:
    np.testing.assert_allclose(inputs("posterior-mlp")[1], [0.1, 0.2, 0.7, 0, 1, 0], atol=1e-6)
    layers: Any = ATTACKS["posterior-mlp"]()._network(6)
    assert sum(isinstance(layer, torch.nn.ReLU) for layer in layers) == 5


def test_downstream_baselines() -> None:
    np.testing.assert_allclose(inputs("baseline-a"), [[0.5, 0.3, 0.2], [0.7, 0.2, 0.1], [0.4, 0.4, 0.2]], atol=1e-6)
    # the image itself, then its views; of equal logits the first is the prediction
    assert inputs("baseline-b").tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_allclose(inputs("baseline-c", classes=2)[0], [0.5, 0.3, 0.2, 0.2, 0.5, 0.3], atol=1e-6)
    assert ATTACKS["baseline-b"]().queries_per_sample(10) == 11
    assert ATTACKS["baseline-c"]().queries_per_sample(10) == 10


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("posterior-nn", {"aggregate": "sum"}, "aggregate = 'sum'"),
        ("posterior-nn", {"variant": "x"}, "variant = 'x'"),
        ("posterior-nn", {"top": 0}, "top = 0"),
        ("metric-conf", {"top": 0}, "top = 0"),
        ("posterior-mlp", {"hidden": 0}, "hidden = 0"),
        ("baseline-c", {"epsilon": 0}, "epsilon = 0"),
        ("baseline-c", {"classes": 1}, "classes = 1"),
        ("label-only", {"queries": 10}, "queries = 10"),
        ("label-only", {"iterations": 0}, "iterations = 0"),
    ],
)
def test_impossible_settings(name: str, parameters: dict[str, Any], message: str) -> None:
    refused(ConfigError, message, ATTACKS[name].Parameters, **parameters)
