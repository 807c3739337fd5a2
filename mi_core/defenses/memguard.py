"""MemGuard (Jia et al., CCS 2019): posteriors with just enough noise that the provider's own attack has to guess.

The provider trains a network to tell members by their sorted posterior. Phase I (section 4.2) looks for the smallest
change of a posterior that brings this network to the other side of its boundary and keeps the predicted class, so that
accuracy is untouched. Phase II (section 4.3) answers with it by a chance that keeps the expected 1-norm of the noise
within a budget. Constants and the network are those of the authors' scripts. ContrastiveLeaks (He and Zhang, CCS 2021,
section 5.2) takes it over as it is, for the linear layer on an encoder.

What differs from the scripts: posteriors stay sorted while they are changed, where the scripts sort once, so that the
network judges in phase I what it judges in phase II; members and outside weigh the same however many there are; and the
network is trained by Adam until its loss no longer falls. The scripts' 400 epochs of plain gradient descent leave a
network that saw a few hundred images near its start, where it guesses and few answers are changed.

What it leaves: the changed posterior stands just beyond the boundary, on the side that the original was not on, so
whoever can find that boundary reads the original side from it. In this project's tests an attack on the two largest
posteriors finds less even when it is trained on defended answers, and one on all posteriors, trained so, finds as much
as without the defense. A budget below the noise leaves some answers as they were. Labels are untouched, and so are
attacks that read nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mi_core import mlp
from mi_core.checks import check_finite, check_range
from mi_core.defenses.base import Defended, Defense, ProviderData, State, answers, query_streams, searching
from mi_core.encoders.checkpoint import Encoder, seeded
from mi_core.streams import uniforms

# B queries, L classes.
HIDDEN = (256, 128, 64)
SIDE_WEIGHT, LABEL_WEIGHT = 1.0, 10.0  # c1 and c2
NOISE_WEIGHTS = tuple(10.0**power for power in range(-1, 6))  # c3, one after the other as long as each succeeds
STEP, STEPS = 0.1, 300
_JUDGED = 1000  # answers that show what share is changed, at most
_UNDECIDED = 1e-5  # a network as close to 1/2 as this guesses already


@dataclass(frozen=True)
class MemGuardParameters:
    """Settings of the answers, and of the network's training.

    Args:
        budget: the largest expected 1-norm of the noise on a posterior, 0 to 2; the scripts try 0 to 1.
        learning_rate: of Adam.
        epochs: passes over the provider's images, at most.
        batch_size: images per step.
        patience: epochs without a fall of the loss by a thousandth, after which training ends.
    """

    budget: float = 1.0
    learning_rate: float = 1e-3
    epochs: int = 4000
    batch_size: int = 64
    patience: int = 10

    def __post_init__(self) -> None:
        check_range("budget", self.budget, 0, 2)
        self.training()

    def training(self) -> mlp.Training:
        """Optimizer and schedule."""
        return mlp.Training(self.learning_rate, self.epochs, self.batch_size, patience=self.patience)


class MemGuard(Defense):
    """Noise on posteriors that carries the provider's own membership classifier over its boundary.

    The provider needs images of the same kind that the classifier was not trained on (`outside`), and not those that
    the audit judges.
    """

    name = "memguard"
    hides = "membership"
    source = "MemGuard (Jia et al., CCS 2019); ContrastiveLeaks (CCS 2021), section 5.2"
    needs = frozenset({"logits", "outside"})
    Parameters = MemGuardParameters

    def fit(self, encoder: Encoder, members: ProviderData, outside: ProviderData | None = None) -> State:
        """Train the network that tells members; see `Defense.fit`.

        ``report.network_accuracy`` is the share it tells right of what it is trained on, both groups weighing the same;
        ``report.answers_changed`` the expected share of answers to some of these images that the defense changes.
        """
        self._check_needs(encoder, members, outside)
        assert outside is not None
        groups = [answers(encoder, data.images, "logits") for data in (members, outside)]
        logits = torch.cat(groups)
        check_finite("logit of the provider's images", logits)
        member = np.arange(len(logits)) < len(groups[0])
        balance = torch.tensor(len(groups[1]) / len(groups[0]))
        inputs = _sorted_posterior(logits).numpy()
        made, training = partial(mlp.layers, logits.shape[1], *HIDDEN, 1), self.parameters.training()
        loss = partial(F.binary_cross_entropy_with_logits, pos_weight=balance)
        network = mlp.fit(made, inputs, member, training, seed=self.seed, loss=loss)
        right = (mlp.predict(network, inputs) > 0) == member
        accuracy = (right[member].mean() + right[~member].mean()) / 2
        some = logits[:: -(-len(logits) // _JUDGED)].float()
        changed = carried_over(network.requires_grad_(False), some)
        chance = noise_chance(network, some, changed, self.parameters.budget).mean().numpy()
        told = {"report.network_accuracy": np.array(accuracy), "report.answers_changed": chance}
        return mlp.weights(network) | told

    def defended(self, encoder: Encoder, state: State) -> Encoder:
        """The classifier with noise on its posteriors; its logits are theirs up to a constant per image."""
        classes = len(state["network.0.weight"][0])
        network = mlp.restored(seeded(0, lambda: mlp.layers(classes, *HIDDEN, 1)), state)
        return Defended(encoder, "logits", _Guard(network, self.parameters.budget, self.seed))


class _Guard(nn.Module):
    """Phase II: the changed logits by the chance that the budget allows, otherwise the given ones."""

    def __init__(self, network: nn.Module, budget: float, seed: int) -> None:
        super().__init__()
        self.network = network.requires_grad_(False)
        self.budget, self.seed = budget, seed

    def forward(self, logits: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        if self.budget == 0:
            return logits
        given = logits.float()
        changed = carried_over(self.network, given)
        chance = noise_chance(self.network, given, changed, self.budget)
        drawn = uniforms(query_streams(self.seed, MemGuard.name, images), epoch=0, view=0, count=1)[:, 0]
        return torch.where((drawn < chance)[:, None], changed, given)


def carried_over(network: nn.Module, logits: torch.Tensor) -> torch.Tensor:
    """Phase I: logits that the network takes for the other side, with the class kept and as little change as is found.

    The loss is c1 |g| + c2 relu(largest other logit - logit of the class) + c3 |noise|_1, g the network's logit. Every
    search starts at the given logits, follows the gradient in steps of length 0.1, 300 at most, and ends as soon as the
    side is another and the class the same; searches with tenfold c3 follow as long as they succeed.

    Args:
        network: sorted posteriors (B, L) to one logit (B, 1), above 0 for members; without gradients of its own.
        logits: (B, L) float32 or float64.

    Returns (B, L): the result of the last search that succeeded, the given logits where none did.
    """
    with searching(logits.device):
        given = logits.detach().clone()
        classes = F.one_hot(given.argmax(dim=1), given.shape[1]).bool()
        posterior, side, result = given.softmax(dim=1), _membership(network, given), given.clone()

        def search(rows: torch.Tensor, noise_weight: float) -> torch.Tensor:
            """Search with one c3 for some rows, put what is found into the result, and return those that succeeded."""
            succeeded, waiting, moved = [rows[:0]], rows, given[rows]
            for step in range(STEPS + 1):
                moved = moved.detach().requires_grad_(True)
                own, level = classes[waiting], _membership(network, moved)
                done = (level * side[waiting] <= 0) & own.gather(1, moved.argmax(dim=1, keepdim=True))[:, 0]
                result[waiting[done]] = moved.detach()[done]
                succeeded.append(waiting[done])
                left = torch.nonzero(~done).flatten()
                if not len(left) or step == STEPS:
                    break
                other = moved.masked_fill(own, -torch.inf).amax(dim=1)
                noise = (moved.softmax(dim=1) - posterior[waiting]).abs().sum(dim=1)
                loss = SIDE_WEIGHT * level.abs() + LABEL_WEIGHT * F.relu(other - moved[own]) + noise_weight * noise
                (gradient,) = torch.autograd.grad(loss[left].sum(), moved)
                length = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
                moved = (moved - STEP * gradient / length.clamp_min(torch.finfo(gradient.dtype).tiny))[left]
                waiting = waiting[left]
            return torch.cat(succeeded)

        rows = torch.nonzero((side.sigmoid() - 0.5).abs() > _UNDECIDED).flatten()
        for noise_weight in NOISE_WEIGHTS:
            rows = search(rows, noise_weight)
        return result


def noise_chance(network: nn.Module, logits: torch.Tensor, changed: torch.Tensor, budget: float) -> torch.Tensor:
    """Phase II: the chance (B,) of answering with changed logits, so that the expected 1-norm is within the budget.

    It is 0 where the change does not bring the network's output h closer to 1/2, else min(budget / |noise|_1, 1).
    """
    noise = (changed.softmax(dim=1) - logits.softmax(dim=1)).abs().sum(dim=1)
    before, after = ((_membership(network, each).sigmoid() - 0.5).abs() for each in (logits, changed))
    allowed = (budget / noise.clamp_min(torch.finfo(noise.dtype).tiny)).clamp_max(1)
    return torch.where(after < before, allowed, torch.zeros_like(allowed))


def _sorted_posterior(logits: torch.Tensor) -> torch.Tensor:
    return logits.softmax(dim=1).sort(dim=1).values


def _membership(network: nn.Module, logits: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = network(_sorted_posterior(logits))
    return outputs[:, 0]
