"""The power of a verdict of a given size, before anything is spent.

The standard error of an AUC A is that of Hanley and McNeil, "The meaning and use of the area under a receiver operating
characteristic (ROC) curve" (Radiology 143, 1982), equation 1, with Q1 = A / (2 - A) and Q2 = 2 A^2 / (1 + A) of
exponential scores, so that it needs no more than A; at A = .5 it is that of the Mann-Whitney statistic.

By lot the verdict is a one-sided test of level `verdict.LEVEL`. By choice the rule of `mi_core.validity.verdict` is
applied to drawn estimates: of the attack about A, of three checks that see nothing about .5, all normal and
independent, with the intervals that estimates of these sizes have. Dependence between attack and checks, as paired
scores have it, changes little: the robustness decides, and it looks at each interval by itself.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit, ndtr, ndtri

from mi_core.checks import check_choice, check_range
from mi_core.validity.verdict import CHECKS, CHOICE, FACTOR, LEVEL, LOT

POWER = 0.8
SHARES = (1.0, 0.1, 0.01)
"""Shares of the candidates that were used, for which a report says what it can find."""
PUBLISHED = 0.51
"""AUC of published attacks on random members of encoders of web scale (Zhang et al., SaTML 2025; Duan et al., "Do
membership inference attacks work on large language models?", COLM 2024, for text)."""
_NEGATIVES = 10  # a false-positive rate needs this many samples above it to mean something
_DRAWS = 4000
_MOST = 10**9  # images a side beyond which no number is worth naming
_QUANTILE = float(ndtri(0.975))
_Float64 = npt.NDArray[np.float64]


def verdict_power(n_candidate: int, n_control: int, auc: float, *, by: str = CHOICE, factor: float = FACTOR) -> float:
    """The chance of the verdict ``leak`` where checks see nothing.

    Args:
        n_candidate: at least 1; of grouped samples what their groups are worth (`mi_core.metrics.intervals.worth_of`).
        n_control: at least 1; likewise.
        auc: true one of all candidates against controls, in [.5, 1]: where a share s of the candidates was used, it is
            .5 + s (A - .5), A being that of the used ones.
        by: `verdict.LOT` or `verdict.CHOICE`.
        factor: least robustness, at least 1; by choice.

    Returns in [0, 1]; by choice in steps of 1 / 4000.
    Raises ConfigError: a number is out of range, or no such way.

    Example:
        >>> round(verdict_power(500, 500, 0.7), 1), verdict_power(500, 500, 0.51)
        (1.0, 0.0)
    """
    check_range("n_candidate", n_candidate, 1)
    check_range("n_control", n_control, 1)
    check_range("auc", auc, 0.5, 1)
    check_range("factor", factor, 1)
    at_half, error = (float(_standard_errors(np.array(value), n_candidate, n_control)) for value in (0.5, auc))
    if check_choice("by", by, (LOT, CHOICE)) == LOT:
        beyond = auc - 0.5 - float(ndtri(1 - LEVEL)) * at_half
        return float(ndtr(beyond / error)) if error else float(beyond > 0)
    normal = np.random.default_rng(0).standard_normal((1 + len(CHECKS), _DRAWS))  # always the same
    pairs = min(n_candidate, n_control)
    attack = np.clip(auc + error * normal[0], 1e-9, 1 - 1e-9)
    errors = _standard_errors(attack, n_candidate, n_control)
    low = expit(logit(attack) - _QUANTILE * errors / (attack * (1 - attack)))
    low = np.where(attack * pairs > pairs - 1, attack * 0.025 ** (1 / pairs), low)  # all pairs agree, or nearly all
    checks = 0.5 + at_half * normal[1:]
    most = np.maximum(checks.max(axis=0) + _QUANTILE * at_half, 0.5 + _QUANTILE * at_half)
    robust = (most < 1) & (ndtri(low) >= factor * ndtri(np.minimum(most, 1 - 1e-9)))
    beyond_checks = attack - checks[:2].max(axis=0) > _QUANTILE * np.hypot(errors, at_half)
    return float((robust & beyond_checks).mean())


def detectable_auc(
    n_candidate: int,
    n_control: int,
    *,
    share: float = 1.0,
    by: str = CHOICE,
    factor: float = FACTOR,
    power: float = POWER,
) -> float | None:
    """The smallest AUC of used candidates against controls at which the verdict is ``leak`` with the wanted chance.

    Args:
        n_candidate, n_control, by, factor: as `verdict_power`.
        share: of the candidates that was used, in (0, 1].
        power: the wanted chance, in [.5, 1).

    Returns:
        in (.5, 1], to .0005, or None where not even an AUC of 1 would do.

    Raises ConfigError: as `verdict_power`, or share or power is out of range.

    Example:
        >>> round(detectable_auc(500, 500), 2), detectable_auc(500, 500, share=0.01)
        (0.66, None)
    """
    check_range("share", share, 0, 1, open_low=True)
    check_range("power", power, 0.5, 1, open_high=True)

    from scipy.optimize import brentq  # slow to load, and most processes do without

    def excess(auc: float) -> float:
        return verdict_power(n_candidate, n_control, 0.5 + share * (auc - 0.5), by=by, factor=factor) - power

    return float(brentq(excess, 0.5, 1.0, xtol=5e-4)) if excess(1.0) >= 0 else None


def needed_images(auc: float, *, by: str = CHOICE, factor: float = FACTOR) -> int | None:
    """How many candidates, and as many controls, it takes to say ``leak`` of an AUC with the chance `POWER`.

    The AUC is of all candidates, in (.5, 1]; the rest is as in `verdict_power`.
    Returns two digits that count, rounded up; None where more than 10 ** 9 would be needed.
    Raises as `verdict_power`.

    Example:
        >>> needed_images(0.51), needed_images(0.51, by="lot")
        (140000, 17000)
    """
    check_range("auc", auc, 0.5, 1, open_low=True)

    def enough(number: int) -> bool:
        return verdict_power(number, number, auc, by=by, factor=factor) >= POWER

    if not enough(_MOST):
        return None
    below, above = 1, 2
    while not enough(above):
        below, above = above, 2 * above
    while above - below > max(1, above // 100):
        middle = (below + above) // 2
        below, above = (below, middle) if enough(middle) else (middle, above)
    step: int = 10 ** max(0, len(str(above)) - 2)
    return -(-above // step) * step


def fpr_floor(n_control: int) -> float:
    """The smallest false-positive rate that M controls support, 10 / M, at most 1: that of `Estimate.supported`.

    Of grouped samples M is what their groups are worth, rounded down. Raises ConfigError: it is below 1.

    Example:
        >>> fpr_floor(1000), fpr_floor(5)
        (0.01, 1.0)
    """
    check_range("n_control", n_control, 1)
    floor = min(1.0, _NEGATIVES / n_control)
    return floor if n_control >= _NEGATIVES / floor or floor == 1 else math.nextafter(floor, 1.0)  # 10 / (10 / 49) > 49


def _standard_errors(auc: _Float64, n_candidate: int, n_control: int) -> _Float64:
    """Hanley and McNeil's, of equation 1."""
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    sums = auc * (1 - auc) + (n_candidate - 1) * (q1 - auc**2) + (n_control - 1) * (q2 - auc**2)
    return np.asarray(np.sqrt(np.maximum(sums, 0.0) / (n_candidate * n_control)))
