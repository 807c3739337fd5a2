"""The base of every pre-training framework: a backbone, the heads on top of it, and a loss on views."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from mi_core.checks import ConfigError


class Objective(nn.Module, ABC):
    """Backbone, heads and loss of one framework. B images per worker, V views of each, D width of the backbone.

    A subclass sets the class attributes, builds its heads, and writes `forward`. What it holds besides (momentum
    encoder, queue, text tower) is a module or buffer of its own, so that it is saved and resumed with the rest.
    """

    Parameters: ClassVar[type[Any]]
    heads: ClassVar[tuple[str, ...]] = ("projection",)
    """Heads that an audit can query after the backbone, in order: attributes of the module, each fed by the last."""
    views: ClassVar[int] = 2
    """Views of an image per step."""
    hides: ClassVar[str] = ""
    """Of a framework that is a defense: what it is meant to hide."""
    source: ClassVar[str] = ""
    """Of a framework that is a defense: paper, section."""
    target: ClassVar[str | None] = None
    """Target that the loss reads of a sample besides its views: ``class``, ``attribute``, ``caption`` or nothing."""
    alternates: ClassVar[bool] = False
    """Whether parts of the module wait in some epochs, without gradients."""
    sync_batch_norm: ClassVar[bool] = True
    """Whether batch statistics are taken over all workers on GPUs."""

    backbone: nn.Module

    @property
    def draws(self) -> int:
        """Random numbers in [0, 1) that `forward` takes of each sample in a step, as its targets; 0: none."""
        return 0

    @classmethod
    def check(cls, parameters: Any, *, batch_size: int, images: int | None, workers: int) -> None:
        """Raise ConfigError if the settings do not fit the global batch, the number of images or of workers."""

    @classmethod
    def encode_targets(
        cls, parameters: Any, labels: Sequence[int | None], captions: Sequence[str]
    ) -> torch.Tensor | None:
        """The targets that `forward` takes of N samples, a row each: from their classes or captions; None: nothing."""
        return None

    @abstractmethod
    def forward(self, views: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The loss of a batch of views (B, V, C, H, W), already normalised: the mean over this worker's samples."""

    def text_tower(self) -> nn.Module | None:
        """Texts to embeddings beside the projection's, for audits; None: there is no text tower."""
        return None

    def compile_backbones(self) -> None:
        """Compile the networks that take views (`torch.compile`); the rest is little beside them."""
        for name, part in self.named_children():
            if name.endswith("backbone"):
                part.compile(dynamic=False)

    def start_epoch(self, epoch: int) -> None:
        """Called before every epoch, which count from 0."""

    def after_step(self, progress: float) -> None:
        """Called after every optimiser step; ``progress`` is the share of all steps that are done, in (0, 1]."""

    def restart(self) -> None:
        """Called when backbone and heads have been given other weights before training: what follows them follows."""


def numbered(values: Sequence[int | None], below: int, what: str, remedy: str) -> torch.Tensor:
    """Values (N,) int64 of N training images, each from 0 to ``below`` - 1.

    Raises:
        ConfigError: a value is missing or out of range; the message says of what, and the remedy.
    """
    for row, value in enumerate(values):
        if value is None or not 0 <= value < below:
            raise ConfigError(f"{what} {value} of training image {row} is not within 0 to {below - 1}; {remedy}")
    return torch.tensor(values, dtype=torch.int64)


def similarities(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Inner products (N, M) of (N, D) and (M, D) in float32, under autocast too.

    Eight bits of mantissa on a cosine that is then divided by a small temperature would be a noisy loss.
    """
    with torch.autocast(rows.device.type, enabled=False):
        return rows.float() @ columns.float().T


def width_of(backbone: nn.Module) -> int:
    """Width D of a backbone's embedding."""
    return int(backbone.width)  # type: ignore[arg-type]
