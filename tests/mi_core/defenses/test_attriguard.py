"""AttriGuard: phase I against the optimum where it is known, phase II against a numerical optimiser."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from torch import nn

from mi_core import mlp
from mi_core.checks import ConfigError, NumericError
from mi_core.defenses.attriguard import AttriGuard, AttriGuardParameters, smallest_changes, value_distribution
from mi_core.defenses.base import ProviderData, answers
from mi_core.objectives.gradient_reversal import Adversary
from tests.mi_core.defenses.planted import attribute_images, classifier, encoder_of

MEMBERS, TESTED = attribute_images(1000, 0), attribute_images(1000, 1)
SEARCH = AttriGuardParameters(rounds=3, steps=40, step=0.05)
CHOSEN = AttriGuardParameters(budget=10, confidence=2, rounds=2, steps=40, learning_rate=1e-3, epochs=20, batch_size=64)


@pytest.fixture(scope="module")
def state() -> Any:
    return AttriGuard(CHOSEN).fit(classifier(), MEMBERS)


@pytest.fixture(scope="module")
def served(state: Any) -> Any:
    return AttriGuard(CHOSEN).defended(classifier(), state)


@pytest.mark.parametrize("confidence", [0.0, 2.0])
def test_of_a_linear_adversary_the_smallest_change_is_found(confidence: float) -> None:
    """It is margin / |w_t - w_s|_1, along the signs."""
    generator = torch.Generator().manual_seed(0)
    points, layer = torch.randn(100, 16, generator=generator), nn.Linear(16, 2).requires_grad_(False)
    layer.weight.copy_(torch.randn(2, 16, generator=generator))
    logits = layer(points)
    targets = logits.argmin(dim=1)
    margin = logits.amax(dim=1) - logits.amin(dim=1) + confidence
    wanted = margin / (layer.weight[0] - layer.weight[1]).abs().sum()
    found = smallest_changes(layer, points, targets, replace(SEARCH, confidence=confidence)).abs().amax(dim=1)
    assert ((found / wanted >= 1 - 1e-4) & (found / wanted < 1.01)).all()


def test_of_a_network_the_changes_are_as_small_as_another_search_finds() -> None:
    """Projected sign gradients in a box, and bisection of its size."""
    generator = torch.Generator().manual_seed(1)
    adversary = Adversary(8, 3).requires_grad_(False)
    for parameter in adversary.parameters():
        parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    points = torch.randn(40, 8, generator=generator)
    targets = (adversary(points).argmax(dim=1) + 1) % 3
    found = smallest_changes(adversary, points, targets, AttriGuardParameters())
    assert (adversary(points + found).argmax(dim=1) == targets).all()
    low, high = torch.zeros(40, 1), torch.full((40, 1), 8.0)
    for _ in range(10):
        size, moved = (low + high) / 2, torch.zeros_like(points)
        reached = torch.zeros(40, 1, dtype=torch.bool)
        for _ in range(60):
            moved.requires_grad_(True)
            loss = F.cross_entropy(adversary(points + moved), targets, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, moved)
            moved = (moved.detach() - size / 10 * gradient.sign()).clamp(-size, size)
            reached |= (adversary(points + moved).argmax(dim=1) == targets)[:, None]
        low, high = torch.where(reached, low, size), torch.where(reached, size, high)
    ratio = found.abs().amax(dim=1) / high[:, 0]
    assert ratio.median() < 1.02
    assert ratio.max() < 1.5


def test_what_is_told_already_stays_and_what_cannot_be_reached_is_infinite() -> None:
    constant = nn.Linear(4, 3).requires_grad_(False)
    constant.weight.zero_()
    constant.bias.copy_(torch.tensor([1.0, 0.0, 0.0]))
    found = smallest_changes(constant, torch.randn(2, 4), torch.tensor([0, 1]), SEARCH)
    assert (found[0] == 0).all()
    assert found[1].isinf().all()


def test_the_distribution_is_the_one_that_an_optimiser_finds() -> None:
    generator = np.random.default_rng(0)
    shares = generator.dirichlet(np.ones(4))
    sizes = generator.exponential(1.0, (8, 4))
    sizes[np.arange(8), generator.integers(0, 4, 8)] = 0
    for budget in (0.02, 0.2, 0.6, 5.0):
        found = value_distribution(torch.from_numpy(shares), torch.from_numpy(sizes), budget).numpy()
        np.testing.assert_allclose(found.sum(axis=1), 1)
        assert ((found * sizes).sum(axis=1) <= budget * (1 + 1e-6)).all()
        for row, size in zip(found, sizes, strict=True):
            spread = min(1.0, budget / 2 / size.mean())
            best = minimize(
                lambda z: -shares @ log_softmax(z),  # the distribution is the softmax of z
                np.log((1 - spread) * (size == 0) + spread / 4),  # within the budget
                jac=lambda z: softmax(z) - shares,
                constraints={"type": "ineq", "fun": lambda z, size=size, budget=budget: budget - softmax(z) @ size},
                method="SLSQP",
                options={"ftol": 1e-12, "maxiter": 500},
            )
            assert best.success, best.message
            np.testing.assert_allclose(row, softmax(best.x), atol=1e-4)


def test_the_ends_of_the_budget() -> None:
    shares = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    sizes = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, torch.inf]])
    loose, tight = value_distribution(shares, sizes, 100.0), value_distribution(shares, sizes, 1e-6)
    torch.testing.assert_close(loose[0], shares)
    torch.testing.assert_close(loose[1], torch.tensor([0.625, 0.375, 0.0], dtype=torch.float64))
    torch.testing.assert_close(tight, torch.tensor([[1.0, 0, 0], [0, 1.0, 0]], dtype=torch.float64), atol=1e-5, rtol=0)


def test_the_accuracy_that_it_reports_is_on_the_images_of_its_training() -> None:
    """Attributes by lot are learned by heart: image by image on those of the training, and by chance on others."""
    encoder, generator = classifier(), np.random.default_rng(0)
    members, others = (
        replace(part, images=part.images[:60], labels=None, attributes=torch.from_numpy(generator.integers(0, 2, 60)))
        for part in (MEMBERS, TESTED)
    )
    state = AttriGuard(AttriGuardParameters(learning_rate=1e-2, epochs=200, batch_size=60)).fit(encoder, members)
    adversary = mlp.restored(Adversary(16, 2), state)

    def told_right(part: ProviderData) -> float:
        right = 0
        for row, value in enumerate(part.attributes.tolist()):
            answer = answers(encoder, part.images[row : row + 1], "backbone").numpy()
            right += int(mlp.predict(adversary, (answer - state["mean"]) / state["deviation"]).argmax() == value)
        return right / len(part.images)

    assert told_right(members) == pytest.approx(float(state["report.adversary_accuracy"]))
    assert told_right(members) > 0.8
    assert told_right(others) < 0.7


def test_values_are_drawn_as_often_as_they_should_be_and_the_budget_holds(state: Any) -> None:
    encoder = classifier()
    before = answers(encoder, TESTED.images, "backbone")
    adversary = mlp.restored(Adversary(16, 3), state)

    def said(representation: torch.Tensor) -> np.ndarray:
        inputs = (representation - torch.from_numpy(state["mean"])) / torch.from_numpy(state["deviation"])
        return mlp.predict(adversary, inputs.numpy()).argmax(axis=1)

    for budget, even in ((100.0, True), (0.1, False)):
        parameters = AttriGuardParameters(budget=budget, rounds=1, steps=40)
        after = answers(AttriGuard(parameters).defended(encoder, state), TESTED.images, "backbone")
        size = (after - before).abs().amax(dim=1) / float(state["deviation"])
        assert float(size.mean()) < budget + 4 * float(size.std()) / np.sqrt(1000)
        for value, share in enumerate(state["shares"]):
            mine = said(before) == value  # whoever it was, the adversary says each value by its share
            kept = (said(after)[mine] == value).mean()
            if even:
                assert abs(kept - share) < 4 * np.sqrt(share * (1 - share) / mine.sum())
            else:
                assert kept > share + 0.1
        unmoved = (after == before).all(dim=1).numpy()
        assert np.array_equal(unmoved, said(after) == said(before))


def test_heads_read_the_changed_representation(served: Any) -> None:
    changed = answers(served, TESTED.images[:50], "backbone")
    torch.testing.assert_close(answers(served, TESTED.images[:50], "logits"), served.logits(changed))


def test_representations_are_searched_in_blocks(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = answers(served, TESTED.images[:20], "backbone")
    monkeypatch.setattr("mi_core.defenses.attriguard._POINTS", 16)
    torch.testing.assert_close(answers(served, TESTED.images[:20], "backbone"), whole, rtol=1e-3, atol=1e-3)


def test_mistakes() -> None:
    for settings in ({"budget": -1}, {"confidence": -1}, {"rounds": 0}, {"steps": 0}, {"step": 0}, {"epochs": 0}):
        with pytest.raises(ConfigError, match=next(iter(settings))):
            AttriGuardParameters(**settings)
    with pytest.raises(ConfigError, match="number at least two from 0 on"):
        AttriGuard().fit(classifier(), ProviderData(MEMBERS.images[:3], attributes=torch.tensor([0, 2, 2])))
    broken = nn.Linear(16, 16)
    with torch.no_grad():
        broken.bias.fill_(torch.inf)
    encoder = encoder_of(nn.Sequential(nn.Flatten(), broken), nn.Linear(16, 4))
    with pytest.raises(NumericError, match="embedding of the provider's images"):
        AttriGuard().fit(encoder, MEMBERS)
