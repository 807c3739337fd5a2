"""EncoderMI: the networks against their defining properties."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from mi_core.attacks.base import Attack
from mi_core.attacks.encodermi import (
    DeepSets,
    EncoderMISet,
    EncoderMIThreshold,
    EncoderMIVector,
    NetworkParameters,
    PairwiseParameters,
    clouds,
)
from mi_core.attacks.mean_cosine import MeanCosine
from mi_core.checks import ConfigError
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.metrics.delong import auc
from mi_core.records import Features, LabelledFeatures
from tests.raising import refused

QUICK = NetworkParameters(hidden=32, learning_rate=1e-3, epochs=20, batch_size=32)


def features(count: int, values: np.ndarray) -> Features:
    return Features(np.array([f"pool/{row}" for row in range(count)]), {"pairwise:cosine": values.astype(np.float32)})


def similarities(count: int, shift: float, seed: int) -> tuple[Features, np.ndarray]:
    """Half members, whose 45 similarities are higher by ``shift`` standard deviations of an image's level."""
    generator = np.random.default_rng(seed)
    member = np.arange(count) % 2 == 0
    level = generator.normal(0, 0.05, (count, 1)) + shift * 0.05 * member[:, None]
    return features(count, 0.5 + level + generator.normal(0, 0.02, (count, 45))), member


@pytest.mark.parametrize("method", [EncoderMIThreshold, MeanCosine])
@pytest.mark.parametrize(
    ("given", "alike"),
    [({}, float), ({"metric": "log-distance"}, lambda cosine: -np.log(max(1 - cosine, 1e-4)))],
    ids=["as published", "log-distance"],
)
def test_the_score_is_a_mean_over_pairs_of_views(method: type[Attack], given: dict[str, str], alike: Any) -> None:
    views = torch.randn(40, 5, 8, generator=torch.Generator().manual_seed(0)) + 1
    views[0, 1] = views[0, 0]  # as near as no rounding may tell
    attack = method(method.Parameters(**given))
    (need,) = attack.needs
    features = Features(np.array([f"pool/{row}" for row in range(40)]), {need.name: need.values(views).numpy()})
    attack.fit(LabelledFeatures(features, np.arange(40) % 2 == 0))
    cosine = torch.nn.functional.cosine_similarity
    expected = [
        np.mean([alike(float(cosine(one, other, dim=0))) for one, other in combinations(image.double(), 2)])
        for image in views
    ]
    np.testing.assert_allclose(attack.score(features), expected, rtol=1e-5)


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
    weights = list(network.parameters())
    plain = torch.autograd.grad(network.rho(network.phi(sets[:, :, None]).mean(dim=1)).square().sum(), weights)
    for found, wanted in zip(torch.autograd.grad(network(sets).square().sum(), weights), plain, strict=True):
        torch.testing.assert_close(found, wanted)


def test_two_views_and_constant_similarities_are_enough() -> None:
    member = np.arange(20) % 2 == 0
    constant = features(20, np.full((20, 1), 0.5))
    for attack in (EncoderMIThreshold(), EncoderMIVector(QUICK), EncoderMISet(QUICK)):
        attack.fit(LabelledFeatures(constant, member))
        assert len(np.unique(attack.score(constant))) == 1


def test_metrics_and_settings() -> None:
    assert EncoderMIThreshold(PairwiseParameters("euclidean")).needs == (PairwiseSimilarity("euclidean"),)
    assert EncoderMIVector().queries_per_sample(10) == 10
    training = EncoderMIVector()._training()
    assert (NetworkParameters().hidden, training.learning_rate, training.epochs) == (256, 1e-4, 300)
    refused(ConfigError, "metric = 'dot'", PairwiseParameters, "dot")
    refused(ConfigError, "learning_rate = 0", NetworkParameters, learning_rate=0)


def test_clouds_by_hand() -> None:
    similarities = np.random.default_rng(0).uniform(-1, 1, (4, 6)).astype(np.float32)
    for found, row in zip(clouds(similarities), similarities, strict=True):
        points = np.array([(0.0, 0.0, value) for value in row])
        np.testing.assert_allclose(found, (points - points.mean()) / points.std(), rtol=1e-5, atol=1e-6)
    assert not clouds(np.zeros((1, 3), dtype=np.float32)).any()


def test_the_released_set_network_sees_the_spread_and_not_the_level() -> None:
    """Each cloud is standardised by itself: a factor on all similarities of an image changes nothing."""
    features, member = spread_or_level(300, 0)
    released = EncoderMISet(NetworkParameters(variant="released", hidden=32, epochs=10))
    released.fit(LabelledFeatures(features, member))
    again = Features(features.ids, {need: values * 0.5 for need, values in features.values.items()})
    np.testing.assert_allclose(released.score(again), released.score(features), atol=1e-4)
    paper = EncoderMISet(NetworkParameters(hidden=32, epochs=10, learning_rate=1e-3))
    paper.fit(LabelledFeatures(features, member))
    assert np.abs(paper.score(again) - paper.score(features)).max() > 0.1


def spread_or_level(count: int, seed: int) -> tuple[Features, np.ndarray]:
    """Similarities of members spread less."""
    generator = np.random.default_rng(seed)
    member = np.arange(count) % 2 == 0
    values = 0.6 + np.where(member, 0.05, 0.15)[:, None] * generator.normal(size=(count, 10))
    ids = np.array([f"pool/{row}" for row in range(count)])
    return Features(ids, {"pairwise:cosine": values.astype(np.float32)}), member


@pytest.mark.parametrize("method", [EncoderMIVector, EncoderMISet])
def test_the_released_variants_learn(method: type[EncoderMIVector] | type[EncoderMISet]) -> None:
    attack = method(NetworkParameters(variant="released", hidden=64, epochs=40, learning_rate=3e-3))
    attack.fit(LabelledFeatures(*spread_or_level(400, 1)))
    features, member = spread_or_level(400, 2)
    assert auc(attack.score(features), member).value > 0.9


def test_what_the_released_scripts_train_with() -> None:
    released = NetworkParameters(variant="released")
    vector, cloud = EncoderMIVector(released), EncoderMISet(released)
    assert [type(layer).__name__ for layer in vector._network(45)] == ["Linear", "Tanh", "Linear"]  # type: ignore[arg-type]
    assert (vector._training().learning_rate, vector._training().weight_decay) == (1e-4, 1e-6)
    training = cloud._training()
    assert (training.learning_rate, training.weight_decay, training.epsilon, training.clip) == (1e-3, 1e-7, 1e-3, 5.0)
    refused(ConfigError, "variant = 'mine', allowed: paper, released", NetworkParameters, variant="mine")
