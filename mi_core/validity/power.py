"""What an audit of a given size can see, before it is run.

The standard error of an AUC A is that of Hanley and McNeil, "The meaning and use of the area under a receiver operating
characteristic (ROC) curve" (Radiology 143, 1982), equation 1, with Q1 = A / (2 - A) and Q2 = 2 A^2 / (1 + A) of
exponential scores, so that it needs no more than A; at A = .5 it is that of the Mann-Whitney statistic. The one-sided
test of A = .5 rejects with the wanted power where A - .5 = z(1 - level) SE(.5) + z(power) SE(A), z being quantiles of
the standard normal.
"""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import ndtri

from mi_core.checks import ConfigError, check_range

_NEGATIVES = 10  # a false-positive rate needs this many samples above it to mean something


def detectable_auc(n_candidate: int, n_control: int, *, power: float = 0.8, level: float = 0.025) -> float | None:
    """The smallest true AUC of candidates against controls that is told from .5 with the wanted power.

    Where only a share pi of the candidates was trained on, the AUC is .5 + pi (AUC of those - .5).

    Args:
        n_candidate: at least 1; of grouped samples what their groups are worth (`mi_core.metrics.intervals.worth_of`).
        n_control: at least 1; likewise.
        power: probability that the test rejects, in [.5, 1).
        level: of the one-sided test, in (0, .5); .025 is a 95 % interval whose lower bound is above .5.

    Returns:
        in (.5, 1], or None where not even an AUC of 1 would be told from .5.

    Raises:
        ConfigError: a number is below 1, or power or level is out of range.

    Example:
        >>> round(detectable_auc(200, 200), 3), detectable_auc(2, 2)
        (0.581, None)
    """
    check_range("n_candidate", n_candidate, 1)
    check_range("n_control", n_control, 1)
    _check_test(power, level)
    if _excess(1.0, n_candidate, n_control, power, level) < 0:
        return None
    return float(brentq(_excess, 0.5, 1.0, args=(n_candidate, n_control, power, level), xtol=1e-12))


def fpr_floor(n_control: int) -> float:
    """The smallest false-positive rate that M controls support, 10 / M, at most 1: that of `Estimate.supported`.

    Args:
        n_control: M, at least 1; of grouped samples what their groups are worth, rounded down.

    Raises:
        ConfigError: n_control is below 1.

    Example:
        >>> fpr_floor(1000), fpr_floor(5)
        (0.01, 1.0)
    """
    check_range("n_control", n_control, 1)
    floor = min(1.0, _NEGATIVES / n_control)
    return floor if n_control >= _NEGATIVES / floor or floor == 1 else math.nextafter(floor, 1.0)  # 10 / (10 / 49) > 49


def _excess(auc: float, n_candidate: int, n_control: int, power: float, level: float) -> float:
    """How far the AUC lies above the one that is just told from .5; rises with the AUC and with the numbers."""
    at_half = ndtri(1 - level) * _standard_error(0.5, n_candidate, n_control)
    return float(auc - 0.5 - at_half - ndtri(power) * _standard_error(auc, n_candidate, n_control))


def _standard_error(auc: float, n_candidate: int, n_control: int) -> float:
    """Hanley and McNeil's, of equation 1."""
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    sums = auc * (1 - auc) + (n_candidate - 1) * (q1 - auc**2) + (n_control - 1) * (q2 - auc**2)
    return math.sqrt(max(sums, 0.0) / (n_candidate * n_control))


def _check_test(power: float, level: float) -> None:
    if not 0.5 <= power < 1:
        raise ConfigError(f"power = {power}, allowed: [0.5, 1)")
    if not 0 < level < 0.5:
        raise ConfigError(f"level = {level}, allowed: (0, 0.5)")
