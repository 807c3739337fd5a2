"""Olympus (Raval, Machanavajjhala and Pan, PoPETs 2019) on an encoder, as ContrastiveLeaks adapts it.

An autoencoder is put between the backbone and the classification layer, and the whole model is fine-tuned on the
original training images, without augmentation: the cross-entropy of the task minus lambda times that of an adversary
that tells the attribute from what the autoencoder makes of the representation. The adversary, of Talos's layout, is
trained in turns, batch by batch (ContrastiveLeaks, He and Zhang, CCS 2021, section 5.2; layers of 256 and 128 neurons
there and back, ReLU in the first half alone as the released class has it). What others get as the representation is
what the autoencoder makes of it.

Neither lambda nor optimizer, epochs or batches are stated, and no training loop is released: the defaults are this
project's. A loss that is subtracted has no lower bound, so a large lambda may diverge.

The fine-tuning sees the very training images again and again, so membership shows more than before (section 5.3 and
figure 13): .631 against the .513 of Talos on Places100 with ResNet-50. Audit both.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import NumericError, check_fields
from mi_core.defenses.base import Defense, ProviderData, State, answers, check_plain
from mi_core.defenses.head import head_labels
from mi_core.encoders.checkpoint import Encoder, load_tensors, seeded, surroundings
from mi_core.objectives.gradient_reversal import Adversary, attribute_shares, reverse

# B samples, D width of the representation, K values of the attribute.
HIDDEN = (256, 128)  # of the autoencoder's first half, and backwards of its second


@dataclass(frozen=True)
class OlympusParameters:
    """Settings of the fine-tuning: Adam for the model and, with a state of its own, for the adversary.

    Args:
        factor: lambda, how much the adversary counts beside the task.
        learning_rate: of both.
        weight_decay: of both.
        epochs: passes over the training images; 0: no autoencoder, and the encoder is served as it is.
        batch_size: images per step.
    """

    factor: float = 1.0
    learning_rate: float = 3e-4
    weight_decay: float = 1e-4
    epochs: int = 100
    batch_size: int = 256

    def __post_init__(self) -> None:
        check_fields(self, "factor", "weight_decay", "epochs", low=0)
        check_fields(self, "learning_rate", low=0, open_low=True)
        check_fields(self, "batch_size", low=2)


class Olympus(Defense):
    """An autoencoder behind the backbone, and the whole model fine-tuned against an adversary.

    For a classifier that is trained already: it hides an attribute that the task does not need. Talos hides it while
    the encoder is trained.
    """

    name = "olympus"
    hides = "attributes"
    source = "Olympus (Raval et al., PoPETs 2019); ContrastiveLeaks (CCS 2021), section 5.2"
    needs = frozenset({"logits", "labels", "attributes"})
    Parameters = OlympusParameters

    def fit(self, encoder: Encoder, members: ProviderData, outside: ProviderData | None = None) -> State:
        """Fine-tune a copy of the encoder with an autoencoder in it; see `Defense.fit`."""
        self._check_needs(encoder, members, outside)
        assert members.attributes is not None
        values = len(attribute_shares(members.attributes, len(members.images)))
        head_labels(members, answers(encoder, members.images[:1], "logits").shape[1])
        if not self.parameters.epochs:
            return {}
        return dict(seeded(self.seed, lambda: self._fine_tuned(encoder, members, values)))

    def defended(self, encoder: Encoder, state: State) -> Encoder:
        """The fine-tuned model; a copy of the encoder where there was no fine-tuning."""
        if not state:
            return copy.deepcopy(encoder).eval()
        width = state["weights.backbone.autoencoder.0.weight"].shape[1]
        model: Encoder = seeded(0, lambda: _with_autoencoder(encoder, width))
        changed = _changed(model)
        kept = {name: tensor for name, tensor in model.state_dict().items() if f"weights.{name}" not in changed}
        fitted = {key.removeprefix("weights."): torch.tensor(state[key]) for key in state if key.startswith("weights.")}
        load_tensors(model, {**kept, **fitted})
        return model.to(encoder.mean.device).eval()

    def _fine_tuned(self, encoder: Encoder, members: ProviderData, values: int) -> State:
        assert members.labels is not None
        chosen, device = self.parameters, encoder.mean.device
        width = answers(encoder, members.images[:1], "backbone").shape[1]
        model = _with_autoencoder(encoder, width).to(device).train()
        adversary = Adversary(width, values).to(device)
        settings = {"lr": chosen.learning_rate, "weight_decay": chosen.weight_decay}
        fooling = torch.optim.Adam(model.parameters(), **settings)
        telling = torch.optim.Adam(adversary.parameters(), **settings)
        for epoch in range(chosen.epochs):
            losses = torch.zeros(2, device=device)
            for images, labels, attributes in _batches(members, chosen.batch_size, device):
                outputs = model(images)
                loss = F.cross_entropy(adversary(outputs["backbone"].detach()), attributes)
                _step(telling, loss)
                utility = F.cross_entropy(outputs["logits"], labels)
                hidden = F.cross_entropy(adversary(reverse(outputs["backbone"], chosen.factor)), attributes)
                _step(fooling, utility + hidden)
                losses += torch.stack([utility, hidden]).detach() * len(images) / len(members.images)
            if not bool(losses.isfinite().all()):
                raise NumericError(f"olympus diverged in epoch {epoch + 1}; lower its factor or its learning_rate")
        model.eval()
        predicted = answers(model, members.images, "logits").argmax(dim=1)
        return {
            **_changed(model),
            "report.task_accuracy_members": (predicted == members.labels.cpu()).float().mean().numpy(),
            "report.task_loss": losses[0].cpu().numpy(),
            "report.adversary_loss": losses[1].cpu().numpy(),
        }


class _Through(nn.Module):
    """A backbone, and the autoencoder that its representations go through: images (B, C, H, W) to (B, D)."""

    def __init__(self, backbone: nn.Module, width: int) -> None:
        super().__init__()
        self.width = width
        self.backbone = backbone
        wide, narrow = HIDDEN
        there = (nn.Linear(width, wide), nn.ReLU(), nn.Linear(wide, narrow), nn.ReLU())
        self.autoencoder = nn.Sequential(*there, nn.Linear(narrow, wide), nn.Linear(wide, width))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.autoencoder(self.backbone(images))


def _with_autoencoder(encoder: Encoder, width: int) -> Encoder:
    """A copy of an encoder with a new autoencoder behind its backbone; only these parts can be trained."""
    check_plain(encoder)
    copied = copy.deepcopy(encoder)
    model = Encoder(_Through(copied.backbone, width), copied.heads, **surroundings(copied))
    model.requires_grad_(True)
    if model.text is not None:
        model.text.requires_grad_(False)
    return model


def _changed(model: Encoder) -> dict[str, npt.NDArray[Any]]:
    """All that the fine-tuning changes, as arrays ``weights.<name>``."""
    parts = tuple(f"{name}." for name in model.outputs)
    return {
        f"weights.{name}": tensor.cpu().numpy() for name, tensor in model.state_dict().items() if name.startswith(parts)
    }


def _batches(
    members: ProviderData, size: int, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Images in [0, 1], classes and attributes of all members in a new order, in batches that differ by one at most."""
    labels, attributes = members.labels, members.attributes
    assert labels is not None
    assert attributes is not None
    count = len(members.images)
    for rows in torch.randperm(count).tensor_split(-(-count // size)):
        images = members.images[rows.to(members.images.device)].to(device).float() / 255
        yield images, labels.cpu()[rows].to(device), attributes.cpu()[rows].to(device)


def _step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
