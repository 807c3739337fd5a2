"""Results by class: those of the class's samples alone."""

from __future__ import annotations

import numpy as np
import pytest

from mi_core.checks import ShapeError
from mi_core.metrics.delong import auc
from mi_core.metrics.intervals import rate
from mi_core.metrics.membership import by_class


def test_every_class_by_itself() -> None:
    generator = np.random.default_rng(0)
    classes = generator.integers(0, 3, 600)
    member = generator.random(600) < 0.5
    scores = generator.standard_normal(600) + 2.0 * (member & (classes == 2)) + 5.0 * classes
    found = by_class(scores, member, classes, 10.0)
    assert list(found) == [0, 1, 2]
    for number, result in found.items():
        rows = classes == number
        assert result.auc == auc(scores[rows], member[rows])
        inside = [score >= 10.0 for score, one, here in zip(scores, member, rows, strict=True) if one and here]
        outside = [score >= 10.0 for score, one, here in zip(scores, member, rows, strict=True) if not one and here]
        assert result.recall == rate(sum(inside), len(inside))
        assert result.false_positive_rate == rate(sum(outside), len(outside))
        assert (result.n_member, result.n_nonmember) == (len(inside), len(outside))
    assert found[2].auc.low > 0.8 > found[0].auc.high


def test_small_classes_and_samples_without_one_are_left_out() -> None:
    member = np.arange(40) % 2 == 0
    classes = np.where(np.arange(40) < 32, 0, 7)  # class 7: 4 and 4
    classes[:4] = -1
    found = by_class(np.arange(40.0), member, classes, 5.0)
    assert list(found) == [0]
    assert found[0].n_member + found[0].n_nonmember == 28
    with pytest.raises(ShapeError, match="classes has shape"):
        by_class(np.arange(40.0), member, classes[:3], 5.0)
