"""The upper limit of what attacks reach: by hand, against the interval that exists, and how often it errs.

The simulations draw binormal scores of several attacks on the same images. With every true AUC exactly at the bound,
"met" is an error, of which there may be 5 %.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit, logit, ndtri
from scipy.stats import binom, t

from docs.studies.bounded import AT, PLANTED, SETTINGS, drawn, outcomes
from mi_core.checks import ConfigError, ShapeError
from mi_core.metrics.delong import auc, placements
from mi_core.validity.bound import CANNOT_TELL, MET, NOT_MET, auc_limits, outcome
from tests.raising import refused

RECORDED = json.loads((Path(__file__).parents[3] / "configs" / "results" / "bound.json").read_text())


@pytest.mark.parametrize("name", [*SETTINGS, *PLANTED])
def test_outcomes_are_as_frequent_as_recorded(name: str) -> None:
    recorded, draws = RECORDED["shares"][name], 200
    for said, count in outcomes(draws=draws, **(SETTINGS | PLANTED)[name]).items():
        assert binom.ppf(1e-4, draws, recorded[said]) <= count <= binom.ppf(1 - 1e-4, draws, recorded[said])


def test_the_record_keeps_its_level() -> None:
    assert RECORDED["draws"] == 10_000
    assert max(RECORDED["shares"][name][MET] for name in SETTINGS) <= binom.ppf(0.999, 10_000, 0.05) / 10_000


def test_limits_are_the_interval_with_the_other_quantile() -> None:
    (scores,), member, groups = drawn([0.7], np.random.default_rng(0), group=5)
    v10, v01 = placements(scores, member)
    value, error = v10.mean(), np.sqrt(v10.var(ddof=1) / 150 + v01.var(ddof=1) / 150)
    reach = ndtri(0.95) * error / (value * (1 - value))
    found = auc_limits(scores, member)
    assert (found.low, found.high) == pytest.approx(tuple(expit(logit(value) + np.array([-reach, reach]))))
    assert (found.value, found.n) == (auc(scores, member).value, 300)
    one, both = auc_limits(scores, member, groups), auc(scores, member, groups)
    for low, high in ((one.low, both.low), (one.high, both.high)):  # t of 58 degrees at most, far fewer at least
        ratio = (logit(low) - logit(value)) / (logit(high) - logit(value))
        assert t.ppf(0.95, 20) / t.ppf(0.975, 20) < ratio < ndtri(0.95) / ndtri(0.975) + 1e-9


def test_scores_without_a_variance_have_limits_too() -> None:
    member = np.arange(40) < 20
    assert auc_limits(member * 1.0, member).low == pytest.approx(0.05 ** (1 / 20))
    tied = auc_limits(np.zeros(40), member)
    assert (tied.low, tied.high) == pytest.approx((0.5 * 0.05 ** (1 / 20), 1 - 0.5 * 0.05 ** (1 / 20)))


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ([(0.45, 0.55)], MET),
        ([(0.45, 0.55), (0.5, 0.5501)], CANNOT_TELL),
        ([(0.45, 0.50), (0.55, 0.65)], CANNOT_TELL),
        ([(0.45, 0.50), (0.5501, 0.65)], NOT_MET),
    ],
)
def test_the_outcome_at_the_edges(limits: list[tuple[float, float]], found: str) -> None:
    assert outcome(limits, AT) == found


def test_impossible_bounds_are_refused() -> None:
    for bound in (0.5, 1.01, float("nan")):
        refused(ConfigError, "bound = ", outcome, [(0.4, 0.6)], bound)
    refused(ShapeError, "0 attacks", outcome, [], AT)
    refused(ShapeError, "needs 2 samples", auc_limits, np.zeros(3), np.array([True, False, False]))
