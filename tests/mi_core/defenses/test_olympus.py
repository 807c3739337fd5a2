"""Olympus against a loop written from the paper."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.defenses.base import ProviderData, numbers
from mi_core.defenses.olympus import Olympus, OlympusParameters
from mi_core.encoders.checkpoint import Encoder
from mi_core.objectives.gradient_reversal import Adversary
from tests.mi_core.defenses.planted import attribute_images, classifier

MEMBERS = attribute_images(600, 0)


def test_the_fine_tuning_is_that_of_the_paper() -> None:
    """The task's cross-entropy minus lambda times the adversary's, the adversary in turns, batch by batch."""
    encoder, factor, rate, decay = classifier(), 0.7, 1e-3, 1e-4
    members = attribute_images(50, 3)
    chosen = OlympusParameters(factor=factor, learning_rate=rate, epochs=2, batch_size=20)
    state = Olympus(chosen, seed=5).fit(encoder, members)
    served = Olympus(chosen, seed=5).defended(encoder, state)

    torch.manual_seed(5)
    there = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())
    back = nn.Sequential(nn.Linear(128, 256), nn.Linear(256, 16))
    adversary = Adversary(16, 3)
    backbone, head = copy.deepcopy(encoder.backbone), copy.deepcopy(encoder.heads["logits"])
    parts = [backbone, there, back, head]
    model_step = torch.optim.Adam([p for part in parts for p in part.parameters()], lr=rate, weight_decay=decay)
    adversary_step = torch.optim.Adam(adversary.parameters(), lr=rate, weight_decay=decay)
    images = (members.images.float() / 255 - 0.5) / 0.25
    assert members.labels is not None
    assert members.attributes is not None
    for _ in range(2):
        adversary_loss = 0.0
        for rows in torch.randperm(50).tensor_split(3):
            representation = back(there(backbone(images[rows])))
            adversary_step.zero_grad()
            F.cross_entropy(adversary(representation.detach()), members.attributes[rows]).backward()
            adversary_step.step()
            model_step.zero_grad()
            task = F.cross_entropy(head(representation), members.labels[rows])
            hidden = F.cross_entropy(adversary(representation), members.attributes[rows])
            adversary_loss += hidden.item() * len(rows) / 50
            (task - factor * hidden).backward()
            model_step.step()
    with torch.no_grad():
        expected = back(there(backbone(images)))
        found = served(members.images.float() / 255)
    torch.testing.assert_close(found["backbone"], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found["logits"], head(expected), rtol=1e-4, atol=1e-5)
    told, right = numbers(state), (head(expected).argmax(dim=1) == members.labels).float().mean()
    assert told["task_accuracy_members"] == pytest.approx(right.item(), abs=0.03)
    assert told["adversary_loss"] == pytest.approx(adversary_loss, rel=1e-3)


def test_nothing_but_the_autoencoder_is_new() -> None:
    encoder = classifier()
    state = Olympus(OlympusParameters(epochs=1)).fit(encoder, MEMBERS)
    shapes = [tuple(state[f"weights.backbone.autoencoder.{layer}.weight"].shape) for layer in (0, 2, 4, 5)]
    assert shapes == [(256, 16), (128, 256), (256, 128), (16, 256)]
    served = Olympus(OlympusParameters(epochs=1)).defended(encoder, state)
    assert {f"weights.{name}" for name in served.state_dict() if name not in ("mean", "std")} == {
        key for key in state if key.startswith("weights.")
    }
    del state["weights.logits.bias"]  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"logits\.bias"):
        Olympus(OlympusParameters(epochs=1)).defended(encoder, state)


def test_a_frozen_encoder_learns_too() -> None:
    encoder = classifier().requires_grad_(False)
    state = Olympus(OlympusParameters(epochs=1)).fit(encoder, MEMBERS)
    assert not np.array_equal(state["weights.backbone.backbone.1.weight"], np.eye(16))
    assert not encoder.backbone[1].weight.requires_grad  # type: ignore[index]


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"factor": -1}, "factor"), ({"learning_rate": 0}, "learning_rate"), ({"batch_size": 1}, "batch_size")],
)
def test_impossible_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OlympusParameters(**settings)


def test_mistakes() -> None:
    encoder: Encoder = classifier()
    assert MEMBERS.labels is not None
    with pytest.raises(ConfigError, match="label 4 is not within 0 to 3, the classes of the head"):
        Olympus().fit(encoder, ProviderData(MEMBERS.images, MEMBERS.labels + 1, MEMBERS.attributes))
    with pytest.raises(ShapeError, match="labels has shape"):
        Olympus().fit(encoder, ProviderData(MEMBERS.images, MEMBERS.labels[1:], MEMBERS.attributes))
    with pytest.raises(NumericError, match="diverged in epoch"):
        Olympus(OlympusParameters(learning_rate=1e30, epochs=5)).fit(encoder, MEMBERS)
