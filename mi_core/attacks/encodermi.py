"""EncoderMI (Liu, Jia, Qu, Gong: "EncoderMI: Membership inference against pre-trained encoders", CCS 2021).

Contrastive pre-training draws the augmented views of each training image together. An encoder that has overfitted
therefore answers the views of a member more alike than those of an image it never saw.

The attacker sees embeddings of V augmented views of an image (V queries, 10 in the paper) and trains a shadow encoder
on data of her own, whose members she knows. The feature is the set of pairwise similarities (section 4.2); three
classifiers read it (section 4.3): T takes the mean and a threshold, V the sorted vector and a fully connected network,
S the set itself and a permutation-invariant network.

Both networks train with cross-entropy and Adam at 1e-4 for 300 epochs, two hidden layers of 256 (section 5.1). The
paper names no batch size and no activation: 100 as in the released script, and ReLU. The set network is DeepSets
(Zaheer et al., 2017) on the scalar similarities. Features are standardised by the reference's mean and standard
deviation, so that one learning rate suits encoders whose similarities differ in spread.

``variant: released`` is what the authors' scripts do instead. V: one hidden layer of 256 with tanh and an L2 penalty of
1e-6. S: each similarity is a point (0, 0, cosine) of a cloud that is standardised by itself, which keeps the spread of
the similarities relative to their mean and drops the rest; in training the cloud is turned by up to 0.1 pi about its
third axis and stretched along each by 0.8 to 1.25; the network is the max-equivariant one of DeepSets with dropout,
trained by Adam at 1e-3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mi_core import mlp
from mi_core.attacks.base import Attack, Scores
from mi_core.attacks.network import NetworkAttack
from mi_core.attacks.threshold import ThresholdAttack
from mi_core.checks import VARIANTS, check_choice, check_fields
from mi_core.features import Measure
from mi_core.features.pairwise_similarity import METRICS, PairwiseSimilarity
from mi_core.records import Features
from mi_core.runtime import compiled


@dataclass(frozen=True)
class PairwiseParameters:
    """Settings of an attack on the similarities of views.

    Args:
        metric: how alike two embeddings are: ``cosine``, ``correlation`` or ``euclidean`` (EncoderMI, table 3); or
            ``log-distance``, minus the logarithm of the cosine distance, whose mean ranks images better.
    """

    metric: str = "cosine"

    def __post_init__(self) -> None:
        check_choice("metric", self.metric, METRICS)


class PairwiseAttack(Attack):
    """An attack that reads the similarities of all pairs of an image's views."""

    @property
    def needs(self) -> tuple[Measure, ...]:
        """Similarities of all pairs of views."""
        return (PairwiseSimilarity(self.parameters.metric),)

    def statistic(self, features: Features) -> Scores:
        """(N,) mean similarity of an image's views."""
        return np.asarray(features[self.needs[0]].mean(axis=1, dtype=np.float64))


@dataclass(frozen=True)
class NetworkParameters(PairwiseParameters):
    """Settings of EncoderMI-V and -S (section 5.1).

    Args:
        variant: ``paper``, or ``released`` for what the authors' scripts do.
        hidden: width of the hidden layers.
        learning_rate: of Adam; None: 1e-4, and 1e-3 of the released variant of S.
        epochs: passes over the reference.
        batch_size: samples of the reference per step.
    """

    variant: str = "paper"
    hidden: int = 256
    learning_rate: float | None = None
    epochs: int = 300
    batch_size: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("variant", self.variant, VARIANTS)
        check_fields(self, "hidden", "batch_size", low=1)
        self.training()

    @property
    def released(self) -> bool:
        """True if the released scripts are followed instead of the paper."""
        return self.variant == "released"

    def training(self, default_rate: float = 1e-4) -> mlp.Training:
        """Optimizer and schedule; the rate is ``default_rate`` where no ``learning_rate`` is set."""
        rate = default_rate if self.learning_rate is None else self.learning_rate
        return mlp.Training(rate, self.epochs, self.batch_size)


class _EncoderMI(PairwiseAttack):
    queries = "10 at 10 views"
    threat_model = "embeddings of augmented views; a shadow encoder trained on own data, or known members of the target"
    source = "EncoderMI (CCS 2021), sections 4.2-4.3"
    reference = frozenset({"shadow", "known"})


class EncoderMIThreshold(_EncoderMI, ThresholdAttack):
    """EncoderMI-T: the mean similarity against the threshold that makes the fewest errors on the reference.

    The simplest of the three: one number per image, and nothing is learned but a threshold. That carries over as far as
    the similarities of reference and target lie on one scale; the ranking of images, and so the AUC, does not depend
    on it.
    """

    name = "encodermi-t"
    Parameters = PairwiseParameters


class _Network(_EncoderMI, NetworkAttack):
    """A network on standardised similarities; what differs is how they enter, their scale and the network."""

    Parameters = NetworkParameters

    def _inputs(self, features: Features) -> npt.NDArray[np.float32]:
        """(N, V (V - 1) / 2), in the order of the pairs."""
        return np.asarray(features[self.needs[0]], dtype=np.float32)


class EncoderMIVector(_Network):
    """EncoderMI-V: a fully connected network on the similarities in descending order.

    Sorted, similarities do not depend on the order of the views. The network sees how they are spread, not their mean
    alone, and takes more samples to learn from than a threshold does.
    """

    name = "encodermi-v"

    def _inputs(self, features: Features) -> npt.NDArray[np.float32]:
        return -np.sort(-super()._inputs(features), axis=1)

    def _network(self, width: int) -> nn.Module:
        if self.parameters.released:
            return mlp.layers(width, self.parameters.hidden, 1, activation=nn.Tanh)
        return super()._network(width)

    def _training(self) -> mlp.Training:
        return replace(super()._training(), weight_decay=1e-6 if self.parameters.released else 0.0)


class DeepSets(nn.Module):
    """A network on sets (Zaheer et al., 2017, theorem 2): rho of the mean of phi over the elements.

    The last layer of phi is linear, so that it may follow the mean: once for a set instead of once for an element.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.phi = mlp.layers(1, hidden, hidden)
        self.rho = mlp.layers(hidden, hidden, 1)

    def forward(self, sets: torch.Tensor) -> torch.Tensor:
        """Sets of scalars (B, E) to logits (B, 1)."""
        first, _, last = self.phi
        assert isinstance(first, nn.Linear)
        return self.rho(last(_mean_activation(sets, first.weight.squeeze(1), first.bias)))


def _mean_activation(sets: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The mean over sets (B, E) of relu(weight s + bias): (B, H).

    Each unit is linear in the elements that make it active: their number and their sum give its mean, and its gradient.
    """
    active, total = (torch.empty(len(sets), len(weight)) for _ in range(2))
    _active(*(part.detach().numpy() for part in (sets, weight, bias, active, total)))
    return (weight * total + bias * active) / sets.shape[1]


@compiled
def _active(sets: Any, weight: Any, bias: Any, number: Any, total: Any) -> None:
    """Fill number and total (B, H) of the elements of each set (B, E) for which weight s + bias (H,) is above 0."""
    for row in range(len(sets)):
        number[row] = 0
        total[row] = 0
        for element in sets[row]:
            for unit in range(len(weight)):
                on = np.float32(weight[unit] * element + bias[unit] > 0)
                number[row, unit] += on
                total[row, unit] += on * element


class PointCloudSets(nn.Module):
    """DeepSets' network for point clouds: three max-equivariant layers with tanh, the maximum over the set, dropout."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.phi = nn.ModuleList([nn.Linear(3, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)])
        self.rho = nn.Sequential(
            nn.Dropout(0.5), nn.Linear(hidden, hidden), nn.Tanh(), nn.Dropout(0.5), nn.Linear(hidden, 1)
        )

    def forward(self, clouds: torch.Tensor) -> torch.Tensor:
        """Points (B, E, 3) to logits (B, 1)."""
        for layer in self.phi:
            clouds = layer(clouds - clouds.amax(dim=1, keepdim=True)).tanh()
        return self.rho(clouds.amax(dim=1))


class EncoderMISet(_Network):
    """EncoderMI-S: a permutation-invariant network on the set of similarities.

    It reads what EncoderMI-V reads without sorting it: one network sees each similarity by itself, another the mean of
    what the first makes of them. Of the three it takes longest to train.
    """

    name = "encodermi-s"
    axis = None
    batch_size = 2048

    def _inputs(self, features: Features) -> npt.NDArray[np.float32]:
        similarities = super()._inputs(features)
        return clouds(similarities) if self.parameters.released else similarities

    def _network(self, width: int) -> nn.Module:
        return (PointCloudSets if self.parameters.released else DeepSets)(self.parameters.hidden)

    def _training(self) -> mlp.Training:
        if not self.parameters.released:
            return super()._training()
        released: mlp.Training = self.parameters.training(default_rate=1e-3)
        return replace(released, weight_decay=1e-7, epsilon=1e-3, clip=5.0)

    def _augment(self) -> mlp.Augment | None:
        return _turned_and_stretched if self.parameters.released else None


def clouds(similarities: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Each set of E similarities as points (0, 0, s), standardised over all 3 E coordinates of the set.

    Takes (N, E), returns (N, E, 3) float32; a set without spread stays at 0.

    Example:
        >>> found = clouds(np.array([[0.5, 0.5]], dtype=np.float32))
        >>> [[round(float(value), 3) for value in point] for point in found[0]]
        [[-0.707, -0.707, 1.414], [-0.707, -0.707, 1.414]]
    """
    points = np.zeros((*similarities.shape, 3), dtype=np.float64)
    points[:, :, 2] = similarities
    points -= points.mean(axis=(1, 2), keepdims=True)
    deviation = points.std(axis=(1, 2), keepdims=True)
    return np.asarray(points / np.where(deviation > 0, deviation, 1.0), dtype=np.float32)


def _turned_and_stretched(points: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Clouds (B, E, 3), each turned about the third axis by up to 0.1 pi and stretched along each by 0.8 to 1.25."""
    drawn = torch.rand(len(points), 4, generator=generator)
    angle = (drawn[:, 0] * 2 - 1) * 0.1 * math.pi
    cosine, sine = angle.cos()[:, None], angle.sin()[:, None]
    first, second, third = points.unbind(2)
    turned = torch.stack([cosine * first - sine * second, sine * first + cosine * second, third], dim=2)
    return turned * (0.8 + 0.45 * drawn[:, None, 1:])
