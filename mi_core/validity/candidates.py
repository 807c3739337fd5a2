"""The answer for every candidate by itself: p-value, q-value, posterior, and whether it is flagged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mi_core.records import BoolArray, FloatArray
from mi_core.validity.conformal import conformal_p_values, flagged_at, least_flags, needed_controls, q_values
from mi_core.validity.posterior import posterior

NUMBERS = ("score", "p_value", "q_value", "posterior")
"""What is told of every candidate."""
_Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CandidateAnswers:
    """Answers for N candidates, in their order.

    Args:
        score: (N,) of the attack, without what reference encoders explain where there are any.
        p_value: (N,) for "not trained on".
        q_value: (N,) the false-discovery rate at which the candidate is flagged.
        flagged: (N,) bool at ``fdr``.
        posterior: (N,) probability that it was trained on.
        controls: how many, or how many groups of them.
        fdr: expected share of wrongly flagged ones among the flagged.
    """

    score: _Float64
    p_value: _Float64
    q_value: _Float64
    flagged: BoolArray
    posterior: _Float64
    controls: int
    fdr: float

    @property
    def order(self) -> npt.NDArray[np.intp]:
        """Rows, the lowest p-value first, of equal ones the highest score: (N,)."""
        return np.lexsort((-self.score, self.p_value))


def answers_of(
    scores: FloatArray,
    candidate: BoolArray,
    share: float,
    *,
    fdr: float,
    seed: int,
    groups: npt.NDArray[np.int64] | None = None,
) -> CandidateAnswers:
    """Answer for every candidate.

    Args:
        scores: (M,) of candidates and controls.
        candidate: (M,) bool.
        share: of the candidates that was used, or a lower bound of it, in [0, 1].
        fdr: false-discovery rate in (0, 1).
        seed: of draws.
        groups: (M,) numbers of what the samples belong to; no group holds candidates and controls. None: all samples
            are independent.

    Raises:
        ShapeError, ConfigError, NumericError: as `conformal_p_values`, `flagged_at` and `posterior`.
    """
    inside, outside = scores[candidate].astype(np.float64), scores[~candidate].astype(np.float64)
    of_controls = None if groups is None else groups[~candidate]
    p_values = conformal_p_values(inside, outside, groups=of_controls, seed=seed)
    q = q_values(p_values)
    return CandidateAnswers(
        inside,
        p_values,
        q,
        flagged_at(q, fdr),
        posterior(inside, outside, share, seed=seed),
        len(outside) if of_controls is None else len(np.unique(of_controls)),
        fdr,
    )


def flags_as_json(candidates: int, controls: int, flagged: int, fdr: float) -> dict[str, Any]:
    """How many candidates were flagged, and how many would have to be, as report.json has it."""
    least = least_flags(controls, candidates, fdr)
    return {
        "fdr": fdr,
        "n_candidate": candidates,
        "n_control": controls,
        "flagged": flagged,
        "least_flags": least,
        **({"needed_controls": needed_controls(candidates, fdr)} if least > 1 else {}),
    }
