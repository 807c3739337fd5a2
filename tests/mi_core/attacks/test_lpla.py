"""LpLA against SciPy's densities, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from mi_core.attacks.base import NotApplicable
from mi_core.attacks.lpla import LpLA, LpLAParameters
from mi_core.checks import ConfigError, NumericError
from mi_core.features.embedding import LpNorm
from mi_core.records import Features, LabelledFeatures
from tests.raising import refused


def features(norms: np.ndarray, need: str = "norm:2") -> Features:
    return Features(np.array([f"pool/{row}" for row in range(len(norms))]), {need: norms})


def test_score_and_decision_are_those_of_the_posterior() -> None:
    generator = np.random.default_rng(0)
    member = np.arange(60) % 3 == 0
    norms = np.where(member, generator.normal(10, 1, 60), generator.normal(12, 2, 60))
    attack = LpLA()
    attack.fit(LabelledFeatures(features(norms), member))
    scores = attack.score(features(norms))
    known, other = norms[member], norms[~member]
    for value, score in zip(norms, scores, strict=True):
        inside = norm.pdf(value, np.mean(known), np.sqrt(np.sum((known - known.mean()) ** 2) / (len(known) - 1)))
        outside = norm.pdf(value, np.mean(other), np.sqrt(np.sum((other - other.mean()) ** 2) / (len(other) - 1)))
        posterior = inside / (inside + outside)
        assert score == pytest.approx(np.log(inside / outside), abs=1e-9)
        assert (score >= attack.threshold) == (posterior >= 0.5)


def test_a_group_in_the_middle_is_found() -> None:
    member = np.arange(400) % 2 == 0
    generator = np.random.default_rng(1)
    norms = np.where(member, generator.normal(10, 0.1, 400), generator.normal(10, 2, 400))
    attack = LpLA()
    attack.fit(LabelledFeatures(features(norms), member))
    right = (attack.score(features(norms)) >= attack.threshold) == member
    assert right.mean() > 0.9  # one threshold on the norm could not do it


def test_what_it_refuses() -> None:
    member = np.arange(8) % 2 == 0
    unit = 1 + np.arange(8) * 1e-8
    refused(NumericError, "seem to be normalised", LpLA().fit, LabelledFeatures(features(unit), member))
    with pytest.raises(NumericError, match="needs 2 known members"):
        LpLA().fit(LabelledFeatures(features(np.arange(8.0)), np.arange(8) == 0))
    refused(ConfigError, "p = -1", LpLAParameters, p=-1)
    assert LpLA(LpLAParameters(p=1)).needs == (LpNorm(1),)
    assert LpLA().queries_per_sample(10) == 1


@pytest.mark.parametrize("higher", ["members", "non-members"])
def test_the_plain_threshold_is_halfway_between_the_means(higher: str) -> None:
    generator = np.random.default_rng(0)
    member = np.arange(60) % 2 == 0
    norms = np.where(member == (higher == "members"), 12.0, 10.0) + generator.normal(0, 0.5, 60)
    attack = LpLA(LpLAParameters(decision="threshold"))
    attack.fit(LabelledFeatures(features(norms), member))
    middle = (norms[member].mean() + norms[~member].mean()) / 2
    called = attack.score(features(norms)) >= attack.threshold
    np.testing.assert_array_equal(called, norms >= middle if higher == "members" else norms <= middle)
    refused(ConfigError, "decision = 'guess'", LpLAParameters, decision="guess")


def test_normalised_embeddings_are_not_applicable() -> None:
    refused(NotApplicable, "leave lpla out", LpLA().fit, LabelledFeatures(features(np.ones(8)), np.arange(8) % 2 == 0))
    rounded = 1 + np.random.default_rng(0).uniform(-5e-4, 5e-4, 80)  # normalised, then in half precision
    with pytest.raises(NotApplicable, match="1 within 0.001: the embeddings seem to be normalised"):
        LpLA().fit(LabelledFeatures(features(rounded), np.arange(80) % 2 == 0))
    LpLA().fit(LabelledFeatures(features(np.where(np.arange(80) == 7, 1.002, rounded)), np.arange(80) % 2 == 0))
