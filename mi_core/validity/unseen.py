"""The score of an image on reference encoders: its mean over those that did not see it, on one scale.

What it explains of the score on the target says nothing about use: some images score high on any encoder. The answer
for a single image is of what is left, as Watson et al., "On the importance of difficulty calibration in membership
inference attacks" (ICLR 2022) calibrate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mi_core.checks import check_shape
from mi_core.records import BoolArray, FloatArray


@dataclass(frozen=True)
class Scale:
    """The mean and the standard deviation of an encoder's scores, by which those of several encoders compare."""

    centre: float = 0.0
    spread: float = 1.0

    @classmethod
    def fit(cls, scores: FloatArray) -> Scale:
        """The scale of some scores; where all are equal the spread counts as 1."""
        return cls(float(scores.mean()), float(scores.std()) or 1.0)


@dataclass(frozen=True)
class Calibration:
    """The line by which the score on the target follows that on the references."""

    slope: float  # change of the score for a change of 1 on the references
    centre: float  # mean on the references

    @classmethod
    def fit(cls, scores: FloatArray, beside: FloatArray) -> Calibration:
        """The line of least squares through images that surely were not used.

        Takes scores (N,) on the target, and beside (N,) on the references; where all are equal the slope is 0. Raises
        ShapeError: the numbers of images differ.
        """
        check_shape("beside", beside, "N", N=len(scores))
        centre = float(beside.mean())
        shifted = beside - centre
        square = float(shifted @ shifted)
        return cls(float(shifted @ scores) / square if square > 0 else 0.0, centre)

    def __call__(self, scores: FloatArray, beside: FloatArray) -> npt.NDArray[np.float64]:
        """The rest (N,) of scores (N,) when the references' part (N,) is taken out.

        Example:
            >>> Calibration(2.0, 0.5)(np.array([3.0, 1.0]), np.array([1.5, 0.5])).tolist()
            [1.0, 1.0]
        """
        return np.asarray(scores - self.slope * (beside - self.centre), dtype=np.float64)


def mean_of_unseen(
    scores: Sequence[FloatArray], seen: Sequence[BoolArray], scales: Sequence[Scale]
) -> npt.NDArray[np.float64]:
    """The mean score (N,) of every image over the encoders that did not see it.

    Args:
        scores: (N,) of each encoder.
        seen: (N,) which images each was trained on; every image is unseen by one at least.
        scales: of each encoder's scores.

    Raises ShapeError: the encoders have scores of different numbers of images.

    Example:
        >>> nothing, first = np.array([False, False]), np.array([True, False])
        >>> mean_of_unseen([np.array([9.0, 2.0]), np.array([1.0, 4.0])], [first, nothing], [Scale(), Scale()]).tolist()
        [1.0, 3.0]
    """
    total, count = np.zeros(len(scores[0])), np.zeros(len(scores[0]))
    for own, known, scale in zip(scores, seen, scales, strict=True):
        check_shape("scores", own, "N", N=len(total))
        check_shape("seen", known, "N", N=len(total))
        total[~known] += ((own - scale.centre) / scale.spread)[~known]
        count += ~known
    return total / count
