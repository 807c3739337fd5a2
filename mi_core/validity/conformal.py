"""Single candidates that were trained on: conformal p-values against control samples, and their false discovery rate.

The p-value of a candidate is the share of controls that score at least as high, the candidate itself counted among
them (Vovk, Gammerman and Shafer, "Algorithmic learning in a random world", 2005, chapter 2). It holds for any attack
whose scores were fixed without telling candidates from controls, and for any distribution: a candidate that was not
trained on and is exchangeable with the controls has P(p <= a) <= a. All candidates share the controls, so their
p-values depend on each other, but positively: Bates, Candes, Lei, Romano and Sesia, "Testing for outliers with
conformal p-values" (Annals of Statistics, 2023), theorem 2; for samples that are exchangeable, not independent, as in a
random split: Marandon, Lei, Mary and Roquain, "Adaptive novelty detection with false discovery rate guarantee"
(Annals of Statistics, 2024). The procedure of Benjamini and Hochberg (Journal of the Royal Statistical Society B, 1995)
therefore keeps the false discovery rate: of the flagged candidates, the expected share that was not trained on is at
most ``fdr`` times the share of all candidates that was not. It is kept on average over audits, not in each.

Controls in groups (bursts, albums) are not exchangeable one by one. One control drawn from each group is exchangeable
with a candidate of a new group: the single subsampling of Dunn, Wasserman and Ramdas, "Distribution-free prediction
sets for two-layer hierarchical models" (Journal of the American Statistical Association, 2022). Each p-value is then
valid; the theorem on the false discovery rate asks in addition for candidates of distinct groups.

Letters: N candidates, M controls; the p-values are multiples of 1 / (M + 1).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from mi_core.checks import ConfigError, ShapeError, check_finite, check_range, check_shape
from mi_core.metrics.intervals import checked_groups
from mi_core.records import BoolArray, FloatArray

_Float64 = npt.NDArray[np.float64]
_ROUNDING = 1e-12  # relative; an adjusted p-value equal to the rate counts, as 3 / 30 <= 0.1 does on paper


def conformal_p_values(
    candidates: FloatArray,
    controls: FloatArray,
    *,
    groups: npt.NDArray[np.int64] | None = None,
    seed: int | None = None,
) -> _Float64:
    """The p-value of each candidate for "not trained on"; ties count against the candidate.

    Args:
        candidates: (N,) scores of samples of unknown membership.
        controls: (M,) scores of samples that were surely not trained on.
        groups: (M,) the group of each control, any integers; one control of each group is drawn, and M is then the
            number of groups.
        seed: of that draw.

    Returns (N,) in [1 / (M + 1), 1], falling with the score.
    Raises ShapeError: candidates, controls or groups have another shape, or there are no candidates or no controls;
    NumericError: a score is NaN or infinite; ConfigError: the groups are no integers, or come without a seed.

    Example:
        >>> conformal_p_values(np.array([5.0, 2.0, 0.0]), np.array([1.0, 2.0, 3.0])).tolist()
        [0.25, 0.75, 1.0]
    """
    tested, known = _checked("candidates", candidates), _checked("controls", controls)
    if groups is not None:
        labels = checked_groups(groups, len(known))
        if seed is None:
            raise ConfigError("seed = None, but one control of each group is drawn at random; pass a seed")
        order = np.random.default_rng(seed).permutation(len(known))
        _, first = np.unique(labels[order], return_index=True)  # all rows of a group alike: the first in a random order
        known = known[order[first]]
    known.sort()
    order = np.argsort(tested)  # looked up in order, 10^7 in 10^7 take a fifth of the time
    p_values = np.empty(len(tested))
    p_values[order] = (1 + len(known) - np.searchsorted(known, tested[order], "left")) / (len(known) + 1)
    return p_values


def q_values(p_values: FloatArray) -> _Float64:
    """The smallest false discovery rate at which each sample is flagged: ``scipy.stats.false_discovery_control``.

    Args:
        p_values: (N,) in [0, 1]; the q-values rise with them, within [0, 1] too.
    Raises ShapeError, NumericError: the p-values are not (N,), there are none, or one is NaN; ConfigError: a p-value is
    not within [0, 1].

    Example:
        >>> q_values(np.array([0.01, 0.04, 0.03, 0.5])).round(3).tolist()
        [0.04, 0.053, 0.053, 0.5]
    """
    from scipy.stats import false_discovery_control  # slow to load, and most processes do without

    values = _checked("p_values", p_values)
    check_range("smallest p-value", float(values.min()), 0.0, 1.0)
    check_range("largest p-value", float(values.max()), 0.0, 1.0)
    return np.asarray(false_discovery_control(values, method="bh"), dtype=np.float64)


def flagged_at(q: FloatArray, fdr: float) -> BoolArray:
    """The samples (N,) bool of q-values (N,) that are flagged at a false discovery rate in (0, 1].

    Raises ConfigError: fdr is not within (0, 1].

    Example:
        >>> flagged_at(np.array([0.04, 0.06]), 0.05).tolist()
        [True, False]
    """
    check_range("fdr", fdr, 0.0, 1.0, open_low=True)
    return np.asarray(np.asarray(q) <= fdr * (1 + _ROUNDING), dtype=np.bool_)


def least_flags(n_control: int, n_candidate: int, fdr: float) -> int:
    """The fewest candidates that can be flagged at once; fewer are never flagged.

    The smallest p-value is 1 / (M + 1), so k flags need k >= N / (fdr (M + 1)). As many candidates that score above all
    controls are enough; where the number exceeds N, nothing can be flagged.

    Args:
        n_control: M, at least 1; the number of groups, where the controls come in groups.
        n_candidate: N, at least 1.
        fdr: in (0, 1].

    Raises ConfigError where one is out of range.
    Example:
        >>> least_flags(99, 1000, 0.05)
        200
    """
    check_range("n_control", n_control, 1)
    check_range("n_candidate", n_candidate, 1)
    check_range("fdr", fdr, 0.0, 1.0, open_low=True)
    return math.ceil(n_candidate / (fdr * (n_control + 1)) * (1 - _ROUNDING))


def needed_controls(n_candidate: int, fdr: float) -> int:
    """The fewest controls with which a single candidate can be flagged: where `least_flags` is 1, which takes the same.

    Example:
        >>> needed_controls(1000, 0.05)
        19999
    """
    check_range("n_candidate", n_candidate, 1)
    check_range("fdr", fdr, 0.0, 1.0, open_low=True)
    return max(1, math.ceil(n_candidate / fdr * (1 - _ROUNDING)) - 1)


def _checked(name: str, values: FloatArray) -> _Float64:
    """A copy as float64, of at least one finite number."""
    copied = np.array(values, dtype=np.float64)
    check_shape(name, copied, "N")
    if not len(copied):
        raise ShapeError(f"{name} are empty, expected at least 1")
    check_finite(name, copied)
    return copied
