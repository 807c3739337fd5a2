"""Clopper-Pearson against SciPy's exact interval."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from mi_core.checks import ConfigError
from mi_core.metrics.intervals import clopper_pearson, rate


@pytest.mark.parametrize(("successes", "n"), [(0, 7), (7, 7), (3, 7), (1, 1000), (999, 1000), (440, 880)])
@pytest.mark.parametrize("confidence", [0.95, 0.8])
def test_equals_the_exact_interval(successes: int, n: int, confidence: float) -> None:
    expected = binomtest(successes, n).proportion_ci(confidence, method="exact")
    assert clopper_pearson(successes, n, confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_rate_carries_n() -> None:
    estimate = rate(3, 4)
    assert (estimate.value, estimate.n) == (0.75, 4)


@pytest.mark.parametrize(("arguments", "expected"), [((0, 0), "n = 0"), ((5, 4), "successes = 5"), ((-1, 4), "= -1")])
def test_bad_counts(arguments: tuple[int, int], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        clopper_pearson(*arguments)
    with pytest.raises(ConfigError, match="confidence = 0"):
        clopper_pearson(1, 2, 0)
