"""Attacks that are one network on standardised features: their settings, the fit and the scoring."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from torch import nn

from mi_core import mlp
from mi_core.attacks.base import Attack, Scores, State
from mi_core.checks import check_range
from mi_core.records import Features


@dataclass(frozen=True)
class HiddenParameters:
    """How a network with hidden layers of one width is built and fitted; subclasses give the values of their papers.

    Args:
        learning_rate: of Adam.
        epochs: passes over the reference.
        batch_size: samples of the reference per step.
        hidden: width of the hidden layers.
    """

    learning_rate: float = 1e-3
    epochs: int = 100
    batch_size: int = 100
    hidden: int = 256

    def __post_init__(self) -> None:
        check_range("hidden", self.hidden, 1)
        self.training()

    def training(self) -> mlp.Training:
        """Optimizer and schedule."""
        return mlp.Training(self.learning_rate, self.epochs, self.batch_size)


class NetworkAttack(Attack):
    """A network on features standardised by the reference; a subclass names the features."""

    axis: ClassVar[int | None] = 0
    """Over which the reference's mean and deviation are taken; None: one of each for all inputs."""
    batch_size: ClassVar[int] = 8192
    """Samples scored at once."""

    @abstractmethod
    def _inputs(self, features: Features) -> npt.NDArray[np.float32]:
        """(N, ...) what the network reads, before standardisation."""

    def _network(self, width: int) -> nn.Module:
        """A network for inputs whose second axis has this width, to one logit; default: two hidden layers."""
        return mlp.layers(width, self.parameters.hidden, self.parameters.hidden, 1)

    def _training(self) -> mlp.Training:
        return self.parameters.training()

    def _augment(self) -> mlp.Augment | None:
        return None

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> State:
        inputs = self._inputs(features)
        scale = mlp.standardisation(inputs, axis=self.axis)
        made, standard = partial(self._network, inputs.shape[1]), mlp.standardised(inputs, scale)
        network = mlp.fit(made, standard, member, self._training(), seed=self.seed, augment=self._augment())
        return scale | mlp.weights(network) | {"threshold": np.array(0.0)}

    def _score(self, features: Features, state: State) -> Scores:
        inputs = self._inputs(features)
        network = mlp.restored(self._network(inputs.shape[1]), state)
        return mlp.predict(network, mlp.standardised(inputs, state), batch_size=self.batch_size)
