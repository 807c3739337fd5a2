"""The small network: it learns what is there, in the order its seed says, and refuses what cannot train."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mi_core import mlp
from mi_core.checks import ConfigError, NumericError


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    inputs = np.random.default_rng(seed).normal(size=(300, 2)).astype(np.float32)
    return inputs, inputs[:, 0] * inputs[:, 1] > 0  # no linear rule


def settings(**changes: float) -> dict[str, float]:
    return {"learning_rate": 1e-2, "epochs": 60, "batch_size": 32, "seed": 0} | changes


def test_it_learns_what_a_line_cannot() -> None:
    network = mlp.fit(lambda: mlp.layers(2, 32, 1), *data(), **settings())  # type: ignore[arg-type]
    inputs, targets = data(1)
    assert ((mlp.predict(network, inputs) > 0) == targets).mean() > 0.9
    np.testing.assert_allclose(mlp.predict(network, inputs, batch_size=7), mlp.predict(network, inputs), atol=1e-5)


def test_the_seed_decides_and_the_global_state_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    nets = [mlp.fit(lambda: mlp.layers(2, 8, 1), *data(), **settings(epochs=1, seed=s)) for s in (0, 0, 1)]  # type: ignore[arg-type]
    assert torch.equal(torch.rand(1), expected)
    scores = [mlp.predict(net, data()[0]) for net in nets]
    assert np.array_equal(scores[0], scores[1])
    assert not np.allclose(scores[0], scores[2])


def test_layers_end_without_relu() -> None:
    assert [type(layer).__name__ for layer in mlp.layers(2, 3, 1)] == ["Linear", "ReLU", "Linear"]


def test_bad_settings() -> None:
    with pytest.raises(ConfigError, match="learning_rate = 0"):
        mlp.fit(lambda: mlp.layers(2, 1), *data(), **settings(learning_rate=0))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="epochs = 0 and batch_size"):
        mlp.fit(lambda: mlp.layers(2, 1), *data(), **settings(epochs=0))  # type: ignore[arg-type]
    inputs, targets = data()
    with pytest.raises(NumericError, match="lower its learning_rate"):
        mlp.fit(lambda: mlp.layers(2, 1), np.full_like(inputs, np.inf), targets, **settings())  # type: ignore[arg-type]
