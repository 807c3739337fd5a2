"""Feature-MI: what a linear look cannot see it learns, and the units of the encoder do not matter."""

from __future__ import annotations

import numpy as np

from mi_core.attacks.base import NotApplicable
from mi_core.attacks.feature_mi import FeatureMI, FeatureMIParameters
from mi_core.checks import ConfigError
from mi_core.metrics.delong import auc
from mi_core.records import Features, LabelledFeatures
from tests.raising import refused


def shells(count: int, seed: int, scale: float = 1.0) -> tuple[Features, np.ndarray]:
    """Members lie on a shell, non-members inside it: no direction tells them apart."""
    generator = np.random.default_rng(seed)
    member = generator.random(count) < 0.5
    direction = generator.normal(size=(count, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    radius = np.where(member, 2.0, 0.7)[:, None] * generator.uniform(0.9, 1.1, (count, 1))
    points = ((direction * radius + [5, 0, 0]) * scale).astype(np.float32)
    return Features(np.array([f"pool/{row}" for row in range(count)]), {"embedding": points}), member


def test_it_reads_the_embedding_itself() -> None:
    settings = FeatureMIParameters(hidden=32, epochs=60, learning_rate=3e-3)
    attack, scaled = FeatureMI(settings), FeatureMI(settings)
    attack.fit(LabelledFeatures(*shells(400, 0)))
    scaled.fit(LabelledFeatures(*shells(400, 0, scale=1000.0)))
    features, member = shells(400, 1)
    assert auc(attack.score(features), member).value > 0.99
    np.testing.assert_allclose(scaled.score(shells(400, 1, scale=1000.0)[0]), attack.score(features), atol=0.05)


def test_settings() -> None:
    assert FeatureMI().queries_per_sample(10) == 1
    assert (FeatureMIParameters().epochs, FeatureMIParameters().batch_size) == (500, 128)  # LpLA, table 1
    refused(ConfigError, "epochs = 0", FeatureMIParameters, epochs=0)


def test_embeddings_of_another_width_do_not_apply() -> None:
    features, member = shells(40, 0)
    attack = FeatureMI(FeatureMIParameters(epochs=1))
    attack.fit(LabelledFeatures(features, member))
    wider = Features(features.ids, {"embedding": np.zeros((40, 5))})
    refused(NotApplicable, "feature-mi was fitted on embeddings of 3 numbers, these have 5", attack.score, wider)
