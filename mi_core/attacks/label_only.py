"""The label-only attack on classifiers: how far an image is from what is classified otherwise.

Members lie farther from the decision boundary than non-members (Choquette-Choo et al., ICML 2021; Li and Zhang, CCS
2021), so the length of the smallest change that alters the prediction is the score; what is misclassified has length 0
(ContrastiveLeaks, CCS 2021, section 3.2, which takes HopSkipJump as the Adversarial Robustness Toolbox has it, with
seven iterations). The threshold makes the fewest errors on a shadow classifier.

The distance costs up to ``queries`` queries per image, see `mi_core.features.boundary_distance`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mi_core.attacks.base import Scores
from mi_core.attacks.metric import ClassifierAttack
from mi_core.attacks.threshold import ThresholdAttack
from mi_core.features import Measure
from mi_core.features.boundary_distance import BoundaryDistance
from mi_core.records import Features


@dataclass(frozen=True)
class LabelOnlyParameters:
    """Settings of the search.

    Args:
        iterations: of HopSkipJump; 7 in ContrastiveLeaks.
        queries: the most that it may spend on an image.
    """

    iterations: int = 7
    queries: int = 2000

    def __post_init__(self) -> None:
        self.measure()

    def measure(self) -> BoundaryDistance:
        """Distance to the boundary, 2-norm over pixels in [0, 1]; 0 where the prediction is wrong."""
        return BoundaryDistance(self.iterations, self.queries)


class LabelOnly(ClassifierAttack, ThresholdAttack):
    """The distance of an image from the decision boundary of a classifier.

    It works where a classifier tells nothing but a class, and where a defense changes the posteriors alone. It costs
    about 1,500 queries per image of 32 pixels: ``count`` takes a part of each role.
    """

    name = "label-only"
    queries = "at most 2,000"
    threat_model = "predicted classes only, of many chosen images, and the true class; a shadow classifier"
    source = "ContrastiveLeaks (CCS 2021), section 3.2; HopSkipJump (S&P 2020)"
    reference = frozenset({"shadow", "known"})
    Parameters = LabelOnlyParameters

    @property
    def needs(self) -> tuple[Measure, ...]:
        """Distance to the boundary, 2-norm over pixels in [0, 1]; 0 where the prediction is wrong."""
        return (self.parameters.measure(),)

    def statistic(self, features: Features) -> Scores:
        """(N,) distance to the boundary."""
        return np.asarray(features[self.needs[0]], dtype=np.float64)
