"""SD-MI: distances as by hand, anchors counted, the released variant as its script has it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mi_core import mlp
from mi_core.attacks.base import NotApplicable
from mi_core.attacks.sd_mi import SDMI, SDMIParameters, anchor_distances, inputs_of
from mi_core.checks import ConfigError, ShapeError
from mi_core.records import Features, LabelledFeatures
from tests.raising import refused


def features(count: int = 40, anchors: int = 6, seed: int = 0) -> tuple[Features, np.ndarray]:
    generator = np.random.default_rng(seed)
    values = {"embedding": generator.normal(3, 2, (count, 4)).astype(np.float32)}
    ids = np.array([f"pool/{row}" for row in range(count)])
    return Features(ids, values, generator.normal(size=(anchors, 4))), np.arange(count) % 2 == 0


@pytest.mark.parametrize("squared", [False, True])
def test_distances_by_hand(squared: bool) -> None:
    given, _ = features()
    assert given.anchors is not None
    found = anchor_distances(given.values["embedding"], given.anchors, squared=squared)
    for row, embedding in enumerate(given.values["embedding"]):
        for column, anchor in enumerate(given.anchors):
            square = sum((float(a) - float(b)) ** 2 for a, b in zip(embedding, anchor, strict=True))
            assert found[row, column] == pytest.approx(square if squared else math.sqrt(square), rel=1e-4)


def test_inputs_are_scaled_by_the_reference() -> None:
    given, member = features()
    attack = SDMI(SDMIParameters(epochs=1))
    attack.fit(LabelledFeatures(given, member))
    inputs = inputs_of(given.values["embedding"], attack._distances(given), attack.state())
    assert inputs.shape == (40, 4 + 6)
    np.testing.assert_allclose(inputs[:, 4:].min(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(inputs[:, 4:].max(axis=0), 1, atol=1e-6)


@pytest.mark.parametrize(("settings", "expected"), [
    ({}, mlp.Training(1e-3, 200, 128)),
    ({"variant": "released"}, mlp.Training(0.1, 5000, 0, "sgd", halve_every=2000)),
    ({"variant": "released", "selector": False}, mlp.Training(0.1, 30000, 0, "sgd", halve_every=2000)),
    ({"epochs": 7}, mlp.Training(1e-3, 7, 128)),
])  # fmt: skip
def test_schedules(settings: dict[str, Any], expected: mlp.Training) -> None:
    assert SDMIParameters(**settings).training() == expected


def test_no_epochs_are_not_those_of_the_variant() -> None:
    refused(ConfigError, "epochs", SDMIParameters, epochs=0)


def test_the_released_variant_squares_and_scores() -> None:
    given, member = features()
    attack = SDMI(SDMIParameters(variant="released", epochs=3))
    attack.fit(LabelledFeatures(given, member))
    assert attack.state()["low"] == pytest.approx((SDMI()._distances(given) ** 2).min(axis=0), rel=1e-3)
    assert np.isfinite(attack.score(given)).all()


def test_the_selector_can_be_left_out() -> None:
    given, member = features()
    with_it, without = SDMI(SDMIParameters(epochs=1)), SDMI(SDMIParameters(epochs=1, selector=False))
    for attack in (with_it, without):
        attack.fit(LabelledFeatures(given, member))
    assert any("selector" in name for name in with_it.state())
    assert not any("selector" in name for name in without.state())


def test_fewer_anchors_than_asked() -> None:
    given, member = features(anchors=6)
    few = SDMI(SDMIParameters(anchors=3, epochs=1))
    few.fit(LabelledFeatures(given, member))
    assert few.state()["low"].shape == (3,)
    with pytest.raises(ConfigError, match="anchors = 7, but 6 are given; lower it, or enlarge the anchor role"):
        SDMI(SDMIParameters(anchors=7)).fit(LabelledFeatures(given, member))
    refused(ShapeError, "anchors are empty", Features, given.ids, given.values, np.zeros((0, 4)))


def test_embeddings_of_another_width_do_not_apply() -> None:
    given, member = features()
    attack = SDMI(SDMIParameters(epochs=1))
    attack.fit(LabelledFeatures(given, member))
    wider = Features(given.ids, {"embedding": np.zeros((40, 5))}, np.zeros((6, 5)))
    refused(NotApplicable, "sd-mi was fitted on embeddings of 4 numbers, these have 5", attack.score, wider)
