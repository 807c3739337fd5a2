"""An upper limit of what attacks reach on an encoder, and whether it keeps within a bound: an equivalence result.

"No evidence" is no evidence of absence. What a provider can show is that the AUC of every attack that was run is at
most so large, with a confidence of 95 %. The limit of one attack is the upper end of DeLong's interval with a chance of
5 % above it (`mi_core.metrics.delong.auc`), that of several is the largest of them.

Several limits need no correction. "All of these attacks stay below the bound" is rejected as soon as one is not, so the
hypothesis that is tested is a union (some attack has an AUC above the bound), and it is rejected only if every single
test rejects. Each has a level of 5 %, and so has all of it: the intersection-union test of Berger, "Multiparameter
hypothesis testing and acceptance sampling" (Technometrics 24, 1982). With several attacks it errs less often.

The other answer is not symmetric. ``not met`` is said as soon as the lower limit of a single attack is above the bound,
uncorrected for their number, so with many attacks that are exactly at the bound it is said by chance more often than in
5 % of cases. In doubt an encoder is not called bounded.

The AUC counts to one side, as in the verdict: members are expected to score higher. The limit is of these attacks on
these images. Nothing follows for another attack.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from mi_core.checks import ShapeError, check_range
from mi_core.metrics.delong import auc
from mi_core.records import BoolArray, Estimate, FloatArray

MET, NOT_MET, CANNOT_TELL = OUTCOMES = ("met", "not met", "cannot tell")
"""Whether a bound is kept within."""
LEVEL = 0.05
"""The chance beyond either limit."""


def auc_limits(scores: FloatArray, member: BoolArray, groups: npt.NDArray[np.integer[Any]] | None = None) -> Estimate:
    """The AUC of an attack; each end of the interval is a limit of 95 % by itself, so both together are one of 90 %.

    Limits of several seeds are pooled as intervals are (`mi_core.metrics.pooled.pool`).

    Takes and raises what `mi_core.metrics.delong.auc` does.

    Example:
        >>> limits = auc_limits(np.arange(20.0), np.arange(20) >= 10)
        >>> limits.value, round(limits.low, 3)
        (1.0, 0.741)
    """
    return auc(scores, member, groups, tail=LEVEL)


def outcome(limits: Iterable[tuple[float, float]], bound: float) -> str:
    """The outcome of attacks against a bound.

    Args:
        limits: lower and upper limit of each attack, as `auc_limits` has them.
        bound: the AUC to stay under, in (.5, 1].

    Returns ``met``: every upper limit is at or below the bound; ``not met``: the lower limit of an attack is above it;
    ``cannot tell``: neither.
    Raises ShapeError: there is no attack; ConfigError: the bound is out of range.

    Example:
        >>> outcome([(0.49, 0.53), (0.47, 0.51)], 0.55), outcome([(0.49, 0.53)], 0.52), outcome([(0.6, 0.7)], 0.55)
        ('met', 'cannot tell', 'not met')
    """
    check_range("bound", bound, 0.5, 1, open_low=True)
    every = list(limits)
    if not every:
        raise ShapeError("0 attacks to bound, expected at least 1")
    if max(high for _, high in every) <= bound:
        return MET
    return NOT_MET if max(low for low, _ in every) > bound else CANNOT_TELL
