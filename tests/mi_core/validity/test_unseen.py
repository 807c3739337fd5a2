"""Scores on references that did not see an image, and what they explain of the score on the target."""

from __future__ import annotations

import numpy as np
import pytest

from mi_core.checks import ShapeError
from mi_core.metrics.delong import auc
from mi_core.validity.unseen import Calibration


def drawn(used: float, seed: int, n: int = 4000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores on the target, scores on references and who is a candidate: images differ in how high they always are."""
    rng = np.random.default_rng(seed)
    candidate = np.arange(2 * n) < n
    typical = rng.standard_normal(2 * n)
    beside = 3 + 2 * typical + rng.standard_normal(2 * n)
    return typical + 0.5 * rng.standard_normal(2 * n) + used * candidate, beside, candidate


def test_what_any_encoder_sees_is_taken_out() -> None:
    """The slope is that of the regression, and members stand out more than without."""
    scores, beside, candidate = drawn(0.5, 0)
    known = ~candidate & (np.arange(len(candidate)) % 3 == 0)
    found = Calibration.fit(scores[known], beside[known])
    assert found.slope == pytest.approx(2 / 5, abs=0.02)  # cov / var = 2 / (4 + 1)
    judged = ~known
    left = found(scores, beside)[judged]
    assert abs(np.corrcoef(left[~candidate[judged]], beside[judged][~candidate[judged]])[0, 1]) < 0.05
    assert auc(left, candidate[judged]).low > auc(scores[judged], candidate[judged]).high
    assert left.mean() == pytest.approx(scores[judged].mean(), abs=0.1)


def test_references_that_say_nothing_change_nothing() -> None:
    scores, beside, _ = drawn(0.0, 1, n=50)
    flat = np.full_like(beside, 7.0)
    assert Calibration.fit(scores, flat)(scores, flat).tolist() == scores.tolist()
    with pytest.raises(ShapeError):
        Calibration.fit(scores, beside[1:])
