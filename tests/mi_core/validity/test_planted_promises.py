"""A mechanism whose noise is switched off is refuted; the honest one is not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mi_core.defenses import DEFENSES
from mi_core.defenses.base import ProviderData, numbers
from mi_core.defenses.privacy import promised
from mi_core.validity.one_run import best_bound, grid_of, guess
from tests.mi_core.defenses.classifiers import classifier, digits

CANARIES, PLAIN = 200, 50


def shown(name: str, seed: int, *, gaussian: bool = False, **settings: Any) -> tuple[float, float]:
    """The epsilon that a defense promises, and the lower bound that canaries with a wrong class show by their loss."""
    rng = np.random.default_rng(seed)
    data, encoder = digits(), classifier()
    assert data.labels is not None
    drawn = torch.from_numpy(rng.permutation(len(data.labels)))
    canaries, plain = drawn[:CANARIES], drawn[CANARIES : CANARIES + PLAIN]
    labels = data.labels.clone()
    labels[canaries] = (labels[canaries] + torch.from_numpy(rng.integers(1, 10, CANARIES))) % 10
    inside = rng.random(CANARIES) < 0.5
    rows = torch.cat([plain, canaries[torch.from_numpy(inside)]])
    method = DEFENSES[name]
    defense = method(method.Parameters(**settings), seed=seed)
    state = defense.fit(encoder, ProviderData(data.images[rows], labels[rows]))
    served = defense.defended(encoder, state)
    with torch.no_grad():
        logits = served(data.images[canaries].float() / 255)["logits"]
    scores = -F.cross_entropy(logits, labels[canaries], reduction="none").double().numpy()
    several = [guess(scores, inside, count, rng.permutation(CANARIES)) for count in grid_of(CANARIES)]
    promise, _ = promised(numbers(state)) or (math.inf, 0.0)
    return promise, best_bound(several, delta=1e-5, gaussian=gaussian).epsilon


CONVEX = {"head": "convex", "penalty": 1e-4, "delta": 1e-5}
LOUD = {"batch_size": 50, "learning_rate": 4.0, "max_grad_norm": 8.0, "epochs": 200, "delta": 1e-5}


@pytest.mark.parametrize(
    ("name", "honest", "silent"),
    [
        ("additive-gaussian", {**CONVEX, "epsilon": 1.0}, {**CONVEX, "scale": 0.0}),
        ("additive-laplace", {**CONVEX, "epsilon": 1.0}, {**CONVEX, "scale": 0.0}),
        ("dp-sgd", {**LOUD, "noise_multiplier": 80.0}, {**LOUD, "noise_multiplier": 0.0}),
    ],
)
def test_noise_that_is_switched_off_refutes_epsilon_1(
    name: str, honest: dict[str, Any], silent: dict[str, Any]
) -> None:
    promise, bound = shown(name, 0, **honest)
    assert bound <= promise <= 1.0
    promise, bound = shown(name, 0, **silent)
    assert promise == math.inf  # as it reports, if it does not lie
    assert bound > 1.0


def test_the_gaussian_family_shows_more_of_silent_noise_and_nothing_wrong_of_honest_noise() -> None:
    silent = {**CONVEX, "scale": 0.0}
    assert shown("additive-gaussian", 1, gaussian=True, **silent)[1] > shown("additive-gaussian", 1, **silent)[1]
    assert shown("additive-gaussian", 1, gaussian=True, **CONVEX, epsilon=1.0)[1] <= 1.0
