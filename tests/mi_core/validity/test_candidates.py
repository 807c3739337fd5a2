"""Posteriors of single candidates: the paper in loops, and their bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.validity.candidates import FOLDS, posterior
from tests.raising import refused

SCORES = st.lists(st.integers(-4, 4), min_size=6, max_size=25)


def mixture(
    n: int, m: int, share: float, gap: float, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Scores of candidates and controls, which candidates are members, and the exact posterior."""
    generator = np.random.default_rng(seed)
    member = generator.random(n) < share
    scores, controls = generator.standard_normal(n) + gap * member, generator.standard_normal(m)
    inside, outside = share * norm.pdf(scores, gap), (1 - share) * norm.pdf(scores)
    return scores, controls, member, inside / (inside + outside)


def loop_isotonic(x: list[float], y: list[float], w: list[float]) -> tuple[list[float], list[float]]:
    """Weighted isotonic regression at the distinct x, by the max-min formula."""
    points = sorted(set(x))
    weight = [sum(b for a, b in zip(x, w, strict=True) if a == p) for p in points]
    total = [sum(b * c for a, b, c in zip(x, w, y, strict=True) if a == p) for p in points]
    values = []
    for k in range(len(points)):
        candidates = []
        for low in range(k + 1):
            candidates.append(
                min(sum(total[low : high + 1]) / sum(weight[low : high + 1]) for high in range(k, len(points)))
            )
        values.append(max(candidates))
    return points, values


def loop_posterior(scores: np.ndarray, controls: np.ndarray, share: float, seed: int) -> np.ndarray:
    """The posteriors as the module describes them, in loops; the factor by bisection."""
    distinct = sorted({*scores.tolist(), *controls.tolist()})
    own, known = [distinct.index(s) for s in scores], [distinct.index(c) for c in controls]
    drawn = np.random.default_rng(seed).permutation(len(own)) % FOLDS  # of the lowest score, of the next, ...
    place = {row: rank for rank, row in enumerate(sorted(range(len(own)), key=own.__getitem__))}
    fold = [drawn[place[row]] for row in range(len(own))]
    shares = []
    for rank, left_out in zip(own, fold, strict=True):
        others = [r for r, f in zip(own, fold, strict=True) if f != left_out]
        moved = min(len(others), len(known)) ** (-2 / 3)
        points, values = loop_isotonic(
            [*others, *known, len(distinct) - 1],
            [1.0] * len(others) + [0.0] * (len(known) + 1),
            [1 / len(others)] * len(others) + [(1 - moved) / len(known)] * len(known) + [moved],
        )
        shares.append(float(np.interp(rank, points, values)))
    points, values = loop_isotonic(own, shares, [1.0] * len(own))
    ratio = np.array([values[points.index(rank)] for rank in own])
    ratio = ratio / (1 - ratio)

    def mean(factor: float) -> float:
        return float(np.mean([max(0.0, 1 - factor / r) if r > 0 else 0.0 for r in ratio]))

    factor = 1 - share
    if mean(factor) > share + 1e-12:
        factor = brentq(lambda c: mean(c) - share, factor, 1 + 2 * max(ratio), xtol=1e-14)
    return np.array([max(0.0, 1 - factor / r) if r > 0 else 0.0 for r in ratio])


@settings(max_examples=40)
@given(SCORES, st.lists(st.integers(-4, 4), min_size=2, max_size=20), st.sampled_from([0.1, 0.5, 0.9]))
def test_posteriors_equal_the_loops(candidates: list[int], controls: list[int], share: float) -> None:
    scores, known = np.array(candidates, dtype=float), np.array(controls, dtype=float)
    np.testing.assert_allclose(
        posterior(scores, known, share, seed=5), loop_posterior(scores, known, share, 5), atol=1e-9
    )


@settings(max_examples=60)
@given(SCORES, SCORES, st.floats(0, 1), st.floats(0, 1))
def test_bounds(candidates: list[int], controls: list[int], first: float, second: float) -> None:
    scores, known = np.array(candidates, dtype=float), np.array(controls, dtype=float)
    low, high = sorted((first, second))
    found, more = posterior(scores, known, low, seed=1), posterior(scores, known, high, seed=1)
    fitted = min(len(scores) - len(scores) // FOLDS, len(known))
    assert (np.diff(found[np.argsort(scores, kind="stable")]) >= -1e-12).all()  # ties are equal, too
    assert all(np.ptp(found[scores == score]) == 0 for score in scores)
    assert found.min() >= 0
    assert found.max() <= 1 - (1 - low) * fitted ** (-2 / 3) + 1e-9  # never sure for few samples
    assert found.mean() <= low + 1e-9
    assert (found <= more + 1e-12).all()


def test_no_share_and_the_whole_share() -> None:
    scores, controls, _, _ = mixture(300, 200, 0.5, 2.0, 0)
    assert posterior(scores, controls, 0.0, seed=0).max() == 0
    assert posterior(scores, controls, 1.0, seed=0).min() == 1


def test_an_attack_that_sees_nothing_convicts_nobody() -> None:
    highest = [posterior(*mixture(200, 200, 0.1, 0.0, seed)[:2], 0.1, seed=seed).max() for seed in range(40)]
    assert np.mean(highest) < 0.25  # plain isotonic regression gives about .7: a few candidates above all controls
    assert np.max(highest) < 0.6


def test_bad_input() -> None:
    some = np.arange(6.0)
    refused(ShapeError, "scores has shape", posterior, some[None], some, 0.5, seed=0)
    refused(ShapeError, "controls has shape", posterior, some, some[None], 0.5, seed=0)
    refused(ShapeError, "needs 5 candidates and 1 control, got 4 candidates", posterior, some[:4], some, 0.5, seed=0)
    refused(ShapeError, "and 0 controls", posterior, some, some[:0], 0.5, seed=0)
    with pytest.raises(NumericError, match="scores is not finite for 1 of 6 samples: row 3"):
        posterior(np.where(some == 3, np.inf, some), some, 0.5, seed=0)
    refused(NumericError, "controls", posterior, some, np.where(some == 3, np.nan, some), 0.5, seed=0)
    for share in (-0.1, 1.1, np.nan):
        refused(ConfigError, "share = ", posterior, some, some, share, seed=0)
