"""DP-SGD: one step by hand, and learning that stops with the noise."""

from __future__ import annotations

import io
import json
import math
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.defenses.base import ProviderData, numbers
from mi_core.defenses.dp_sgd import DpSgd, DpSgdParameters
from mi_core.encoders.checkpoint import fingerprint
from tests.mi_core.defenses.classifiers import classifier, digits

TRAIN, TEST = slice(0, 1200), slice(1200, None)


def part(rows: slice) -> ProviderData:
    data = digits()
    return ProviderData(data.images[rows], data.labels[rows])


def accuracy(seed: int = 0, **settings: Any) -> float:
    encoder, test = classifier(), part(TEST)
    defense = DpSgd(DpSgdParameters(**settings), seed=seed)
    served = defense.defended(encoder, defense.fit(encoder, part(TRAIN)))
    assert test.labels is not None
    with torch.no_grad():
        called = served(test.images.float() / 255)["logits"].argmax(dim=1)
    return float((called == test.labels).float().mean())


def test_it_learns_without_noise_less_with_it_and_not_under_much() -> None:
    fine, some, none = (
        accuracy(noise_multiplier=noise, batch_size=100, learning_rate=2.0) for noise in (1e-6, 3.0, 1000.0)
    )
    assert fine > 0.85
    assert 0.5 < some < fine
    assert none < 0.3


def test_without_noise_there_is_no_guarantee() -> None:
    data = part(slice(0, 100))
    noises = (0.0, 1e-3, 0.5, 1.0, 4.0)
    settings = [DpSgdParameters(noise_multiplier=noise, batch_size=50, epochs=2) for noise in noises]
    told = [numbers(DpSgd(chosen).fit(classifier(), data)) for chosen in settings]
    assert not told[0].keys() & {"epsilon_rdp", "delta"}
    json.dumps(told, allow_nan=False)  # a run writes them
    spent = [one["epsilon_rdp"] for one in told[1:]]
    assert all(more > less for more, less in pairwise(spent))


def test_one_step_is_the_algorithm_by_hand() -> None:
    """Every image, no noise: the mean of gradients that are clipped one by one, weights and biases together."""
    encoder, data, longest = classifier(), part(slice(0, 40)), 3.0
    assert data.labels is not None
    settings = DpSgdParameters(noise_multiplier=0, max_grad_norm=longest, batch_size=40, epochs=1, learning_rate=2.0)
    states = [
        DpSgd(chosen, seed=4).fit(encoder, data)
        for chosen in (settings, DpSgdParameters(noise_multiplier=0, batch_size=40, epochs=1, learning_rate=1e-30))
    ]
    start = nn.Linear(128, 10)  # a step of nothing leaves the fresh weights
    start.load_state_dict({name: torch.tensor(states[1][f"logits.{name}"]) for name in ("weight", "bias")})
    with torch.no_grad():
        inputs = encoder(data.images.float() / 255)["projection"]
    moves: dict[str, Any] = {"weight": 0, "bias": 0}
    lengths = []
    for embedding, label in zip(inputs, data.labels, strict=True):
        loss = nn.functional.cross_entropy(start(embedding[None]), label[None])
        gradients = dict(zip(moves, torch.autograd.grad(loss, [start.weight, start.bias]), strict=True))
        length = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients.values()))
        lengths.append(length)
        for name, gradient in gradients.items():
            moves[name] = moves[name] - 2.0 * gradient * min(1.0, longest / length) / 40
    assert min(lengths) < longest < max(lengths)
    for name, parameter in start.named_parameters():
        expected = (parameter.detach() + moves[name]).numpy()
        np.testing.assert_allclose(states[0][f"logits.{name}"], expected, rtol=1e-4, atol=1e-6)


def test_the_noise_of_a_step_has_its_deviation_and_the_old_head_is_not_read() -> None:
    data = part(slice(0, 100))
    settings = [
        DpSgdParameters(noise_multiplier=noise, max_grad_norm=0.5, batch_size=10, epochs=1, learning_rate=0.1)
        for noise in (100.0, 1e-9)
    ]
    encoder = classifier()
    noisy, plain = (DpSgd(chosen, seed=1).fit(encoder, data) for chosen in settings)
    difference = np.concatenate([(noisy[key] - plain[key]).ravel() for key in ("logits.weight", "logits.bias")])
    # ten steps of independent noise: rate * multiplier * length / batch size * sqrt(10)
    assert difference.std() == pytest.approx(0.1 * 100 * 0.5 / 10 * math.sqrt(10), rel=0.08)
    with torch.no_grad():
        encoder.heads["logits"].weight.zero_()
    again = DpSgd(settings[0], seed=1).fit(encoder, data)
    np.testing.assert_array_equal(again["logits.weight"], noisy["logits.weight"])


def test_the_seed_decides_and_the_encoder_stays() -> None:
    encoder, data, settings = classifier(), part(slice(0, 200)), DpSgdParameters(batch_size=20, epochs=2)
    before = fingerprint(encoder)
    torch.manual_seed(1)
    first = DpSgd(settings, seed=3).fit(encoder, data)
    torch.manual_seed(2)
    second, other = (DpSgd(settings, seed=seed).fit(encoder, data) for seed in (3, 4))
    assert fingerprint(encoder) == before
    for key in first:
        np.testing.assert_array_equal(first[key], second[key])
    assert not np.array_equal(first["logits.weight"], other["logits.weight"])
    stored = io.BytesIO()
    np.savez(stored, **first)
    stored.seek(0)
    with np.load(stored, allow_pickle=False) as arrays:
        again = DpSgd().defended(encoder, dict(arrays))
    assert fingerprint(again) == fingerprint(DpSgd(settings).defended(encoder, first)) != before


def test_steps_that_draw_nobody_are_steps() -> None:
    settings = DpSgdParameters(batch_size=1, epochs=20, delta=1e-3)  # three drawn nobody in eight
    state = DpSgd(settings).fit(classifier(), part(slice(0, 5)))
    assert numbers(state)["steps"] == 100
    assert np.isfinite(state["logits.weight"]).all()


def test_mistakes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, data = classifier(), part(slice(0, 100))
    with pytest.raises(ConfigError, match="the defense dp-sgd needs classes of the training images"):
        DpSgd().fit(encoder, ProviderData(data.images))
    with pytest.raises(ConfigError, match="dp-sgd trains a linear head, logits is a Sequential"):
        DpSgd().fit(classifier(head=nn.Sequential(nn.Linear(128, 10))), data)
    with pytest.raises(ConfigError, match=r"batch_size with 100 images = 256, allowed: \[1, 100\]"):
        DpSgd().fit(encoder, data)
    with pytest.raises(ConfigError, match=r"delta = 0\.01 with 100 images, allowed: below 1 / 100"):
        DpSgd(DpSgdParameters(delta=0.01, batch_size=10)).fit(encoder, data)
    with pytest.raises(ConfigError, match="label 5 is not within 0 to 4, the classes of the head"):
        DpSgd(DpSgdParameters(batch_size=10)).fit(classifier(head=nn.Linear(128, 5)), data)
    with pytest.raises(ShapeError, match="labels has shape"):
        DpSgd(DpSgdParameters(batch_size=10)).fit(encoder, ProviderData(data.images, torch.zeros(3, dtype=torch.int64)))
    with pytest.raises(NumericError, match="the head of dp-sgd diverged"):
        DpSgd(DpSgdParameters(batch_size=10, learning_rate=1e38, noise_multiplier=1e3)).fit(encoder, data)
    with pytest.raises(ConfigError, match=r"max_grad_norm = 0, allowed: \(0, inf\]"):
        DpSgdParameters(max_grad_norm=0)
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(ConfigError, match=r"dp-sgd needs opacus: pip install 'encoder-audit\[dp\]'"):
        DpSgd(DpSgdParameters(batch_size=10)).fit(encoder, data)
