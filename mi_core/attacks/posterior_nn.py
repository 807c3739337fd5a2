"""Neural networks on the posteriors of a classifier.

``posterior-nn`` is the NN-based attack of ContrastiveLeaks (He and Zhang, CCS 2021, section 3.2): the two largest
posteriors and whether the prediction is right, three layers with 32 hidden neurons each, Adam at 0.05 for 100 epochs.
The released script has Adam at 1e-3 and a ReLU on its two outputs as well: ``variant: released``. With ``aggregate``
the classifier is asked for augmented views instead of the image (section 7): their posteriors are averaged, or all
enter side by side.

``posterior-mlp`` is the attack of the additive logistic mechanism's paper (appendix B): all posteriors and the true
class into five hidden layers with ReLU, Adam at 1e-3. The paper gives no widths and trains with Keras's defaults, of
which batches of 32 are taken here; its number of epochs is not told.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mi_core import mlp
from mi_core.attacks.metric import ClassifierAttack, posteriors
from mi_core.attacks.network import HiddenParameters, NetworkAttack
from mi_core.checks import VARIANTS, check_choice, check_fields
from mi_core.features import Measure
from mi_core.features.embedding import Embedding, ViewEmbeddings
from mi_core.records import Features


@dataclass(frozen=True)
class PosteriorNNParameters:
    """Settings of the NN-based attack.

    Args:
        variant: ``paper``, or ``released`` for what the authors' script does.
        top: how many of the largest posteriors enter.
        aggregate: ``none``: the image itself is asked; ``mean`` or ``concatenation`` of the posteriors of its views.
        hidden: width of the hidden layers.
        learning_rate: of Adam; None: 0.05, and 1e-3 of the released variant.
        epochs: passes over the reference.
        batch_size: samples of the reference per step.
    """

    variant: str = "paper"
    top: int = 2
    aggregate: str = "none"
    hidden: int = 32
    learning_rate: float | None = None
    epochs: int = 100
    batch_size: int = 256

    def __post_init__(self) -> None:
        check_choice("variant", self.variant, VARIANTS)
        check_choice("aggregate", self.aggregate, ("none", "mean", "concatenation"))
        check_fields(self, "top", "hidden", low=1)
        self.training()

    def training(self) -> mlp.Training:
        """Optimizer and schedule."""
        usual = 0.05 if self.variant == "paper" else 1e-3
        rate = usual if self.learning_rate is None else self.learning_rate
        return mlp.Training(rate, self.epochs, self.batch_size)


class PosteriorNN(ClassifierAttack, NetworkAttack):
    """A network on the largest posteriors and the correctness of the prediction.

    A classifier is surer of what it was trained on, and right more often.
    """

    name = "posterior-nn"
    threat_model = "largest posteriors and the true class; a shadow classifier trained on own data"
    source = "ContrastiveLeaks (CCS 2021), sections 3.2 and 7"
    reference = frozenset({"shadow", "known"})
    Parameters = PosteriorNNParameters

    @property
    def needs(self) -> tuple[Measure, ...]:
        """Logits of the image itself, or of its views."""
        return (Embedding() if self.parameters.aggregate == "none" else ViewEmbeddings(),)

    def _inputs(self, features: Features) -> npt.NDArray[np.float32]:
        logits = features[self.needs[0]]
        probabilities = posteriors(logits[:, None] if logits.ndim == 2 else logits)  # (N, V, L)
        if self.parameters.aggregate == "mean":
            probabilities = probabilities.mean(axis=1, keepdims=True)
        right = probabilities.argmax(axis=2) == self._labels(features, probabilities.shape[2])[:, None]
        largest = -np.sort(-probabilities, axis=2)[:, :, : self.parameters.top]
        inputs = np.concatenate([largest, right[:, :, None]], axis=2)
        return np.asarray(inputs.reshape(len(inputs), -1), dtype=np.float32)

    def _network(self, width: int) -> nn.Module:
        if self.parameters.variant == "paper":
            return super()._network(width)
        hidden = self.parameters.hidden
        return nn.Sequential(mlp.layers(width, hidden, hidden, 2), nn.ReLU(), _Difference())


class _Difference(nn.Module):
    """Two logits to the one whose sigmoid is the softmax of the second: (B, 2) to (B, 1)."""

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits[:, 1:] - logits[:, :1]


@dataclass(frozen=True)
class PosteriorMLPParameters(HiddenParameters):
    """Settings of the network.

    Args:
        hidden: width of the five hidden layers.
    """

    hidden: int = 64
    learning_rate: float = 1e-3
    epochs: int = 50
    batch_size: int = 32


class PosteriorMLP(ClassifierAttack, NetworkAttack):
    """A network of five hidden layers on all posteriors and the true class.

    It sees how the posteriors are spread over all classes, where `posterior-nn` sees the largest alone. The additive
    logistic mechanism is measured against this attack.
    """

    name = "posterior-mlp"
    threat_model = "all posteriors of one query and the true class; a shadow classifier trained on own data"
    source = "Additive logistic mechanism, section 6 and appendix B"
    reference = frozenset({"shadow", "known"})
    Parameters = PosteriorMLPParameters

    def _inputs(self, features: Features) -> npt.NDArray[np.float32]:
        probabilities = posteriors(features[Embedding()])
        classes = probabilities.shape[1]
        labels = np.eye(classes)[self._labels(features, classes)]
        return np.concatenate([probabilities, labels], axis=1).astype(np.float32)

    def _network(self, width: int) -> nn.Module:
        return mlp.layers(width, *[self.parameters.hidden] * 5, 1)
