"""The base of defenses of a classifier's last layer: the head ``logits``, its inputs, and its other weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from mi_core.checks import ConfigError, check_shape
from mi_core.defenses.base import Defense, ProviderData, State, answers
from mi_core.encoders.checkpoint import Encoder, load_tensors

HEAD = "logits"


class HeadDefense(Defense):
    """A defense that gives the head ``logits`` other weights; its state holds them as ``logits.<name>``.

    It protects what the head was trained on, the backbone taken as given, against those who cannot compute the noise.
    So the seed of an encoder that is really served is a secret that nobody can guess, and serves one release; and the
    generators are those of simulation, not of cryptography.
    """

    hides = "membership of the images that the head was trained on, given the backbone"
    needs = frozenset({HEAD})

    def defended(self, encoder: Encoder, state: State) -> Encoder:
        """The encoder with the weights of the state in its head; the backbone is shared with the one given.

        Raises ConfigError: the state is of another layout.
        """
        head = self._served_head(encoder)
        parts = {id(part): part for name, part in encoder.named_children() if name != HEAD}
        defended = copy.deepcopy(encoder, parts | {id(encoder.heads[HEAD]): head})
        prefix = f"{HEAD}."
        weights = {key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)}
        load_tensors(head, {name: torch.tensor(array) for name, array in weights.items()})
        return defended

    def _served_head(self, encoder: Encoder) -> nn.Module:
        """A fresh head for the weights of the state: a copy of the trained one."""
        return copy.deepcopy(trained_head(encoder))


def head_state(weights: Mapping[str, torch.Tensor]) -> dict[str, npt.NDArray[Any]]:
    """Weights of the head by name, as the arrays of a state."""
    return {f"{HEAD}.{name}": tensor.detach().cpu().numpy().copy() for name, tensor in weights.items()}


def trained_head(encoder: Encoder) -> nn.Module:
    """The head ``logits``.

    Raises ConfigError: it has no weights, or keeps running statistics, which noise on weights would leave as they are.
    """
    head = encoder.heads[HEAD]
    if not any(True for _ in head.parameters()):
        raise ConfigError(f"the head {HEAD} has no weights to defend")
    if statistics := [name for name, _ in head.named_buffers()]:
        raise ConfigError(f"the head {HEAD} keeps statistics of its training data ({statistics[0]}); give a linear one")
    return head


def head_labels(members: ProviderData, classes: int) -> torch.Tensor:
    """The classes (N,) int64 of the images, on the CPU; the members have labels.

    Raises ShapeError: another number of labels than of images; ConfigError: a label without a logit.
    """
    assert members.labels is not None
    labels = members.labels.cpu()
    check_shape("labels", labels, "N", N=len(members.images))
    if len(wrong := labels[(labels < 0) | (labels >= classes)]):
        raise ConfigError(f"label {int(wrong[0])} is not within 0 to {classes - 1}, the classes of the head")
    return labels


def head_inputs(encoder: Encoder, images: torch.Tensor) -> torch.Tensor:
    """The embeddings (N, D) float32 of images (N, C, H, W) uint8 that the head reads, on the CPU."""
    return answers(encoder, images, encoder.outputs[encoder.outputs.index(HEAD) - 1])
