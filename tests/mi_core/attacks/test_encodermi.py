"""EncoderMI: the threshold against a brute-force search, the networks against their defining properties."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mi_core.attacks.encodermi import (
    DeepSets,
    EncoderMISet,
    EncoderMIThreshold,
    EncoderMIVector,
    NetworkParameters,
    ThresholdParameters,
    best_threshold,
)
from mi_core.checks import ConfigError
from mi_core.records import Features, LabelledFeatures

QUICK = NetworkParameters(hidden=32, learning_rate=1e-3, epochs=20, batch_size=32)


def features(count: int, values: np.ndarray) -> Features:
    return Features(np.array([f"pool/{row}" for row in range(count)]), {"pairwise:cosine": values.astype(np.float32)})


def similarities(count: int, shift: float, seed: int) -> tuple[Features, np.ndarray]:
    """Half members, whose 45 similarities are higher by ``shift`` standard deviations of an image's level."""
    generator = np.random.default_rng(seed)
    member = np.arange(count) % 2 == 0
    level = generator.normal(0, 0.05, (count, 1)) + shift * 0.05 * member[:, None]
    return features(count, 0.5 + level + generator.normal(0, 0.02, (count, 45))), member


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=14))
def test_threshold_makes_as_few_errors_as_a_search_over_all(cases: list[tuple[int, bool]]) -> None:
    scores = np.array([score for score, _ in cases], dtype=np.float64)
    member = np.array([truth for _, truth in cases])

    def errors(threshold: float) -> int:
        return sum((score >= threshold) != truth for score, truth in zip(scores, member, strict=True))

    fewest = min(errors(threshold) for threshold in [-1.0, *(scores - 0.5), *scores, *(scores + 0.5)])
    assert errors(best_threshold(scores, member)) == fewest


def test_threshold_between_floats_that_touch() -> None:
    low = 1.0
    high = float(np.nextafter(low, 2))
    assert best_threshold(np.array([low, high]), np.array([False, True])) == high


def test_t_scores_the_mean_of_the_similarities() -> None:
    given_features, member = similarities(40, 3, 0)
    attack = EncoderMIThreshold()
    attack.fit(LabelledFeatures(given_features, member))
    expected = [float(np.mean([float(x) for x in row])) for row in given_features.values["pairwise:cosine"]]
    np.testing.assert_allclose(attack.score(given_features), expected, rtol=1e-6)


@pytest.mark.parametrize("attack", [EncoderMIVector, EncoderMISet])
def test_the_order_of_the_pairs_does_not_matter(attack: type[EncoderMIVector | EncoderMISet]) -> None:
    given_features, member = similarities(60, 3, 1)
    fitted = attack(QUICK)
    fitted.fit(LabelledFeatures(given_features, member))
    shuffled = np.random.default_rng(2).permuted(given_features.values["pairwise:cosine"], axis=1)
    np.testing.assert_allclose(fitted.score(features(60, shuffled)), fitted.score(given_features), atol=1e-4)


def test_v_sees_the_shape_that_the_mean_hides() -> None:
    generator = np.random.default_rng(3)
    member = np.arange(400) % 2 == 0
    spread = np.where(member, 0.01, 0.05)[:, None]  # equal means, members more alike
    noise = generator.normal(0, 1, (400, 45))
    noise -= noise.mean(axis=1, keepdims=True)
    given_features = features(400, 0.7 + spread * noise)
    train, test = np.arange(400) < 200, np.arange(400) >= 200
    for attack, low, high in ((EncoderMIVector(QUICK), 0.95, 1.0), (EncoderMIThreshold(), 0.0, 0.7)):
        attack.fit(LabelledFeatures(given_features.take(train), member[train]))
        right = (attack.score(given_features.take(test)) >= attack.threshold) == member[test]
        assert low <= right.mean() <= high


def test_deep_sets_is_rho_of_the_mean_of_phi() -> None:
    network = DeepSets(8)
    sets = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    for row in range(3):
        mean = torch.stack([network.phi(sets[row, element].reshape(1)) for element in range(5)]).mean(dim=0)
        torch.testing.assert_close(network(sets)[row], network.rho(mean))


def test_two_views_and_constant_similarities_are_enough() -> None:
    member = np.arange(20) % 2 == 0
    constant = features(20, np.full((20, 1), 0.5))
    for attack in (EncoderMIThreshold(), EncoderMIVector(QUICK), EncoderMISet(QUICK)):
        attack.fit(LabelledFeatures(constant, member))
        assert len(np.unique(attack.score(constant))) == 1


def test_metrics_and_settings() -> None:
    assert EncoderMIThreshold(ThresholdParameters("euclidean")).needs == ("pairwise:euclidean",)
    assert EncoderMIVector().queries_per_sample(10) == 10
    training = EncoderMIVector()._training()
    assert (NetworkParameters().hidden, training.learning_rate, training.epochs) == (256, 1e-4, 300)
    with pytest.raises(ConfigError, match="metric = 'dot'"):
        ThresholdParameters("dot")
    with pytest.raises(ConfigError, match="learning_rate = 0"):
        NetworkParameters(learning_rate=0)
