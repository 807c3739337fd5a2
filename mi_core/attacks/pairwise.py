"""The mean similarity of an image's views: the statistic that several attacks share (EncoderMI, CCS 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mi_core.attacks.base import Attack, Scores
from mi_core.checks import check_choice
from mi_core.features import Measure
from mi_core.features.pairwise_similarity import METRICS, PairwiseSimilarity
from mi_core.records import Features


@dataclass(frozen=True)
class PairwiseParameters:
    """Settings of an attack on the similarities of views.

    Args:
        metric: how alike two embeddings are: ``cosine``, ``correlation`` or ``euclidean`` (EncoderMI, table 3).
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
