"""Attribute inference: what an embedding tells of a person or thing beyond the task it was made for.

ContrastiveLeaks (He and Zhang, CCS 2021, section 4): the attacker sees embeddings, knows the sensitive attribute of
some (the auxiliary data) and trains a network to tell it from the embedding of others. The network has three layers
with 128 hidden neurons each, trained by SGD at 0.01 for 100 epochs (section 4.3); batches of 512 are the released
script's, which besides has three hidden layers and a ReLU on its outputs: ``variant: released``. Embeddings are
standardised by the auxiliary data, so that one learning rate suits encoders of any scale; the released variant takes
them as they are. ``variant: linear`` is not the paper's: a logistic regression whose L2 penalty is chosen by
cross-validation on the auxiliary data. With a few hundred auxiliary samples it tells more than the network does.

N samples, D width, K values of the attribute. A number means little beside the share of the most frequent value, so
that is always told with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.nn.functional as F
from torch import nn

from mi_core import mlp
from mi_core.attacks.network import HiddenParameters
from mi_core.checks import VARIANTS, ShapeError, check_choice, check_finite, check_range, check_shape
from mi_core.metrics.intervals import rate
from mi_core.records import Estimate, FloatArray

_Values = npt.NDArray[np.int64]
LINEAR = "linear"
_PENALTIES = tuple(10.0**power for power in range(-1, 6))  # of the squared weights, beside the summed loss
_FOLDS = 5


@dataclass(frozen=True)
class AttributeInferenceParameters(HiddenParameters):
    """Settings of the network and its training, by stochastic gradient descent.

    Args:
        variant: ``paper``, ``released`` for what the authors' script does, or ``linear`` for a regularised linear
            adversary, which has none of the other settings.
        layers: linear layers of the network; 3 in the paper, which tries up to 6.
    """

    variant: str = "paper"
    layers: int = 3
    hidden: int = 128
    learning_rate: float = 0.01
    epochs: int = 100
    batch_size: int = 512

    def __post_init__(self) -> None:
        check_choice("variant", self.variant, (*VARIANTS, LINEAR))
        check_range("layers", self.layers, 1)
        super().__post_init__()

    def training(self) -> mlp.Training:
        """Optimizer and schedule."""
        return replace(super().training(), optimizer="sgd")

    def network(self, width: int, values: int) -> nn.Module:
        """From embeddings (B, D) to one logit per value (B, K)."""
        if self.variant == "paper":
            return mlp.layers(width, *[self.hidden] * (self.layers - 1), values)
        return nn.Sequential(mlp.layers(width, *[self.hidden] * self.layers, values), nn.ReLU())


@dataclass(frozen=True)
class Inferred:
    """Shares of samples whose value is told right, each with its Clopper-Pearson interval."""

    right: npt.NDArray[np.bool_]  # (N,) bool, which of the samples attacked
    accuracy: Estimate  # of the N samples attacked
    # of the M auxiliary data, which the attacker learned from: far above `accuracy`, the attacker learned it by heart
    auxiliary_accuracy: Estimate
    majority: Estimate  # of the N by guessing the value that is most frequent in the auxiliary data


def infer(
    known: FloatArray,
    known_values: _Values,
    embeddings: FloatArray,
    values: _Values,
    *,
    classes: int,
    parameters: AttributeInferenceParameters | None = None,
    seed: int = 0,
) -> Inferred:
    """Train on the auxiliary data and tell the attribute of others.

    Args:
        known: (M, D) embeddings of the auxiliary data.
        known_values: (M,) int64 from 0.
        embeddings: (N, D) of the samples attacked.
        values: (N,) int64, the truth.
        classes: K, the number of values of the attribute.
        parameters: default: the paper's.
        seed: of weights and order.

    Raises ShapeError: the shapes do not fit, or one side is empty; NumericError: an embedding is not finite, or the
    training diverged.
    """
    chosen = parameters or AttributeInferenceParameters()
    count, width = check_shape("auxiliary embeddings", known, "M D")
    check_shape("auxiliary values", known_values, "M", M=count)
    tested, _ = check_shape("embeddings", embeddings, "N D", D=width)
    check_shape("values", values, "N", N=tested)
    if not count or not tested:
        raise ShapeError(f"attribute inference has {count} auxiliary and {tested} attacked samples, needs some of each")
    check_finite("auxiliary embedding", known)
    check_finite("embedding", embeddings)
    scale: dict[str, Any] = {"mean": np.array(0.0), "deviation": np.array(1.0)}
    if chosen.variant != "released":
        scale = mlp.standardisation(known)
    auxiliary, attacked = (mlp.standardised(part, scale) for part in (known, embeddings))
    if chosen.variant == LINEAR:
        told = _linear(auxiliary, known_values, (attacked, auxiliary), seed)
    else:
        targets = np.asarray(known_values, dtype=np.int64)
        made, training = partial(chosen.network, width, classes), chosen.training()
        network = mlp.fit(made, auxiliary, targets, training, seed=seed, loss=F.cross_entropy)
        told = [mlp.predict(network, part).argmax(axis=1) for part in (attacked, auxiliary)]
    majority = np.bincount(known_values, minlength=classes).argmax()
    right = told[0] == values, told[1] == known_values, majority == values
    return Inferred(right[0], *(rate(int(one.sum()), len(one)) for one in right))


def _linear(known: FloatArray, known_values: _Values, asked: Sequence[FloatArray], seed: int) -> list[_Values]:
    """The values that a logistic regression tells of each array, with the penalty of the best cross-validation.

    Of penalties that tell as many right the strongest counts.
    """
    from sklearn.linear_model import LogisticRegression  # here, since it takes long to import

    if len(np.unique(known_values)) == 1:
        return [np.full(len(part), known_values[0]) for part in asked]
    fold = np.random.default_rng(seed).permutation(len(known)) % min(_FOLDS, len(known))

    def fitted(penalty: float, rows: npt.NDArray[np.bool_]) -> Any:
        return LogisticRegression(C=1 / penalty, max_iter=1000).fit(known[rows], known_values[rows])

    def right(penalty: float) -> int:
        return sum(
            int((fitted(penalty, fold != held).predict(known[fold == held]) == known_values[fold == held]).sum())
            for held in np.unique(fold)
            if len(np.unique(known_values[fold != held])) > 1
        )

    best = max(_PENALTIES, key=lambda penalty: (right(penalty), penalty))
    model = fitted(best, np.ones(len(known), dtype=bool))
    return [model.predict(part) for part in asked]
