"""The small network: it learns what is there, in the order its seed says, and refuses what cannot train."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mi_core import mlp
from mi_core.checks import ConfigError, NumericError
from tests.raising import refused


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    inputs = np.random.default_rng(seed).normal(size=(300, 2)).astype(np.float32)
    return inputs, inputs[:, 0] * inputs[:, 1] > 0  # no linear rule


def training(**changes: Any) -> mlp.Training:
    return mlp.Training(**{"learning_rate": 1e-2, "epochs": 60, "batch_size": 32} | changes)


def test_it_learns_what_a_line_cannot() -> None:
    network = mlp.fit(lambda: mlp.layers(2, 32, 1), *data(), training(), seed=0)
    inputs, targets = data(1)
    assert ((mlp.predict(network, inputs) > 0) == targets).mean() > 0.9
    np.testing.assert_allclose(mlp.predict(network, inputs, batch_size=7), mlp.predict(network, inputs), atol=1e-5)


def test_the_seed_decides_and_the_global_state_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    dropping = lambda: torch.nn.Sequential(torch.nn.Dropout(0.5), mlp.layers(2, 8, 1))  # noqa: E731
    nets = [mlp.fit(dropping, *data(), training(epochs=1), seed=s) for s in (0, 0, 1)]
    assert torch.equal(torch.rand(1), expected)
    scores = [mlp.predict(net, data()[0]) for net in nets]
    assert np.array_equal(scores[0], scores[1])
    assert not np.allclose(scores[0], scores[2])


def test_layers_end_without_relu() -> None:
    assert [type(layer).__name__ for layer in mlp.layers(2, 3, 1)] == ["Linear", "ReLU", "Linear"]


def test_bad_settings() -> None:
    refused(ConfigError, "learning_rate = 0", training, learning_rate=0)
    refused(ConfigError, "epochs = 0", training, epochs=0)
    refused(ConfigError, "optimizer = 'lion', allowed: adam, sgd", training, optimizer="lion")
    inputs, targets = data()
    with pytest.raises(NumericError, match="lower its learning_rate"):
        mlp.fit(lambda: mlp.layers(2, 1), np.full_like(inputs, np.inf), targets, training(), seed=0)


def test_full_batch_gradient_descent_by_hand() -> None:
    inputs, targets = data()
    chosen = training(optimizer="sgd", batch_size=0, epochs=3, learning_rate=0.5, halve_every=2, weight_decay=0.1)
    network = mlp.fit(lambda: mlp.layers(2, 1), inputs, targets, chosen, seed=3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layer = torch.nn.Linear(2, 1)
    weight, bias = (part.detach().double() for part in (layer.weight[0], layer.bias))
    x, y = torch.from_numpy(inputs).double(), torch.from_numpy(targets).double()
    for rate in (0.5, 0.5, 0.25):
        error = torch.sigmoid(x @ weight + bias) - y
        weight, bias = (
            weight - rate * ((error[:, None] * x).mean(0) + 0.1 * weight),
            bias - rate * (error.mean() + 0.1 * bias),
        )
    torch.testing.assert_close(network[0].weight[0].double(), weight, atol=1e-5, rtol=0)  # type: ignore[index]
    torch.testing.assert_close(network[0].bias.double(), bias, atol=1e-5, rtol=0)  # type: ignore[index]


def test_clipping_bounds_the_step() -> None:
    inputs, targets = data()
    free, bound = (
        mlp.fit(
            lambda: mlp.layers(2, 1),
            inputs * 100,
            targets,
            training(optimizer="sgd", batch_size=0, epochs=1, learning_rate=1.0, clip=clip),
            seed=0,
        )
        for clip in (None, 1e-3)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        start = torch.nn.Linear(2, 1)
    moved = [float((net[0].weight - start.weight).detach().norm()) for net in (free, bound)]  # type: ignore[index]
    assert moved[0] > 0.1 > 1e-3 >= moved[1] > 0


def test_a_loss_of_ones_own() -> None:
    inputs, _ = data()
    wanted = inputs[:, 0] * 3 + 1
    squared = lambda outputs, targets: (outputs - targets).square().mean()  # noqa: E731
    network = mlp.fit(lambda: mlp.layers(2, 1), inputs, wanted, training(learning_rate=0.05), seed=0, loss=squared)
    np.testing.assert_allclose(mlp.predict(network, inputs), wanted, atol=1e-2)


def test_what_all_but_never_varies_counts_as_constant() -> None:
    """A posterior of 1e-300 to 1e-200 on the reference is 1 on the target, and stays a number."""
    found = mlp.standardised(np.array([[1.0, 0.2]]), mlp.standardisation(np.array([[1e-300, 0.2], [1e-200, 0.9]])))
    assert found.tolist() == [[1.0, -1.0]]
    small = np.array([[1e-3], [1.001e-3]])  # what is small but varies is no constant
    np.testing.assert_allclose(mlp.standardised(small, mlp.standardisation(small)), [[-1], [1]], rtol=1e-5)


def test_standardisation_survives_constants_and_weights_come_back() -> None:
    values = np.array([[1.0, 5.0], [3.0, 5.0]])
    scale = mlp.standardisation(values)
    assert mlp.standardised(values, scale).tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    whole = mlp.standardisation(values, axis=None)
    assert whole["mean"] == 3.5
    network = mlp.layers(2, 3, 1)
    again = mlp.restored(mlp.layers(2, 3, 1), mlp.weights(network))
    assert torch.equal(again[0].weight, network[0].weight)  # type: ignore[index]


def test_fitting_ends_when_the_loss_no_longer_falls() -> None:
    """A network whose weights cannot move takes its first epoch and ``patience`` more; a learning one takes longer."""
    inputs, targets = np.eye(4, dtype=np.float32), np.array([True, False, True, False])

    def epochs(rate: float, patience: int | None) -> int:
        seen = []

        def counted(batch: torch.Tensor, _: torch.Generator) -> torch.Tensor:
            seen.append(len(batch))
            return batch

        training = mlp.Training(rate, epochs=60, batch_size=0, patience=patience)
        mlp.fit(lambda: mlp.layers(4, 1), inputs, targets, training, seed=0, augment=counted)
        return len(seen)

    assert epochs(1e-12, 7) == 8
    assert epochs(1e-12, None) == 60
    assert epochs(0.1, 7) == 60
