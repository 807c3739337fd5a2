"""Metric-based attacks on classifiers (Song and Mittal, USENIX Security 2021), as in ContrastiveLeaks (CCS 2021).

With the posteriors p of an image and its true class y (section 3.2.2 of the former): correctness is whether the largest
posterior is that of y, confidence p_y, entropy -sum p_i log p_i, and modified entropy
-(1 - p_y) log p_y - sum over the other i of p_i log(1 - p_i). Entropies are negated, so that higher means a member.
Logarithms are taken of at least 1e-30, as in the released code.

A value is compared with the threshold of its class, which has the best mean of true-positive and true-negative rate on
a shadow classifier. The score is the value minus that threshold, so that one ranking holds for all classes; the
released code ranks by the values themselves, as ``per_class: false`` does.

The base of attacks on a classifier: they see its posteriors, and know the true class of every sample.

A classifier is an encoder with the output ``logits``: trained with labels, or a linear layer on a frozen encoder.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from mi_core.attacks.base import Attack, Scores, State
from mi_core.checks import ConfigError, check_fields
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
    return np.asarray(softmax(np.asarray(logits, dtype=np.float64), axis=-1))


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


_LEAST = 1e-30
_Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MetricParameters:
    """Settings of the metric-based attacks.

    Args:
        top: how many of its largest posteriors the classifier reveals, the rest being spread evenly; None: all.
        per_class: whether each class has a threshold of its own, or all have one.
    """

    top: int | None = None
    per_class: bool = True

    def __post_init__(self) -> None:
        check_fields(self, "top", low=1)


class _Metric(ClassifierAttack):
    threat_model = "posteriors of one query and the true class; a shadow classifier trained on own data"
    source = "Song and Mittal (USENIX Security 2021), section 3.2.2; ContrastiveLeaks (CCS 2021), section 3.2"
    reference = frozenset({"shadow", "known"})
    Parameters = MetricParameters

    @abstractmethod
    def _metric(self, probabilities: Posteriors, labels: _Labels) -> Scores:
        """(N,) higher = more likely a member."""

    def statistic(self, features: Features) -> Scores:
        """(N,) the metric itself."""
        probabilities = revealed(posteriors(features[Embedding()]), self.parameters.top)
        return self._metric(probabilities, self._labels(features, probabilities.shape[1]))

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> State:
        values = self.statistic(features)
        common = best_balanced_threshold(values, member)
        classes = features[Embedding()].shape[1]
        own = np.full(classes, common)
        if self.parameters.per_class:
            labels = self._labels(features, classes)
            for label in np.unique(labels):
                rows = labels == label
                if 0 < member[rows].sum() < rows.sum():
                    own[label] = best_balanced_threshold(values[rows], member[rows])
            return {"threshold": np.array(0.0), "class_thresholds": own}
        return {"threshold": np.array(common), "class_thresholds": np.zeros(classes)}

    def _score(self, features: Features, state: State) -> Scores:
        thresholds = state["class_thresholds"]
        return np.asarray(self.statistic(features) - thresholds[self._labels(features, len(thresholds))])


class MetricCorrectness(_Metric):
    """Metric-corr: a member is what is classified correctly.

    The plainest of all attacks: its accuracy says how much the classifier overfits. It needs no shadow; the reference
    has nothing to teach it, and neither setting changes what it says.
    """

    name = "metric-corr"

    def _metric(self, probabilities: Posteriors, labels: _Labels) -> Scores:
        return np.asarray(probabilities.argmax(axis=1) == labels, dtype=np.float64)

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> State:
        classes = features[Embedding()].shape[1]
        self._labels(features, classes)
        return {"threshold": np.array(0.5), "class_thresholds": np.zeros(classes)}


class MetricConfidence(_Metric):
    """Metric-conf: the posterior of the true class.

    A classifier is surer of the class of what it was trained on.
    """

    name = "metric-conf"

    def _metric(self, probabilities: Posteriors, labels: _Labels) -> Scores:
        return _true_class_posteriors(probabilities, labels)


class MetricLoss(_Metric):
    """Metric-loss: the negated cross-entropy (Yeom et al., CSF 2018, section 3).

    It is the logarithm of what metric-conf reads, so with one threshold for all classes both say the same; with one
    per class the two scales make a difference.
    """

    name = "metric-loss"
    source = "Yeom et al. (CSF 2018), section 3; histograms of ContrastiveLeaks (CCS 2021), figure 3"

    def _metric(self, probabilities: Posteriors, labels: _Labels) -> Scores:
        return _log(_true_class_posteriors(probabilities, labels))


class MetricEntropy(_Metric):
    """Metric-ent: the negated entropy of the posteriors.

    Low entropy is a sure classifier. It does not look at whether the classifier is right, and so takes what is surely
    misclassified for a member.
    """

    name = "metric-ent"

    def _metric(self, probabilities: Posteriors, labels: _Labels) -> Scores:
        return np.asarray((probabilities * _log(probabilities)).sum(axis=1))


class MetricModifiedEntropy(_Metric):
    """Metric-ment: the negated modified entropy, which is low only where the true class has the large posterior.

    Entropy that knows the true class: what is surely misclassified has a high one.
    """

    name = "metric-ment"

    def _metric(self, probabilities: Posteriors, labels: _Labels) -> Scores:
        of_class = _true_class_posteriors(probabilities, labels)
        others = probabilities * _log(1 - probabilities)
        others[np.arange(len(labels)), labels] = 0
        return np.asarray((1 - of_class) * _log(of_class) + others.sum(axis=1))


def best_balanced_threshold(values: Scores, member: npt.NDArray[np.bool_]) -> float:
    """Of all observed values the one with the best mean of true-positive and true-negative rate for ``>=``.

    Of equally good ones the lowest is taken; both kinds of member (N,) are present.

    Example:
        >>> best_balanced_threshold(np.array([0.1, 0.4, 0.3, 0.9]), np.array([False, False, True, True]))
        0.3
    """
    candidates = np.unique(values)
    inside, outside = np.sort(values[member]), np.sort(values[~member])
    true_positive_rates = 1 - np.searchsorted(inside, candidates) / len(inside)
    true_negative_rates = np.searchsorted(outside, candidates) / len(outside)
    return float(candidates[np.argmax(true_positive_rates + true_negative_rates)])


def _true_class_posteriors(probabilities: Posteriors, labels: _Labels) -> Scores:
    return np.asarray(probabilities[np.arange(len(labels)), labels])


def _log(values: Scores) -> Scores:
    return np.asarray(np.log(np.maximum(values, _LEAST)))
