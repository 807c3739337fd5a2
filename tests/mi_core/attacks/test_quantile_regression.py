"""Quantile regression: the pinball loss, false positives under control, and thresholds that follow the image."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mi_core.attacks.mean_cosine import MeanCosine, MeanCosineParameters
from mi_core.attacks.quantile_regression import QuantileRegression, QuantileRegressionParameters, pinball
from mi_core.checks import NumericError
from mi_core.metrics.delong import auc
from mi_core.records import Features, LabelledFeatures

SETTINGS = QuantileRegressionParameters(fpr=0.1, hidden=16, epochs=60, learning_rate=5e-3)


def images(count: int, member: bool, seed: int) -> Features:
    """Images of two kinds, told by their embedding: smooth ones have high cosines without any training."""
    generator = np.random.default_rng(seed)
    smooth = generator.random(count) < 0.5
    level = np.where(smooth, 0.8, 0.3) + 0.08 * member + generator.normal(0, 0.03, count)
    embedding = generator.normal(0, 0.2, (count, 6))
    embedding[:, 0] += np.where(smooth, 1.0, -1.0)
    cosines = np.repeat(level[:, None], 3, axis=1).astype(np.float32)
    values = {"pairwise:cosine": cosines, "embedding": embedding.astype(np.float32)}
    return Features(np.array([f"{member}/{seed}/{row}" for row in range(count)]), values)


def fitted(features: Features, seed: int = 0) -> QuantileRegression:
    attack = QuantileRegression(SETTINGS, seed=seed)
    attack.fit(LabelledFeatures(features, np.zeros(len(features), dtype=bool)))
    return attack


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_the_quantile_minimises_the_pinball_loss(quantile: float) -> None:
    targets = torch.from_numpy(np.random.default_rng(0).normal(size=999))
    grid = torch.linspace(-2, 2, 401, dtype=torch.float64)
    losses = [float(pinball(torch.full_like(targets, float(at)), targets, quantile)) for at in grid]
    assert float(grid[int(np.argmin(losses))]) == pytest.approx(float(targets.quantile(quantile)), abs=0.02)


def test_thresholds_follow_the_image() -> None:
    known, outside, inside = images(300, False, 1), images(400, False, 2), images(400, True, 3)
    attack = fitted(known)
    scores = np.concatenate([attack.score(outside), attack.score(inside)])
    member = np.arange(800) >= 400
    plain = MeanCosine(MeanCosineParameters(fpr=0.1))
    plain.fit(LabelledFeatures(known, np.zeros(300, dtype=bool)))
    flat = np.concatenate([plain.score(outside), plain.score(inside)])
    assert auc(scores, member).value > 0.9
    assert auc(flat, member).value < 0.75
    called = attack.score(inside) >= attack.threshold
    assert called.mean() > 1.5 * (plain.score(inside) >= plain.threshold).mean()


def test_false_positives_stay_below_the_rate_however_the_fit_went() -> None:
    rates = []
    for seed in range(20):
        attack = fitted(images(80, False, 100 + seed), seed)
        outside = images(200, False, 500 + seed)
        rates.append((attack.score(outside) >= attack.threshold).mean())
    assert np.mean(rates) <= 0.1 + 2 * np.std(rates) / np.sqrt(20)
    assert np.mean(rates) > 0.02  # not bought by calling nobody


def test_too_few_non_members() -> None:
    with pytest.raises(NumericError, match="needs 18 known non-members, half of them for the threshold; got 12"):
        fitted(images(12, False, 1))
