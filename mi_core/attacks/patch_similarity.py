"""EncoderMI's Baseline-E (Liu et al., CCS 2021, section 5.1): how alike an encoder finds the patches of one image.

It carries an attack on embeddings of sentences over to images: a patch is to the image what a word is to the sentence,
and something like an augmented view of it. An image is cut into a grid of disjoint patches, each queried by itself; the
score is the mean cosine of the middle patch with the others, the threshold the one with the fewest errors on the
reference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mi_core.attacks.base import Scores
from mi_core.attacks.threshold import ThresholdAttack
from mi_core.checks import ConfigError
from mi_core.features import Measure
from mi_core.features.patch_similarity import CenterSimilarity
from mi_core.records import Features


@dataclass(frozen=True)
class PatchSimilarityParameters:
    """Settings of Baseline-E.

    Args:
        grid: rows and columns of patches; the paper tries 3x3, 3x1 and 3x5.
    """

    grid: str = "3x3"

    def __post_init__(self) -> None:
        patches_of(self.grid)


class PatchSimilarity(ThresholdAttack):
    """Mean cosine of the middle patch with the others.

    It needs no augmentation. The paper finds it better than guessing and worse than EncoderMI.
    """

    name = "patch-similarity"
    queries = "9"
    threat_model = "embeddings of an image's patches; a shadow encoder, or known members and non-members"
    source = "EncoderMI (CCS 2021), section 5.1, Baseline-E"
    reference = frozenset({"shadow", "known"})
    Parameters = PatchSimilarityParameters

    @property
    def needs(self) -> tuple[Measure, ...]:
        """Cosines of the middle patch with the others."""
        return (patches_of(self.parameters.grid),)

    def statistic(self, features: Features) -> Scores:
        """(N,) mean cosine of the middle patch with the others."""
        return np.asarray(features[self.needs[0]].mean(axis=1, dtype=np.float64))


def patches_of(grid: str) -> CenterSimilarity:
    """The measure of a grid that is written as rows x columns.

    Raises ConfigError: it is not, or no patch is in the middle.

    Example:
        >>> patches_of("3x1")
        CenterSimilarity(rows=3, columns=1)
    """
    rows, _, columns = grid.partition("x")
    if not (rows.isdigit() and columns.isdigit()):
        raise ConfigError(f"grid = {grid!r}, allowed: rows x columns such as 3x3")
    return CenterSimilarity(int(rows), int(columns))
