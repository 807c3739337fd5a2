"""The mean similarity of views against known non-members: EncoderMI-T without a shadow encoder.

The attacker sees embeddings of V augmented views of an image and knows some images that the target was not trained on.
The score is that of EncoderMI-T (Liu et al., CCS 2021, section 4.3), the mean over the pairs of views; an image is
called a member if it exceeds all but a chosen share of the known non-members. The threshold is the conformal one: with
n exchangeable non-members at most a share ``fpr`` of new ones lies at or above it, on average (Vovk et al., 2005).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mi_core.attacks.base import Attack
from mi_core.checks import NumericError, check_choice, check_range
from mi_core.features.pairwise_similarity import METRICS
from mi_core.records import Features


@dataclass(frozen=True)
class MeanCosineParameters:
    """Settings of the attack.

    Args:
        metric: how alike two embeddings are: ``cosine``, ``correlation`` or ``euclidean``.
        fpr: share of non-members that may be called members, in (0, 1); .05 takes 19 known ones, .01 takes 99.
    """

    metric: str = "cosine"
    fpr: float = 0.05

    def __post_init__(self) -> None:
        check_choice("metric", self.metric, METRICS)
        check_range("fpr", self.fpr, 0, 1, open_low=True)


class MeanCosine(Attack):
    """Mean similarity of an image's views, with a threshold from known non-members.

    For encoders that somebody else trained: nothing has to be trained, and no member has to be known. The known
    non-members (role `known-nonmember`; where candidates are audited, a part of the controls) must be of the kind of
    the audited images, else the threshold holds for others than those.
    """

    name = "mean-cosine"
    queries = "10 at 10 views"
    threat_model = "embeddings of augmented views; some known non-members, no shadow encoder"
    source = "score of EncoderMI-T (CCS 2021), section 4.3; conformal threshold"
    reference = frozenset({"nonmembers"})
    Parameters = MeanCosineParameters

    @property
    def needs(self) -> tuple[str, ...]:
        """Similarities of all pairs of views."""
        return (f"pairwise:{self.parameters.metric}",)

    @property
    def needed_nonmembers(self) -> int:
        """Enough to tell the share ``fpr``."""
        return least_nonmembers(self.parameters.fpr)

    def statistic(self, features: Features) -> npt.NDArray[np.float64]:
        """(N,) mean similarity of an image's views."""
        similarities = np.asarray(features.values[self.needs[0]], dtype=np.float64)
        means: npt.NDArray[np.float64] = similarities.mean(axis=1)
        return means

    def _fit(self, features: Features, member: npt.NDArray[np.bool_]) -> dict[str, npt.NDArray[Any]]:
        scores = self.statistic(features)[~member]
        return {"threshold": np.array(conformal_threshold(scores, self.parameters.fpr, self.name))}

    def _score(self, features: Features, state: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
        return self.statistic(features)


def least_nonmembers(fpr: float) -> int:
    """How many known non-members a conformal threshold for this share needs.

    Example:
        >>> least_nonmembers(0.05)
        19
    """
    return math.ceil(1 / fpr) - 1


def conformal_threshold(scores: npt.NDArray[np.float64], fpr: float, name: str) -> float:
    """The least threshold that a new, exchangeable non-member reaches with a probability of at most ``fpr``.

    Args:
        scores: (N,) of known non-members.
        fpr: share in (0, 1].
        name: of the attack, for the error.

    Raises:
        NumericError: fewer non-members than such a share can be told from.

    Example:
        >>> bool(2.0 < conformal_threshold(np.array([1.0, 2.0, 0.0]), 0.25, "x") < 2.001)
        True
    """
    ranked = np.sort(scores)
    rank = math.ceil((1 - fpr) * (len(ranked) + 1))  # from 1; above n no score is high enough
    if rank > len(ranked):
        raise NumericError(
            f"{name} at fpr = {fpr:g} needs {least_nonmembers(fpr)} known non-members, got {len(ranked)}"
        )
    return float(np.nextafter(ranked[rank - 1], np.inf))
