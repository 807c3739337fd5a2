"""Attacks that compare one number per sample with a threshold, and the two ways to choose the threshold."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mi_core.attacks.base import Attack, Scores, State
from mi_core.checks import NumericError, check_range
from mi_core.records import ALL_CALLED, Features


class ThresholdAttack(Attack):
    """An attack whose score is its statistic; the threshold makes the fewest errors on the reference."""

    @abstractmethod
    def statistic(self, features: Features) -> Scores:
        """(N,) the number that is compared with the threshold."""

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> State:
        return {"threshold": np.array(best_threshold(self.statistic(features), member))}

    def _score(self, features: Features, state: State) -> Scores:
        return self.statistic(features)


@dataclass(frozen=True)
class ConformalParameters:
    """Settings of an attack whose threshold is conformal.

    Args:
        fpr: share of non-members that may be called members, in (0, 1]; .05 takes 19 known ones, .01 takes 99.
    """

    fpr: float = 0.05

    def __post_init__(self) -> None:
        check_range("fpr", self.fpr, 0, 1, open_low=True)


class ConformalAttack(ThresholdAttack):
    """A threshold attack that is fitted on known non-members alone, for the false-positive rate ``fpr``."""

    reference = frozenset({"nonmembers"})

    @property
    def needed_nonmembers(self) -> int:
        """Enough for the false-positive rate ``fpr``."""
        return least_nonmembers(self.parameters.fpr)

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> State:
        scores = self.statistic(features)[~member]
        return {"threshold": np.array(conformal_threshold(scores, self.parameters.fpr, self.name))}


def best_threshold(scores: Scores, member: npt.NDArray[np.bool_]) -> float:
    """The threshold with the fewest errors when ``score >= threshold`` is called a member (EncoderMI, section 4.3).

    Candidates are the midpoints between neighbouring scores, the lowest score, and just above the highest. Of equally
    good ones the lowest is taken.

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


def least_nonmembers(fpr: float) -> int:
    """How many known non-members a conformal threshold for this false-positive rate needs.

    Example:
        >>> least_nonmembers(0.05)
        19
    """
    return math.ceil(1 / fpr) - 1


def conformal_threshold(scores: Scores, fpr: float, name: str) -> float:
    """The least threshold that a new, exchangeable non-member reaches with a probability of at most ``fpr``.

    Args:
        scores: (N,) of known non-members.
        fpr: false-positive rate, in (0, 1]; at 1 every sample is called a member.
        name: of the attack, for the error.

    Raises NumericError: too few non-members for such a rate.

    Example:
        >>> bool(2.0 < conformal_threshold(np.array([1.0, 2.0, 0.0]), 0.25, "x") < 2.001)
        True
    """
    ranked = np.sort(scores)
    rank = math.ceil((1 - fpr) * (len(ranked) + 1))  # from 1, and 0 for all; above n no score is high enough
    if rank > len(ranked):
        raise NumericError(
            f"{name} at fpr = {fpr:g} needs {least_nonmembers(fpr)} known non-members, got {len(ranked)}"
        )
    return float(np.nextafter(ranked[rank - 1], np.inf)) if rank else ALL_CALLED
