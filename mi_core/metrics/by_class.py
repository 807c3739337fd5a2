"""An attack's success class by class: who is hit hardest is hidden by the mean over all.

The AUC of the worst of many classes is above the mean by chance alone; the intervals are those of each class by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mi_core.checks import check_shape
from mi_core.metrics.delong import auc
from mi_core.metrics.membership import recall
from mi_core.records import BoolArray, Estimate, FloatArray

FEWEST = 5  # samples of either side; with fewer an interval says nothing


@dataclass(frozen=True)
class ClassResult:
    """The result of an attack on the samples of one class; rates at the threshold of the whole attack."""

    n_member: int
    n_nonmember: int
    auc: Estimate
    recall: Estimate
    false_positive_rate: Estimate


def by_class(
    scores: FloatArray,
    member: BoolArray,
    classes: npt.NDArray[np.int64],
    threshold: float,
    groups: npt.NDArray[np.int64] | None = None,
) -> dict[int, ClassResult]:
    """Results by class, ascending; classes with fewer than 5 members or non-members (groups of them) are left out.

    Args:
        scores: (N,) higher = more likely a member.
        member: (N,) bool.
        classes: (N,) any integers; below 0: no class.
        threshold: a score at or above it is called a member.
        groups: (N,) integers, equal for samples that depend on each other; without them all are independent.

    Raises:
        ShapeError: classes are not (N,); otherwise as `mi_core.metrics.delong.auc`.

    Example:
        >>> scores, member = np.arange(20.0), np.arange(20) >= 10
        >>> results = by_class(scores, member, np.zeros(20, dtype=np.int64), 12.0)
        >>> results[0].auc.value, results[0].recall.value, results[0].false_positive_rate.value
        (1.0, 0.8, 0.0)
    """
    check_shape("classes", classes, "N", N=len(scores))
    results = {}
    for number in np.unique(classes[classes >= 0]).tolist():
        rows = classes == number
        chosen, inside, own = scores[rows], member[rows], None if groups is None else groups[rows]
        units = [int(side.sum()) if own is None else len(np.unique(own[side])) for side in (inside, ~inside)]
        if min(units) >= FEWEST:
            results[number] = ClassResult(
                int(inside.sum()),
                int((~inside).sum()),
                auc(chosen, inside, own),
                recall(chosen, inside, threshold, own),
                recall(chosen, ~inside, threshold, own),
            )
    return results
