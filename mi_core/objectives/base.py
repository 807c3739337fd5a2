"""The base of every pre-training framework: a backbone, the heads on top of it, and a loss on views."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather

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

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

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

    def start_epoch(self, epoch: int) -> None:
        """Called before every epoch, which count from 0."""

    def after_step(self, progress: float) -> None:
        """Called after every optimiser step; ``progress`` is the share of all steps that are done, in (0, 1]."""

    def restart(self) -> None:
        """Called when backbone and heads have been given other weights before training: what follows them follows."""


def numbered(values: Sequence[int | None], below: int, what: str, remedy: str) -> torch.Tensor:
    """Values (N,) int64 of N training images, each from 0 to ``below`` - 1.

    Raises ConfigError: a value is missing or out of range; the message says of what, and the remedy.
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


def world() -> tuple[int, int]:
    """(rank, number of workers) of the process group, (0, 1) without one."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def own_rows(count: int, device: torch.device) -> torch.Tensor:
    """Places (count,) of this worker's rows among the gathered rows of all workers."""
    return torch.arange(count, device=device) + world()[0] * count


def gather(tensor: torch.Tensor) -> torch.Tensor:
    """Rows (B, D) of every worker in rank order (W*B, D), differentiable; the tensor itself without a group.

    With the loss of a rank taken over its own rows against all gathered rows, the mean over ranks (what
    DistributedDataParallel computes) of the gradients is the gradient of the whole batch.
    """
    return tensor if world()[1] == 1 else torch.cat(all_gather(tensor))


class MomentumObjective(Objective):
    """A framework with a query encoder, which learns, and a key encoder, which follows it."""

    copied: ClassVar[tuple[str, ...]] = ("projection",)
    """The heads that the key encoder has."""

    key_backbone: nn.Module
    key_projection: nn.Module
    momentum: float

    def add_key_encoder(self) -> None:
        """Add the key encoder, a copy of the backbone and of some heads without gradients."""
        for part in ("backbone", *self.copied):
            setattr(self, f"key_{part}", copy.deepcopy(getattr(self, part)).requires_grad_(False))

    def answer(self, views: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Both views (B, 2, C, H, W) by the last head, and by that of the key encoder, without gradients."""
        queries = [self._through("", self.heads, views[:, view]) for view in range(2)]
        with torch.no_grad():
            keys = [self._through("key_", self.copied, views[:, view]) for view in range(2)]
        return queries, keys

    def _through(self, prefix: str, heads: Sequence[str], images: torch.Tensor) -> torch.Tensor:
        for part in ("backbone", *heads):
            images = getattr(self, f"{prefix}{part}")(images)
        return images

    def after_step(self, progress: float) -> None:
        """Move the key encoder after the query encoder, ever more slowly."""
        self.follow(rising(self.momentum, progress))

    def follow(self, momentum: float) -> None:
        """Move the key encoder towards the query encoder."""
        for part in ("backbone", *self.copied):
            momentum_update(getattr(self, f"key_{part}"), getattr(self, part), momentum)

    def restart(self) -> None:
        """The key encoder begins as a copy of the query encoder."""
        for part in ("backbone", *self.copied):
            getattr(self, f"key_{part}").load_state_dict(getattr(self, part).state_dict())


def momentum_update(followers: nn.Module, leaders: nn.Module, momentum: float) -> None:
    """theta_k <- m theta_k + (1 - m) theta_q, in place (He et al., MoCo, CVPR 2020, equation 2).

    Example:
        >>> key, query = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.constant_(key.weight, 1.0), nn.init.constant_(query.weight, 3.0)
        >>> momentum_update(key, query, 0.75)
        >>> key.weight.item()
        1.5
    """
    with torch.no_grad():
        torch._foreach_lerp_(list(followers.parameters()), list(leaders.parameters()), 1 - momentum)


def rising(momentum: float, progress: float) -> float:
    """Momentum that rises from m to 1 by half a cosine: 1 - (1 - m) (1 + cos(pi progress)) / 2, progress in [0, 1].

    Example:
        >>> rising(0.9, 0.0), round(rising(0.9, 0.5), 3), rising(0.9, 1.0)
        (0.9, 0.95, 1.0)
    """
    return 1 - (1 - momentum) * (1 + math.cos(math.pi * progress)) / 2
