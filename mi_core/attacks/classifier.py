"""The base of attacks on a classifier: they see its posteriors, and know the true class of every sample.

A classifier is an encoder with the output ``logits``: trained with labels, or a linear layer on a frozen encoder.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mi_core.attacks.base import Attack
from mi_core.checks import ConfigError
from mi_core.features import Measure
from mi_core.features.embedding import Embedding
from mi_core.records import Features, FloatArray

Posteriors = npt.NDArray[np.float64]


class ClassifierAttack(Attack):
    """An attack that reads the logits of a classifier and knows the true classes."""

    outputs = ("logits",)
    labelled = True

    @property
    def needs(self) -> tuple[Measure, ...]:
        """The logits of the image itself."""
        return (Embedding(),)

    def _labels(self, features: Features, classes: int) -> npt.NDArray[np.int64]:
        assert features.labels is not None
        if len(features) and not (features.labels.min() >= 0 and features.labels.max() < classes):
            given = f"{features.labels.min()} to {features.labels.max()}"
            raise ConfigError(f"{self.name} is given classes {given} for {classes} posteriors, 0 to {classes - 1}")
        return features.labels


def posteriors(logits: FloatArray) -> Posteriors:
    """Softmax of logits (..., L) over the last axis, in float64.

    Example:
        >>> posteriors(np.array([[0.0, 0.0]])).tolist()
        [[0.5, 0.5]]
    """
    shifted = np.asarray(logits, dtype=np.float64)
    shifted = np.exp(shifted - shifted.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


def revealed(probabilities: Posteriors, top: int | None) -> Posteriors:
    """Posteriors (N, L) of which only the ``top`` largest are shown; the rest is spread evenly over the other classes.

    So metrics of all posteriors are computed when few are revealed (ContrastiveLeaks, CCS 2021, figure 6). Of equal
    ones the first are shown.

    Example:
        >>> revealed(np.array([[0.5, 0.3, 0.2, 0.0]]), 2).round(3).tolist()
        [[0.5, 0.3, 0.1, 0.1]]
    """
    count = probabilities.shape[1]
    if top is None or top >= count:
        return probabilities
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
    shown = np.take_along_axis(probabilities, order, axis=1)
    left = (1 - shown.sum(axis=1, keepdims=True)).clip(0) / (count - top)
    spread = np.repeat(left, count, axis=1)
    np.put_along_axis(spread, order, shown, axis=1)
    return spread
