"""Attacks that are one network on standardised features: the fit and the scoring that they share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch import nn

from mi_core import mlp
from mi_core.attacks.base import Attack
from mi_core.records import Features


class NetworkAttack(Attack):
    """A network on features standardised by the reference; a subclass says which features, network and training."""

    axis: ClassVar[int | None] = 0
    """Over which the reference's mean and deviation are taken; None: one of each for all inputs."""
    batch_size: ClassVar[int] = 8192
    """Samples scored at once."""

    @abstractmethod
    def _inputs(self, features: Features) -> npt.NDArray[np.float32]:
        """(N, ...) what the network reads, before standardisation."""

    @abstractmethod
    def _network(self, width: int) -> nn.Module:
        """A network for inputs whose second axis has this width, to one logit."""

    def _training(self) -> mlp.Training:
        training: mlp.Training = self.parameters.training()
        return training

    def _augment(self) -> mlp.Augment | None:
        return None

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> dict[str, npt.NDArray[Any]]:
        inputs = self._inputs(features)
        scale = mlp.standardisation(inputs, axis=self.axis)
        network = mlp.fit(
            lambda: self._network(inputs.shape[1]),
            mlp.standardised(inputs, scale),
            member,
            self._training(),
            seed=self.seed,
            augment=self._augment(),
        )
        return scale | mlp.weights(network) | {"threshold": np.array(0.0)}

    def _score(self, features: Features, state: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
        inputs = self._inputs(features)
        network = mlp.restored(self._network(inputs.shape[1]), state)
        return mlp.predict(network, mlp.standardised(inputs, state), batch_size=self.batch_size)
