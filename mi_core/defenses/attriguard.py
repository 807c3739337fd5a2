"""AttriGuard (Jia and Gong, USENIX Security 2018) on representations, as ContrastiveLeaks adapts it.

The provider trains an adversary to tell the attribute from a representation. Phase I finds, for each value of the
attribute, the smallest change of the representation that makes the adversary tell that value. Phase II draws one of
the values and answers with its representation. They are drawn from the distribution Q that is closest to the shares of
the values among the members (smallest Kullback-Leibler divergence of the shares from Q) while the expected change stays
within a budget (section 5 of the paper). ContrastiveLeaks (He and Zhang, CCS 2021, section 5.2) takes the adversary of
Talos and, for phase I, the attack of Carlini and Wagner (S&P 2017, section VI.C) by the largest change of a dimension.

Neither paper gives a budget, or a training of the adversary, for representations: the defaults are this project's.
Changes are counted in standard deviations of the members' representations, one for all dimensions, so that a setting
means the same for every encoder. What the encoder answers on top of the representation is computed from the changed
one.

What it leaves: the smallest change ends just beyond the boundary of the adversary, where hardly any representation
stood before. An attacker who trains on defended answers learns that, and tells the true value from it; ContrastiveLeaks
measures .176 on Places100 with ResNet-18, where MemGuard, which leaves representations alone, has .178 (section 5.3).
``confidence`` asks for a margin beyond the boundary, where those who have the value by nature stand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mi_core import mlp
from mi_core.checks import check_fields, check_finite
from mi_core.defenses.base import Defended, Defense, ProviderData, State, answers, query_streams, searching
from mi_core.encoders.checkpoint import Encoder, seeded
from mi_core.objectives.gradient_reversal import Adversary, attribute_shares
from mi_core.streams import uniforms

# B queries, D width, K values of the attribute.
SHRINK = 0.9  # of the bound on the change after a success (Carlini and Wagner, section VI.C)
FIRST_WEIGHT = 0.01  # c, doubled after each failure
_HALVINGS = 60  # of the multiplier in phase II
_SHORTENINGS = 10  # halvings of the way to what phase I found
_POINTS = 8192  # representations that are searched at once


@dataclass(frozen=True)
class AttriGuardParameters:
    """Settings of the answers, and of the adversary's training (Adam, as the released script of Talos has it).

    Args:
        budget: of the change that is largest among all dimensions, expected over the values drawn; in standard
            deviations of the representation.
        confidence: by how much the adversary's logit of the drawn value is to exceed all others; 0: just so.
        rounds: of phase I; each starts from what the last found, with a smaller bound on the change.
        steps: of Adam in a round.
        step: learning rate of these, in standard deviations.
        learning_rate: of the adversary.
        epochs, batch_size: of its training.
    """

    budget: float = 1.0
    confidence: float = 0.0
    rounds: int = 10
    steps: int = 50
    step: float = 0.05
    learning_rate: float = 3e-4
    epochs: int = 100
    batch_size: int = 256

    def __post_init__(self) -> None:
        check_fields(self, "budget", "confidence", low=0)
        check_fields(self, "rounds", "steps", low=1)
        check_fields(self, "step", low=0, open_low=True)
        self.training()

    def training(self) -> mlp.Training:
        """Optimizer and schedule of the adversary."""
        return mlp.Training(self.learning_rate, self.epochs, self.batch_size, weight_decay=1e-4)


class AttriGuard(Defense):
    """Representations that an adversary takes for those of another value of the attribute.

    The encoder stays as it is, and every answer is searched for: up to ``rounds`` times ``steps`` steps, so it is slow.

    It reports ``adversary_accuracy``, in [0, 1]: the share of the provider's images whose value the adversary tells. It
    was trained on these images, so the number says whether the training succeeded. Of other images it tells fewer.
    """

    name = "attriguard"
    hides = "attributes"
    source = "AttriGuard (Jia and Gong, USENIX Security 2018); ContrastiveLeaks (CCS 2021), section 5.2"
    needs = frozenset({"attributes"})
    Parameters = AttriGuardParameters

    def fit(self, encoder: Encoder, members: ProviderData, outside: ProviderData | None = None) -> State:
        """Train the adversary; see `Defense.fit`."""
        self._check_needs(encoder, members, outside)
        assert members.attributes is not None
        shares = attribute_shares(members.attributes, len(members.images))
        representation = answers(encoder, members.images, "backbone")
        check_finite("embedding of the provider's images", representation)
        variance = representation.var(dim=0, correction=0).mean()
        # root mean square of the standard deviations of all dimensions; 1 where nothing varies
        mean, deviation = representation.mean(dim=0), torch.where(variance > 0, variance.sqrt(), 1.0)
        inputs = ((representation - mean) / deviation).numpy()
        values = members.attributes.cpu().numpy()
        training: mlp.Training = self.parameters.training()
        made = partial(Adversary, inputs.shape[1], len(shares))
        network = mlp.fit(made, inputs, values, training, seed=self.seed, loss=F.cross_entropy)
        inferred = mlp.predict(network, inputs).argmax(axis=1)
        return {
            **mlp.weights(network),
            "shares": shares.numpy(),
            "mean": mean.numpy(),
            "deviation": deviation.numpy(),
            "report.adversary_accuracy": np.array((inferred == values).mean()),
            "report.most_frequent_value": shares.max().numpy(),
        }

    def defended(self, encoder: Encoder, state: State) -> Encoder:
        """The encoder with changed representations, and whatever it makes of them."""
        layout = seeded(0, lambda: Adversary(len(state["mean"]), len(state["shares"])))
        return Defended(encoder, "backbone", _Guard(mlp.restored(layout, state), state, self.parameters, self.seed))


class _Guard(nn.Module):
    """Representations (B, D) to those drawn for them."""

    mean: torch.Tensor
    deviation: torch.Tensor
    shares: torch.Tensor

    def __init__(self, adversary: nn.Module, state: State, parameters: AttriGuardParameters, seed: int) -> None:
        super().__init__()
        self.adversary = adversary.requires_grad_(False)
        for name in ("mean", "deviation", "shares"):
            self.register_buffer(name, torch.tensor(state[name]))
        self.settings, self.seed = parameters, seed

    def forward(self, representation: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        if self.settings.budget == 0:
            return representation
        given = representation.float()
        drawn = uniforms(query_streams(self.seed, AttriGuard.name, images), epoch=0, view=0, count=1)[:, 0]
        block = max(1, _POINTS // len(self.shares))
        changed = [self._change_to_drawn(*part) for part in zip(given.split(block), drawn.split(block), strict=True)]
        return torch.cat(changed)

    def _change_to_drawn(self, given: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        values = len(self.shares)
        targets = torch.arange(values, device=given.device).repeat(len(given))
        points = ((given - self.mean) / self.deviation).repeat_interleave(values, dim=0)
        changes = smallest_changes(self.adversary, points, targets, self.settings).unflatten(0, (-1, values))
        sizes = changes.abs().amax(dim=2)
        choices = value_distribution(self.shares, sizes, self.settings.budget).cumsum(dim=1)
        value = (drawn[:, None] >= choices[:, :-1]).sum(dim=1)
        rows = torch.arange(len(given), device=given.device)
        return torch.where(sizes[rows, value, None] > 0, given + self.deviation * changes[rows, value], given)


def smallest_changes(
    classify: Callable[[torch.Tensor], torch.Tensor],
    points: torch.Tensor,
    targets: torch.Tensor,
    search: AttriGuardParameters,
) -> torch.Tensor:
    """Phase I: Carlini and Wagner's attack with the largest change of a dimension, for all points at once.

    A round minimises c f(x + r) + sum_i max(|r_i| - tau, 0) by Adam, f how far the target's logit falls short of all
    others and the confidence. After a round that reaches the target tau is 0.9 of the largest change of a dimension in
    the smallest r so far; after another c is doubled. The smallest r of all steps counts, shortened by bisection as
    long as it reaches the target.

    Args:
        classify: points (N, D) to logits (N, K), differentiable.
        points: (N, D) float.
        targets: (N,) int64.
        search: its ``confidence``, ``rounds``, ``steps`` and ``step``.

    Returns (N, D): 0 where the target is reached already, infinite where no change reaches it.
    """
    with searching(points.device):
        points = points.detach().clone()
        reached = classify(points).argmax(dim=1) == targets
        changes = torch.where(reached[:, None], 0.0, torch.inf).expand_as(points).to(points.dtype).clone()
        rows = torch.nonzero(~reached).flatten()
        if not len(rows):
            return changes
        given, own = points[rows], targets[rows, None]

        def shortfall(change: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            logits = classify(given + change)
            short = logits.scatter(1, own, -torch.inf).amax(dim=1) + search.confidence - logits.gather(1, own)[:, 0]
            return short, (short <= 0) & (logits.argmax(dim=1) == own[:, 0])

        best, size = torch.zeros_like(given), torch.full_like(given[:, 0], torch.inf)
        bound, weight = size.clone(), torch.full_like(size, FIRST_WEIGHT)
        for _ in range(search.rounds):
            moved, before = best.clone().requires_grad_(True), size
            optimizer = torch.optim.Adam([moved], lr=search.step)
            for step in range(search.steps + 1):
                short, reached = shortfall(moved)
                largest = moved.detach().abs().amax(dim=1)
                better = reached & (largest < size)
                best[better], size = moved.detach()[better], torch.where(better, largest, size)
                if step == search.steps:
                    break
                optimizer.zero_grad(set_to_none=True)
                excess = (moved.abs() - bound[:, None]).clamp_min(0).sum(dim=1)
                (weight * short.clamp_min(0) + excess).sum().backward()
                optimizer.step()
            succeeded = size.isfinite()
            low, high = torch.zeros_like(size), torch.ones_like(size)
            for _ in range(_SHORTENINGS):
                middle = (low + high) / 2
                reached = shortfall(middle[:, None] * best)[1]
                low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
            best, size = torch.where(succeeded[:, None], high[:, None] * best, moved.detach()), high * size
            bound = torch.where(size < before, SHRINK * size, bound)
            weight = torch.where(size < before, weight, 2 * weight)
        changes[rows] = torch.where(size.isfinite()[:, None], best, torch.inf)
        return changes


def value_distribution(shares: torch.Tensor, sizes: torch.Tensor, budget: float) -> torch.Tensor:
    """Phase II: the distribution over values closest to the shares with the expected change within the budget.

    Minimising KL(p || q) under sum q = 1 and sum q d <= budget gives q_i = p_i / (mu d_i + lambda). Where the shares
    themselves exceed the budget the conditions make lambda = 1 - mu budget, and mu is found by bisection.

    Args:
        shares: p (K,) float64, all above 0.
        sizes: d (B, K), infinite for values that cannot be had, at least one 0 in a row.
        budget: above 0.

    Returns:
        q (B, K) float64; each row sums to 1.
    """
    reachable = sizes.isfinite()
    wanted = shares * reachable
    wanted = wanted / wanted.sum(dim=1, keepdim=True)
    distances = torch.where(reachable, sizes, 0.0).double()
    above = (distances - budget) * reachable

    def at(multiplier: torch.Tensor) -> torch.Tensor:
        return wanted / (1 + multiplier[:, None] * above)

    low = torch.zeros_like(distances[:, 0])
    high = torch.full_like(low, 1 / budget)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        beyond = at(middle).sum(dim=1) > 1
        low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    bound = (wanted * distances).sum(dim=1) > budget
    chosen = torch.where(bound[:, None], at(low), wanted)
    return chosen / chosen.sum(dim=1, keepdim=True)
