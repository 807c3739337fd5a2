"""Conformal p-values and their false discovery rate: definitions in loops, validity by simulation, groups, bounds."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.validity.conformal import conformal_p_values, flagged_at, least_flags, needed_controls, q_values
from tests.raising import refused

SCORES = st.lists(st.integers(-3, 3), min_size=1, max_size=20)


@settings(max_examples=80)
@given(SCORES, SCORES)
def test_p_values_equal_the_definition(candidates: list[int], controls: list[int]) -> None:
    expected = [(1 + sum(c >= s for c in controls)) / (len(controls) + 1) for s in candidates]
    found = conformal_p_values(np.array(candidates, dtype=float), np.array(controls, dtype=float))
    np.testing.assert_allclose(found, expected, rtol=1e-15)


@settings(max_examples=80)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=25), st.sampled_from([0.05, 0.1, 0.2, 0.3, 1.0]))
def test_flags_equal_the_step_up_procedure(numerators: list[int], fdr: float) -> None:
    exact, rate = [Fraction(k, 40) for k in numerators], Fraction(str(fdr))
    ordered = sorted(exact)
    passed = [k for k in range(1, len(exact) + 1) if ordered[k - 1] <= rate * k / len(exact)]
    bound = ordered[max(passed) - 1] if passed else Fraction(-1)
    flagged = flagged_at(q_values(np.array(numerators) / 40), fdr)
    assert flagged.tolist() == [p <= bound for p in exact]


def test_every_control_of_a_group_is_drawn_alike() -> None:
    controls, groups = np.array([0.0, 1.0, 2.0, 3.0, 9.0, 9.0]), np.array([5, 5, 5, 5, -1, -1])
    drawn = [conformal_p_values(np.array([0.5, 1.5, 2.5]), controls, groups=groups, seed=seed) for seed in range(2000)]
    p = np.array(drawn)  # of the two, 9 always lies above
    assert set(np.unique(p).round(12).tolist()) == {round(2 / 3, 12), 1.0}
    np.testing.assert_allclose((p == 1).mean(axis=0), [0.75, 0.5, 0.25], atol=0.045)  # 4 standard errors
    np.testing.assert_array_equal(
        drawn[7], conformal_p_values(np.array([0.5, 1.5, 2.5]), controls, groups=groups, seed=7)
    )


def test_the_input_is_left_as_it_was() -> None:
    candidates, controls = np.array([3.0, 1.0]), np.array([2.0, 0.0, 5.0])
    conformal_p_values(candidates, controls)
    assert candidates.tolist() == [3.0, 1.0]
    assert controls.tolist() == [2.0, 0.0, 5.0]


@pytest.mark.parametrize("fdr", [0.05, 0.1, 0.29, 1.0])
def test_the_fewest_flags_are_those_of_the_procedure(fdr: float) -> None:
    for m in (1, 3, 9, 10, 28, 99, 199):
        for n in (1, 2, 7, 29, 60, 100):
            least = least_flags(m, n, fdr)
            assert least == math.ceil(Fraction(n) / (Fraction(str(fdr)) * (m + 1)))
            for top in {min(least, n), max(min(least, n) - 1, 0)}:
                scores = np.where(np.arange(n) < top, m + 1.0, -1.0)
                flagged = flagged_at(q_values(conformal_p_values(scores, np.arange(float(m)))), fdr)
                assert flagged[:top].any() == (top >= least or (fdr == 1 and top > 0))  # at rate 1 all are flagged


def test_needed_controls_are_the_fewest() -> None:
    for n in (1, 7, 100, 1000):
        for fdr in (0.05, 0.1, 0.29, 1.0):
            needed = needed_controls(n, fdr)
            assert least_flags(needed, n, fdr) == 1
            assert needed == 1 or least_flags(needed - 1, n, fdr) > 1


def test_bad_input() -> None:
    some = np.arange(4.0)
    refused(ShapeError, "candidates has shape", conformal_p_values, some[None], some)
    refused(ShapeError, "controls has shape", conformal_p_values, some, some[None])
    refused(ShapeError, "controls are empty", conformal_p_values, some, some[:0])
    refused(ShapeError, "candidates are empty", conformal_p_values, some[:0], some)
    with pytest.raises(NumericError, match="controls is not finite for 1 of 4 samples: row 2"):
        conformal_p_values(some, np.where(some == 2, np.nan, some))
    refused(ShapeError, "groups has shape", conformal_p_values, some, some, groups=np.zeros(3, dtype=np.int64), seed=0)
    with pytest.raises(ConfigError, match="groups have dtype float64, allowed: integers"):
        conformal_p_values(some, some, groups=np.zeros(4), seed=0)
    refused(ConfigError, "pass a seed", conformal_p_values, some, some, groups=np.zeros(4, dtype=np.int64))
    refused(ShapeError, "p_values are empty", q_values, some[:0])
    refused(NumericError, "p_values", q_values, np.array([0.5, np.nan]))
    refused(ConfigError, "largest p-value = 3.0", q_values, some)
    refused(ConfigError, "smallest p-value = -0.1", q_values, np.array([-0.1, 0.5]))
    refused(ConfigError, "fdr = 0.0", flagged_at, np.array([0.1]), 0.0)
    for call, message in (
        (lambda: least_flags(0, 10, 0.1), "n_control = 0"),
        (lambda: least_flags(10, 0, 0.1), "n_candidate = 0"),
        (lambda: least_flags(10, 10, 1.5), "fdr = 1.5"),
        (lambda: needed_controls(0, 0.1), "n_candidate = 0"),
        (lambda: needed_controls(10, 0.0), "fdr = 0.0"),
    ):
        refused(ConfigError, message, call)
