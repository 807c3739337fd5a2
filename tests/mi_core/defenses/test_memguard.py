"""MemGuard: phase I against a search of one query at a time, phase II by counting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mi_core import mlp
from mi_core.checks import ConfigError, NumericError
from mi_core.defenses.base import answers, numbers
from mi_core.defenses.memguard import MemGuard, MemGuardParameters, carried_over, noise_chance
from mi_core.encoders.checkpoint import Encoder
from tests.mi_core.defenses.planted import Sharper, encoder_of, membership_images

KNOWN = [membership_images(300, side, member=not side) for side in (0, 1)]


@pytest.fixture(scope="module")
def plain() -> Encoder:
    return encoder_of(nn.Flatten(), Sharper())


@pytest.fixture(scope="module")
def state(plain: Encoder) -> Any:
    return MemGuard(MemGuardParameters()).fit(plain, *KNOWN)


@pytest.fixture(scope="module")
def served(plain: Encoder, state: Any) -> Encoder:
    return MemGuard().defended(plain, state)


@pytest.fixture(scope="module")
def searched(plain: Encoder, served: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of 60 members, and what phase I makes of them."""
    logits = answers(plain, KNOWN[0].images[:60], "logits")
    return logits, carried_over(served.change.network, logits)


def one_query(network: nn.Module, given: torch.Tensor) -> torch.Tensor:
    """Phase I of one posterior, as section 4.2 and the scripts have it."""

    def judged(logits: torch.Tensor) -> torch.Tensor:
        return network(torch.sort(torch.softmax(logits, 0)).values[None])[0, 0]

    label, side = int(given.argmax()), float(judged(given))
    kept = given.clone()
    if abs(1 / (1 + np.exp(-side)) - 0.5) <= 1e-5:
        return kept
    weight = 0.1
    while weight < 2e5:
        now = given.clone()
        for _ in range(300):
            now = now.detach().requires_grad_(True)
            others = torch.cat([now[:label], now[label + 1 :]]).max()
            noise = (torch.softmax(now, 0) - torch.softmax(given, 0)).abs().sum()
            loss = judged(now).abs() + 10 * torch.relu(others - now[label]) + weight * noise
            loss.backward()
            now = (now - 0.1 * now.grad / now.grad.norm()).detach()
            if float(judged(now)) * side <= 0 and int(now.argmax()) == label:
                break
        else:
            return kept
        kept, weight = now, weight * 10
    return kept


def test_the_search_is_that_of_one_query_at_a_time() -> None:
    generator = torch.Generator().manual_seed(3)
    network = mlp.layers(5, 16, 1).double().requires_grad_(False)
    logits = 2 * torch.randn(8, 5, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        network[0].weight.copy_(3 * torch.randn(16, 5, generator=generator))
        network[2].weight.copy_(torch.randn(1, 16, generator=generator))
        network[2].bias -= network(logits.softmax(dim=1).sort(dim=1).values).median()
    slow = torch.stack([one_query(network, row) for row in logits])
    found = carried_over(network, logits)
    torch.testing.assert_close(found, slow, rtol=1e-9, atol=1e-9)
    assert int((found != logits).any(dim=1).sum()) >= 4


def test_changed_answers_are_on_the_other_side_and_keep_the_class(served: Any, searched: Any) -> None:
    network, (logits, found) = served.change.network, searched

    def side(values: torch.Tensor) -> np.ndarray:
        return mlp.predict(network, values.softmax(dim=1).sort(dim=1).values.numpy())

    moved = (found != logits).any(dim=1).numpy()
    assert moved.mean() > 0.7
    assert (side(found)[moved] * side(logits)[moved] <= 1e-6).all()
    assert torch.equal(found.argmax(dim=1), logits.argmax(dim=1))


def test_a_network_that_saw_few_images_is_trained_to_its_end(plain: Encoder, state: Any) -> None:
    """It tells what it was trained on, and most answers change; 400 epochs of gradient descent changed none."""
    few = MemGuard().fit(plain, *(membership_images(60, seed, member=not seed) for seed in (0, 1)))
    for told in map(numbers, (few, state)):
        assert told["network_accuracy"] > 0.75
        assert told["answers_changed"] > 0.75


def test_the_share_of_changed_answers_is_that_of_the_answers(plain: Encoder, state: Any, served: Any) -> None:
    logits, found = (torch.cat([answers(model, one.images, "logits") for one in KNOWN]) for model in (plain, served))
    changed = (logits != found).any(dim=1).float().mean()
    assert numbers(state)["answers_changed"] == pytest.approx(float(changed), abs=0.03)


def test_the_budget_is_the_expected_noise(plain: Encoder, state: Any, served: Any, searched: Any) -> None:
    images, network, budget, (logits, changed) = KNOWN[0].images[:60], served.change.network, 0.1, searched
    noise = (changed.softmax(dim=1) - logits.softmax(dim=1)).abs().sum(dim=1)
    chance = noise_chance(network, logits, changed, budget)
    level = [
        (torch.sigmoid(network(each.softmax(dim=1).sort(dim=1).values)[:, 0]) - 0.5).abs() for each in (logits, changed)
    ]
    for row in range(len(images)):  # as section 4.3 has it
        useless = level[0][row] <= level[1][row]
        assert float(chance[row]) == pytest.approx(0.0 if useless else min(budget / float(noise[row]), 1.0))
    found = answers(MemGuard(MemGuardParameters(budget=budget)).defended(plain, state), images, "logits")
    applied = (found != logits).any(dim=1).float()
    assert (chance > 0).any()
    assert (chance < 1).any()
    deviation = (chance * (1 - chance)).sum().sqrt()
    assert (applied.sum() - chance.sum()).abs() < 4 * deviation
    assert (noise * applied).mean() < budget + 4 * (noise**2 * chance * (1 - chance)).sum().sqrt() / len(images)
    # the logits are those of the changed posterior, and the others keep every bit
    torch.testing.assert_close(found[applied > 0].softmax(dim=1), changed[applied > 0].softmax(dim=1))
    assert torch.equal(found[applied == 0], logits[applied == 0])


def test_members_and_outside_weigh_the_same(plain: Encoder) -> None:
    few, many = membership_images(60, 8, member=False), membership_images(300, 9, member=False)
    state = MemGuard(MemGuardParameters(learning_rate=0.05, epochs=20)).fit(plain, few, many)
    network = mlp.restored(mlp.layers(10, 256, 128, 64, 1), dict(state))
    judged = mlp.predict(network, answers(plain, many.images, "logits").softmax(dim=1).sort(dim=1).values.numpy())
    assert abs(np.mean(judged)) < 0.5  # log(60 / 300) = -1.6 if they did not
    assert numbers(state)["network_accuracy"] == pytest.approx(0.5, abs=0.15)


def test_mistakes(plain: Encoder) -> None:
    for settings, message in (({"budget": -0.1}, "budget"), ({"budget": 3}, "budget"), ({"epochs": 0}, "epochs")):
        with pytest.raises(ConfigError, match=message):
            MemGuardParameters(**settings)
    broken = encoder_of(nn.Flatten(), nn.Linear(16, 4))
    with torch.no_grad():
        broken.logits.bias.fill_(torch.nan)  # type: ignore[operator]
    with pytest.raises(NumericError, match="logit of the provider's images"):
        MemGuard().fit(broken, *KNOWN)
