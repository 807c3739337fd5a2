"""Several p-values at once."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mi_core.checks import ConfigError
from mi_core.validity.verdict import cauchy_combination, holm
from tests.raising import refused


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_the_steps_reject(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    for level in (0.01, 0.05, 0.3, 0.9):
        rejected: set[int] = set()
        for step, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
            if p_values[index] * (len(p_values) - step) > level:
                break
            rejected.add(index)
        assert {index for index, p in enumerate(adjusted) if p <= level} == rejected
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))


@given(st.lists(st.floats(0.001, 0.999), min_size=1, max_size=8))
def test_cauchy_equals_the_formula(p_values: list[float]) -> None:
    statistic = sum(math.tan((0.5 - p) * math.pi) for p in p_values) / len(p_values)
    assert cauchy_combination(p_values) == pytest.approx(0.5 - math.atan(statistic) / math.pi, rel=1e-6, abs=1e-9)


def test_cauchy_at_the_ends() -> None:
    assert 0 < cauchy_combination([0.0, 0.7]) < 1e-300
    assert 0 < cauchy_combination([0.0, 1.0]) < 1e-300
    assert 1 - 1e-15 < cauchy_combination([1.0, 1e-10]) <= 1 - 2.0**-53
    assert cauchy_combination([1.0]) == pytest.approx(1.0)
    assert cauchy_combination([1.0, 0.2]) >= cauchy_combination([0.999, 0.2])


def test_p_values_are_checked() -> None:
    for combine in (holm, cauchy_combination):
        refused(ConfigError, "0 p-values", combine, [])
        refused(ConfigError, r"p-value = 1.1, allowed: \[0.0, 1.0\]", combine, [0.1, 1.1])
        refused(ConfigError, "p-value = nan", combine, [math.nan])
