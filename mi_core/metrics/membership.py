"""One run of an attack in numbers: accuracy, precision, recall, AUC and the true-positive rate at a low FPR.

A sample is called a member if its score is at or above the threshold. Accuracy, precision and recall take a threshold
fixed elsewhere (on a shadow encoder, on known samples) and carry Clopper-Pearson intervals. The true-positive rate at
a false-positive rate (Carlini et al., "Membership inference attacks from first principles", S&P 2022, section III)
takes its threshold from the very non-members it is measured on, so its interval is a bootstrap of both classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn import metrics as sklearn_metrics

from mi_core.checks import ConfigError, check_range
from mi_core.metrics.delong import auc, split_scores
from mi_core.metrics.intervals import clopper_pearson, rate
from mi_core.records import BoolArray, Estimate, FloatArray

LOW_FPRS = (0.001, 0.01)


@dataclass(frozen=True)
class MembershipMetrics:
    """What one attack reached on one target; ``precision`` is None where no sample was called a member."""

    n_member: int
    n_nonmember: int
    accuracy: Estimate
    precision: Estimate | None
    recall: Estimate
    auc: Estimate
    tpr_at_fpr: dict[float, Estimate]
    threshold: float

    def as_json(self) -> dict[str, Any]:
        """The metrics under the names of report.json; what is missing is absent."""
        rates = {"accuracy": self.accuracy, "precision": self.precision, "recall": self.recall, "auc": self.auc}
        return {
            "n_member": self.n_member,
            "n_nonmember": self.n_nonmember,
            **{name: estimate.as_json() for name, estimate in rates.items() if estimate is not None},
            "tpr_at_fpr": {f"{fpr:g}": estimate.as_json() for fpr, estimate in self.tpr_at_fpr.items()},
            "threshold": self.threshold,
        }


def accuracy(scores: FloatArray, member: BoolArray, threshold: float) -> Estimate:
    """Share of the samples (N,) called right when ``score >= threshold`` is called a member.

    Raises:
        ShapeError, ConfigError, NumericError: as `mi_core.metrics.delong.split_scores`; ConfigError also for a
            threshold that is NaN or infinite.

    Example:
        >>> accuracy(np.array([0.9, 0.2, 0.6, 0.1]), np.array([True, True, False, False]), 0.5).value
        0.5
    """
    hits, alarms, n_member, n_nonmember = _called(scores, member, threshold)
    return rate(hits + n_nonmember - alarms, n_member + n_nonmember)


def precision(scores: FloatArray, member: BoolArray, threshold: float) -> Estimate | None:
    """Share of the samples called members that are members; None where none was called one. Raises as `accuracy`.

    Example:
        >>> precision(np.array([0.9, 0.2]), np.array([True, False]), 1.0) is None
        True
    """
    hits, alarms, _, _ = _called(scores, member, threshold)
    return rate(hits, hits + alarms) if hits + alarms else None


def recall(scores: FloatArray, member: BoolArray, threshold: float) -> Estimate:
    """Share of the members that were called members. Raises as `accuracy`.

    Example:
        >>> recall(np.array([0.9, 0.2, 0.3]), np.array([True, True, False]), 0.5).value
        0.5
    """
    hits, _, n_member, _ = _called(scores, member, threshold)
    return rate(hits, n_member)


def tpr_at_fpr(scores: FloatArray, member: BoolArray, fpr: float, *, seed: int, resamples: int = 1000) -> Estimate:
    """The largest true-positive rate whose empirical false-positive rate is at most ``fpr``.

    With k = floor(fpr K) false positives allowed among K non-members, the members above the (k+1)-th highest non-member
    count; samples tied with it do not. The interval is the percentile interval of the bootstrap that resamples both
    classes and finds the threshold anew, drawn in closed form: the (k+1)-th of K resampled ranks is floor(K U) with U
    from Beta(k+1, K-k), and the members above it are binomial. So the cost does not grow with N after one sort. It
    is never narrower than the Clopper-Pearson interval at the observed threshold (which alone covers about 50 %).

    Args:
        scores: (N,) higher = more likely a member.
        member: (N,) bool.
        fpr: in (0, 1].
        seed: of the bootstrap.
        resamples: bootstrap draws.

    Returns:
        the rate, with ``false_positives`` and, for fewer than 10 / fpr non-members, ``supported`` False; its interval
        then covers less than 95 %.

    Raises:
        ShapeError, NumericError: as `mi_core.metrics.delong.split_scores`.
        ConfigError: as there, or fpr is not within (0, 1], or resamples are below 1.

    Example:
        >>> scores, member = np.array([4.0, 3.0, 1.0, 2.0, 0.0]), np.array([True, True, True, False, False])
        >>> estimate = tpr_at_fpr(scores, member, 0.1, seed=0)
        >>> round(estimate.value, 3), estimate.false_positives, estimate.supported
        (0.667, 0, False)
    """
    members, nonmembers = split_scores(scores, member)
    check_range("fpr", fpr, 0.0, 1.0, open_low=True)
    check_range("resamples", resamples, 1)
    n_member, n_nonmember = len(members), len(nonmembers)
    allowed = math.floor(fpr * n_nonmember + 1e-9)  # 0.29 * 100 is 28.999...
    if allowed >= n_nonmember:
        low, high = clopper_pearson(n_member, n_member)
        return Estimate(1.0, low, high, n_member + n_nonmember, n_nonmember >= 10 / fpr, n_nonmember)
    falling = -np.sort(-nonmembers)
    members_above = n_member - np.searchsorted(np.sort(members), falling, "right")  # (K,) by rank of the threshold
    hits = int(members_above[allowed])
    generator = np.random.default_rng(seed)
    ranks = (n_nonmember * generator.beta(allowed + 1, n_nonmember - allowed, resamples)).astype(np.intp)
    chances = members_above[np.minimum(ranks, n_nonmember - 1)] / n_member
    low, high = np.quantile(generator.binomial(n_member, chances) / n_member, [0.025, 0.975])
    exact_low, exact_high = clopper_pearson(hits, n_member)
    return Estimate(
        hits / n_member,
        min(float(low), exact_low),
        max(float(high), exact_high),
        n_member + n_nonmember,
        supported=n_nonmember >= 10 / fpr,
        false_positives=int((nonmembers > falling[allowed]).sum()),
    )


def roc_curve(
    scores: FloatArray, member: BoolArray
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The ROC curve of scikit-learn: false- and true-positive rates, rising, and their thresholds, falling from inf.

    Raises:
        ShapeError, ConfigError, NumericError: as `mi_core.metrics.delong.split_scores`.

    Example:
        >>> fpr, tpr, thresholds = roc_curve(np.array([0.9, 0.1]), np.array([True, False]))
        >>> fpr.tolist(), tpr.tolist(), thresholds.tolist()
        ([0.0, 0.0, 1.0], [0.0, 1.0, 1.0], [inf, 0.9, 0.1])
    """
    split_scores(scores, member)
    fpr, tpr, thresholds = sklearn_metrics.roc_curve(member, scores)
    return fpr, tpr, thresholds


def published_tpr(precision: float) -> float | None:
    """What LpLA's tables print as TPR at 0.1 % FPR: a true-positive rate in percent that only restates the precision.

    Every cell of its table 2 equals 0.1 p / (1 - p) within rounding: the rate is read off the ROC curve of hard
    decisions by linear interpolation, so a guess gives 0.1. `tpr_at_fpr` is the rate of the scores themselves.

    Args:
        precision: of the decisions, in [0, 1].

    Returns:
        Percent, or None for a precision of 1, where the interpolation has no end.

    Example:
        >>> round(published_tpr(0.77), 3)
        0.335
    """
    return None if precision >= 1 else 0.1 * precision / (1 - precision)


def evaluate(scores: FloatArray, member: BoolArray, threshold: float, *, seed: int) -> MembershipMetrics:
    """All metrics of one run: ``threshold`` comes from elsewhere, ``seed`` feeds the bootstrap of `tpr_at_fpr`.

    Raises:
        ShapeError, ConfigError, NumericError: as `accuracy`; ShapeError also for a class of fewer than 2 samples.

    Example:
        >>> scores, member = np.linspace(0, 1, 40), np.arange(40) >= 20
        >>> evaluate(scores, member, 0.5, seed=0).accuracy.value
        1.0
    """
    return MembershipMetrics(
        n_member=int(np.sum(member)),
        n_nonmember=int(np.sum(~member)),
        accuracy=accuracy(scores, member, threshold),
        precision=precision(scores, member, threshold),
        recall=recall(scores, member, threshold),
        auc=auc(scores, member),
        tpr_at_fpr={fpr: tpr_at_fpr(scores, member, fpr, seed=seed) for fpr in LOW_FPRS},
        threshold=float(threshold),
    )


def _called(scores: FloatArray, member: BoolArray, threshold: float) -> tuple[int, int, int, int]:
    """Members called members, non-members called members, and the number of each."""
    members, nonmembers = split_scores(scores, member)
    if not math.isfinite(threshold):
        raise ConfigError(f"threshold = {threshold}, allowed: a finite number")
    return int((members >= threshold).sum()), int((nonmembers >= threshold).sum()), len(members), len(nonmembers)
