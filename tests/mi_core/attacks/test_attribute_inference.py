"""Attribute inference: a planted attribute is told, none is not, and guessing stands beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mi_core.attacks.attribute_inference import AttributeInferenceParameters, infer
from mi_core.checks import ConfigError, NumericError, ShapeError
from tests.raising import refused

QUICK = AttributeInferenceParameters(learning_rate=0.1, batch_size=32)


def plant(count: int, strength: float, seed: int, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings whose first coordinates lean towards the value, scaled so that standardisation matters."""
    generator = np.random.default_rng(seed)
    values = generator.choice(classes, count, p=[0.4, 0.3, 0.2, 0.1])
    embeddings = generator.normal(0, 1, (count, 16))
    embeddings[np.arange(count), values] += strength
    return (embeddings * 100 + 1000).astype(np.float32), values


def test_a_planted_attribute_is_told() -> None:
    found = infer(*plant(600, 6.0, 0), *plant(400, 6.0, 1), classes=4, parameters=QUICK)
    assert found.accuracy.value > 0.95
    assert found.accuracy.n == 400
    assert found.accuracy.low > found.majority.high
    assert found.auxiliary_accuracy.n == 600


@pytest.mark.parametrize("variant", ["paper", "linear"])
def test_what_was_learned_by_heart_shows_on_the_auxiliary_data(variant: str) -> None:
    """An attacker tells the samples that it learned from at least as well as others, and as well when asked again."""
    settings = {"variant": variant} | ({"learning_rate": 0.5, "epochs": 300} if variant == "paper" else {})
    parameters = AttributeInferenceParameters(**settings)
    known = plant(60, 6.0, 0)
    found = infer(*known, *plant(400, 6.0, 1), classes=4, parameters=parameters)
    same = infer(*known, *known, classes=4, parameters=parameters)
    assert same.accuracy == same.auxiliary_accuracy == found.auxiliary_accuracy
    assert found.auxiliary_accuracy.value >= found.accuracy.value


@pytest.mark.parametrize("values", [[1, 1, 1, 1], [0, 1, 1, 1], [0, 1, 2, 3]])
def test_a_linear_adversary_takes_rare_values(values: list[int]) -> None:
    known, _ = plant(4, 6.0, 0)
    linear = AttributeInferenceParameters(variant="linear")
    found = infer(known, np.array(values), *plant(20, 6.0, 1), classes=4, parameters=linear)
    assert found.accuracy.n == 20


def test_what_is_not_there_is_not_told_better_than_by_guessing() -> None:
    found = infer(*plant(600, 0.0, 0), *plant(400, 0.0, 1), classes=4, parameters=QUICK)
    assert found.accuracy.value <= found.majority.high


def test_the_guess_is_the_most_frequent_value_of_the_auxiliary_data() -> None:
    known, _ = plant(10, 0, 0)
    values = np.array([2] * 6 + [0] * 4)
    tested, _ = plant(5, 0, 1)
    found = infer(known, values, tested, np.array([2, 2, 0, 0, 1]), classes=3, parameters=QUICK)
    assert found.majority.value == 0.4


def test_same_seed_same_answers_and_torch_is_left_alone() -> None:
    known, tested = plant(200, 1.0, 0), plant(100, 1.0, 1)
    torch.manual_seed(1)
    first = infer(*known, *tested, classes=4, parameters=QUICK, seed=3)
    state = torch.random.get_rng_state()
    again = infer(*known, *tested, classes=4, parameters=QUICK, seed=3)
    np.testing.assert_array_equal(first.right, again.right)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("layers", [1, 3, 6])
def test_depth(layers: int) -> None:
    network: Any = AttributeInferenceParameters(layers=layers).network(16, 5)
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    assert len(linear) == layers
    assert (linear[0].in_features, linear[-1].out_features) == (16, 5)
    released: Any = AttributeInferenceParameters(variant="released").network(16, 5)
    assert [layer.out_features for layer in released[0] if isinstance(layer, nn.Linear)] == [128, 128, 128, 5]
    assert isinstance(released[1], nn.ReLU)


def test_constant_embeddings_and_mistakes() -> None:
    known, values = plant(40, 0, 0)
    flat = infer(known * 0, values, known * 0, values, classes=4, parameters=QUICK)
    assert flat.accuracy.value == pytest.approx(flat.majority.value)
    refused(ShapeError, "values", infer, known, values[:3], known, values, classes=4)
    refused(ShapeError, "needs some of each", infer, known[:0], values[:0], known, values, classes=4)
    refused(NumericError, "auxiliary embedding", infer, known * np.nan, values, known, values, classes=4)
    for settings, message in (({"layers": 0}, "layers = 0"), ({"variant": "x"}, "variant"), ({"hidden": 0}, "hidden")):
        refused(ConfigError, message, AttributeInferenceParameters, **settings)
