"""The threshold of mean-cosine keeps its promise on new non-members, however they are distributed."""

from __future__ import annotations

import numpy as np
import pytest

from mi_core.attacks.encodermi import EncoderMIThreshold
from mi_core.attacks.lpla import LpLA
from mi_core.attacks.mean_cosine import MeanCosine, MeanCosineParameters
from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.records import Features, LabelledFeatures
from tests.raising import refused


def features(scores: np.ndarray) -> Features:
    """Three pairs per image with the given mean."""
    spread = np.array([-0.1, 0.0, 0.1])
    return Features(
        np.array([str(row) for row in range(len(scores))]), {"pairwise:cosine": scores[:, None] + spread[None]}
    )


def fitted(scores: np.ndarray, fpr: float) -> MeanCosine:
    attack = MeanCosine(MeanCosineParameters(fpr=fpr))
    attack.fit(LabelledFeatures(features(scores), np.zeros(len(scores), dtype=bool)))
    return attack


@pytest.mark.parametrize(("fpr", "n"), [(0.05, 19), (0.05, 40), (0.2, 11)])
def test_false_positives_are_as_promised(fpr: float, n: int) -> None:
    """Over 500 draws the share of new non-members called members is at most fpr, and not far below."""
    generator = np.random.default_rng(0)
    called = []
    for _ in range(500):
        scores = 0.3 + 0.05 * generator.exponential(size=n + 20)
        attack = fitted(scores[:n], fpr)
        called.append((attack.score(features(scores[n:])) >= attack.threshold).mean())
    mean, error = np.mean(called), np.std(called) / np.sqrt(len(called))
    promised = (np.floor(fpr * (n + 1)) if n else 0) / (n + 1)
    assert abs(mean - promised) < 4 * error
    assert mean < fpr + 4 * error


def test_members_in_the_reference_are_not_used() -> None:
    scores = np.linspace(0.2, 0.4, 40)
    alone = fitted(scores, 0.1)
    mixed = MeanCosine(MeanCosineParameters(fpr=0.1))
    mixed.fit(LabelledFeatures(features(np.concatenate([scores, np.full(10, 0.9)])), np.arange(50) >= 40))
    assert mixed.threshold == alone.threshold


def test_the_score_is_that_of_encodermi_t() -> None:
    scores = np.linspace(0.1, 0.9, 30)
    threshold = EncoderMIThreshold()
    threshold.fit(LabelledFeatures(features(scores), np.arange(30) >= 15))
    np.testing.assert_allclose(fitted(scores, 0.1).score(features(scores)), threshold.score(features(scores)))


def test_mistakes() -> None:
    refused(NumericError, "at fpr = 0.05 needs 19 known non-members, got 18", fitted, np.linspace(0, 1, 18), 0.05)
    fitted(np.linspace(0, 1, 19), 0.05)
    refused(ConfigError, "fpr = 0", MeanCosineParameters, fpr=0)
    refused(ConfigError, "metric = 'dot'", MeanCosineParameters, metric="dot")
    norms = Features(np.array(["a", "b", "c"]), {"norm:2": np.arange(3.0)})
    with pytest.raises(ShapeError, match="lpla needs members too, the reference has 3 non-members"):
        LpLA().fit(LabelledFeatures(norms, np.zeros(3, dtype=bool)))
    refused(ShapeError, "needs non-members, all of its 3", LabelledFeatures, norms, np.ones(3, dtype=bool))
