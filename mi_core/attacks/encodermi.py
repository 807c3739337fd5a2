"""EncoderMI (Liu, Jia, Qu, Gong: "EncoderMI: Membership inference against pre-trained encoders", CCS 2021).

The attacker sees embeddings of V augmented views of an image (V queries, 10 in the paper) and trains a shadow encoder
on data of her own, whose members she knows. The feature is the set of pairwise similarities (section 4.2); three
classifiers read it (section 4.3): T takes the mean and a threshold, V the sorted vector and a fully connected network,
S the set itself and a permutation-invariant network.

Both networks train with cross-entropy and Adam at 1e-4 for 300 epochs, two hidden layers of 256 (section 5.1). The
paper names no batch size and no activation: 100 as in the released script, and ReLU. The set network is DeepSets
(Zaheer et al., 2017) on the scalar similarities. Features are standardised by the reference's mean and standard
deviation, so that one learning rate suits encoders whose similarities differ in spread.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mi_core import mlp
from mi_core.attacks.base import Attack
from mi_core.checks import check_choice, check_range
from mi_core.features.pairwise_similarity import METRICS
from mi_core.records import Features

_THREAT_MODEL = "embeddings of augmented views; a shadow encoder trained on own data"
_SOURCE = "EncoderMI (CCS 2021), sections 4.2-4.3"


@dataclass(frozen=True)
class ThresholdParameters:
    """Settings of EncoderMI-T. ``metric``: cosine, correlation or euclidean (table 3)."""

    metric: str = "cosine"

    def __post_init__(self) -> None:
        check_choice("metric", self.metric, METRICS)


@dataclass(frozen=True)
class NetworkParameters:
    """Settings of EncoderMI-V and -S: similarity metric, width of the hidden layers, and training (section 5.1)."""

    metric: str = "cosine"
    hidden: int = 256
    learning_rate: float = 1e-4
    epochs: int = 300
    batch_size: int = 100

    def __post_init__(self) -> None:
        check_choice("metric", self.metric, METRICS)
        check_range("hidden", self.hidden, 1)
        check_range("learning_rate", self.learning_rate, 0, open_low=True)
        check_range("epochs", self.epochs, 1)
        check_range("batch_size", self.batch_size, 1)


class _Pairwise(Attack):
    """What the three variants share: the feature, the threat model, the source."""

    threat_model = _THREAT_MODEL
    source = _SOURCE
    reference = frozenset({"shadow"})

    @property
    def needs(self) -> tuple[str, ...]:
        return (f"pairwise:{self.parameters.metric}",)

    def _similarities(self, features: Features) -> npt.NDArray[np.float32]:
        """(N, V (V - 1) / 2), in the order of the pairs."""
        return np.asarray(features.values[self.needs[0]], dtype=np.float32)


class EncoderMIThreshold(_Pairwise):
    """EncoderMI-T: the mean similarity against the threshold that makes the fewest errors on the reference."""

    name = "encodermi-t"
    Parameters = ThresholdParameters

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> dict[str, npt.NDArray[Any]]:
        return {"threshold": np.array(best_threshold(self._score(features, {}), member))}

    def _score(self, features: Features, state: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
        mean: npt.NDArray[np.float64] = self._similarities(features).mean(axis=1, dtype=np.float64)
        return mean


class _Network(_Pairwise):
    """A network on standardised similarities; what differs is how they enter, their scale and the network."""

    Parameters = NetworkParameters
    axis: int | None  # over which the reference's mean and deviation are taken
    batch_size: int  # of scoring

    @abstractmethod
    def _inputs(self, features: Features) -> npt.NDArray[np.float32]: ...

    @abstractmethod
    def _network(self, width: int) -> nn.Module: ...

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> dict[str, npt.NDArray[Any]]:
        inputs = self._inputs(features)
        scale = _scale(inputs, axis=self.axis)
        network = mlp.fit(
            lambda: self._network(inputs.shape[1]), _standardised(inputs, scale), member, **_training(self)
        )
        return scale | _weights(network) | {"threshold": np.array(0.0)}

    def _score(self, features: Features, state: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
        inputs = self._inputs(features)
        network = _restored(self._network(inputs.shape[1]), state)
        return mlp.predict(network, _standardised(inputs, state), batch_size=self.batch_size)


class EncoderMIVector(_Network):
    """EncoderMI-V: a fully connected network on the similarities in descending order."""

    name = "encodermi-v"
    axis = 0
    batch_size = 8192

    def _inputs(self, features: Features) -> npt.NDArray[np.float32]:
        return -np.sort(-self._similarities(features), axis=1)

    def _network(self, width: int) -> nn.Module:
        return mlp.layers(width, self.parameters.hidden, self.parameters.hidden, 1)


class DeepSets(nn.Module):
    """A network on sets (Zaheer et al., 2017, theorem 2): rho of the mean of phi over the elements."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.phi = mlp.layers(1, hidden, hidden)
        self.rho = mlp.layers(hidden, hidden, 1)

    def forward(self, sets: torch.Tensor) -> torch.Tensor:
        """Sets of scalars (B, E) to logits (B, 1)."""
        logits: torch.Tensor = self.rho(self.phi(sets[:, :, None]).mean(dim=1))
        return logits


class EncoderMISet(_Network):
    """EncoderMI-S: a permutation-invariant network on the set of similarities."""

    name = "encodermi-s"
    axis = None
    batch_size = 2048

    def _inputs(self, features: Features) -> npt.NDArray[np.float32]:
        return self._similarities(features)

    def _network(self, width: int) -> nn.Module:
        return DeepSets(self.parameters.hidden)


def best_threshold(scores: npt.NDArray[np.float64], member: npt.NDArray[np.bool_]) -> float:
    """The threshold with the fewest errors when ``score >= threshold`` is called a member (section 4.3).

    All thresholds that tell samples apart are tried: halfway between neighbouring scores, at the lowest score, and just
    above the highest. Of equally good ones the lowest is taken.

    Args:
        scores: (N,) higher = more likely a member.
        member: (N,) bool.

    Example:
        >>> best_threshold(np.array([0.1, 0.4, 0.3, 0.9]), np.array([False, False, True, True]))
        0.2
    """
    order = np.argsort(scores, kind="stable")
    values, truth = scores[order], member[order]
    # errors[k]: the k lowest scores are called non-members
    errors = np.concatenate([[0], np.cumsum(truth)]) + (~truth).sum() - np.concatenate([[0], np.cumsum(~truth)])
    splits = np.concatenate([[True], values[1:] > values[:-1], [True]])
    best = int(np.argmin(np.where(splits, errors, len(scores) + 1)))
    if best == 0:
        return float(values[0])
    if best == len(values):
        return float(np.nextafter(values[-1], np.inf))
    middle = (values[best - 1] + values[best]) / 2
    return float(middle if middle > values[best - 1] else values[best])


def _training(attack: Attack) -> dict[str, Any]:
    parameters = attack.parameters
    return {
        "learning_rate": parameters.learning_rate,
        "epochs": parameters.epochs,
        "batch_size": parameters.batch_size,
        "seed": attack.seed,
    }


def _scale(values: npt.NDArray[np.float32], axis: int | None) -> dict[str, npt.NDArray[Any]]:
    """Mean and standard deviation of the reference; a constant column is left as it is."""
    deviation = np.asarray(values.std(axis=axis, dtype=np.float64))
    mean = np.asarray(values.mean(axis=axis, dtype=np.float64))
    return {"mean": mean, "deviation": np.where(deviation > 0, deviation, 1.0)}


def _standardised(values: npt.NDArray[np.float32], scale: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    standardised: npt.NDArray[np.float32] = ((values - scale["mean"]) / scale["deviation"]).astype(np.float32)
    return standardised


def _weights(network: nn.Module) -> dict[str, npt.NDArray[Any]]:
    return {f"network.{name}": tensor.numpy() for name, tensor in network.state_dict().items()}


def _restored(network: nn.Module, state: Mapping[str, npt.NDArray[Any]]) -> nn.Module:
    prefix = "network."
    weights = {key.removeprefix(prefix): torch.from_numpy(state[key]) for key in state if key.startswith(prefix)}
    network.load_state_dict(weights)
    return network.eval()
