"""The answer for every candidate by itself: p-value, q-value, posterior, and whether it is flagged.

A share pi of the candidates was trained on; the others are distributed as the controls. Bayes: P(trained on | score) =
1 - (1 - pi) f_control / f_candidate at that score (Efron, Tibshirani, Storey and Tusher, "Empirical Bayes analysis of a
microarray experiment", Journal of the American Statistical Association, 2001). The density ratio comes from the
isotonic regression of "is a candidate" on the score, both groups with weight 1: pool adjacent violators (Ayer, Brunk,
Ewing, Reid and Silverman, Annals of Mathematical Statistics, 1955; as a calibration of scores: Zadrozny and Elkan, KDD
2002). It needs no bandwidth, and where the ratio does not rise with the score it is that of the scores pooled. Against
its optimism for few samples:

- cross-fitting: a candidate is judged by a fit on the other folds, so not by its own label;
- at the highest score isotonic regression is inconsistent (Woodroofe and Sun, "A penalized maximum likelihood estimate
  of f(0+) when f is non-increasing", Statistica Sinica, 1993). A share n^(-2/3) of the controls, n = min(N, M), is
  therefore moved there, the order of their penalty: a ratio never exceeds n^(2/3), and the top is conservative;
- noise below 0 is cut off and noise above it is not, so the mean of the posteriors would exceed pi; the ratio is
  lowered by one factor until it does not.

On 1000 + 1000 normal scores one standard deviation apart and a share of .1, the posteriors are off the exact ones by
.035 on average (isotonic regression alone: .043) and the highest is .34 instead of .70 (200 draws). With 200 + 200
scores of an attack that sees nothing and a share of .1, the highest is .19 on average (alone: .71; 200 draws).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mi_core.checks import ShapeError, check_finite, check_range, check_shape
from mi_core.records import BoolArray, FloatArray
from mi_core.validity.conformal import conformal_p_values, flagged_at, q_values

FOLDS = 5
_SMALLEST = 1e-12  # below every share of candidates that a fit can give and that matters


def posterior(scores: FloatArray, controls: FloatArray, share: float, *, seed: int) -> npt.NDArray[np.float64]:
    """The probability that each candidate was trained on.

    It rises with the share: with a lower bound of it the posteriors are conservative.

    Args:
        scores: (N,) of the candidates, at least 5; higher = more likely a member.
        controls: (M,) scores of samples that were surely not trained on.
        share: of the candidates that was trained on, in [0, 1], from elsewhere: an estimate, or its lower bound.
        seed: of the folds.

    Returns (N,) in [0, 1], not falling with the score; the mean is at most ``share``.
    Raises ShapeError, NumericError: scores or controls are not of one axis, too few, or not finite; ConfigError: share
    is not within [0, 1].

    Example:
        >>> scores = np.concatenate([np.zeros(50), np.ones(50)])
        >>> posterior(scores, np.zeros(100), 0.5, seed=0)[[0, -1]].round(2).tolist()
        [0.04, 0.95]
    """
    candidates, known = np.asarray(scores, dtype=np.float64), np.asarray(controls, dtype=np.float64)
    check_shape("scores", candidates, "N")
    check_shape("controls", known, "M")
    if len(candidates) < FOLDS or not len(known):
        raise ShapeError(
            f"a posterior needs {FOLDS} candidates and 1 control, got {len(candidates)} candidates"
            f" and {len(known)} controls"
        )
    check_finite("scores", candidates)
    check_finite("controls", known)
    check_range("share", share, 0.0, 1.0)
    candidate_share = np.maximum(_candidate_share(candidates, known, seed), _SMALLEST)
    inverse_ratio = (1 - candidate_share) / candidate_share
    # The smallest c >= 1 - share for which the mean of max(0, 1 - c v) over the inverse ratios v is at most the share:
    # it is the largest of (k - c (sum of the k smallest v)) / N over k; between equal v it is at either end.
    sums, up_to = np.cumsum(np.sort(inverse_ratio)), np.arange(1, len(inverse_ratio) + 1)
    factor = max(1 - share, float(((up_to - share * up_to[-1]) / sums).max()))
    return np.asarray(np.maximum(1 - factor * inverse_ratio, 0.0), dtype=np.float64)


def _candidate_share(
    candidates: npt.NDArray[np.float64], controls: npt.NDArray[np.float64], seed: int
) -> npt.NDArray[np.float64]:
    """f_candidate / (f_candidate + f_control) at each candidate (N,), out of fold, rising with the score."""
    from sklearn.isotonic import IsotonicRegression  # slow to load, and most processes do without

    fold = np.empty(len(candidates), dtype=np.int64)  # by rank of the score, so that the order of samples has no effect
    fold[np.argsort(candidates, kind="stable")] = np.random.default_rng(seed).permutation(len(candidates)) % FOLDS
    _, ranks = np.unique(np.concatenate([candidates, controls]), return_inverse=True)  # ties keep one rank
    own, known = ranks[: len(candidates)].astype(np.float64), np.append(ranks[len(candidates) :], ranks.max())
    shares = np.empty(len(candidates))
    for index in range(FOLDS):
        others = own[fold != index]
        moved = min(len(others), len(controls)) ** (-2 / 3)
        weights = [1 / len(others), (1 - moved) / len(controls), moved]
        fit = IsotonicRegression(out_of_bounds="clip").fit(
            np.concatenate([others, known]),
            np.repeat([1.0, 0.0], [len(others), len(known)]),
            np.repeat(weights, [len(others), len(controls), 1]),
        )
        shares[fold == index] = fit.predict(own[fold == index])
    return np.asarray(IsotonicRegression().fit_transform(own, shares), dtype=np.float64)


NUMBERS = ("score", "p_value", "q_value", "posterior")
"""What is told of every candidate."""
_Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CandidateAnswers:
    """Answers for N candidates, in their order."""

    score: _Float64  # (N,) of the attack, without what reference encoders explain where there are any
    p_value: _Float64  # (N,) for "not trained on"
    q_value: _Float64  # (N,) the false-discovery rate at which the candidate is flagged
    flagged: BoolArray  # (N,) bool at ``fdr``, the expected share of wrongly flagged ones among the flagged
    posterior: _Float64  # (N,) probability that it was trained on
    controls: int  # how many, or how many groups of them
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

    Raises as `conformal_p_values`, `flagged_at` and `posterior`.
    """
    inside, outside = scores[candidate].astype(np.float64), scores[~candidate].astype(np.float64)
    of_controls = None if groups is None else groups[~candidate]
    p_values = conformal_p_values(inside, outside, groups=of_controls, seed=seed)
    q = q_values(p_values)
    probable = posterior(inside, outside, share, seed=seed)
    controls = len(outside if of_controls is None else np.unique(of_controls))
    return CandidateAnswers(inside, p_values, q, flagged_at(q, fdr), probable, controls, fdr)
