"""Momentum contrast: MoCo v1 (He et al., CVPR 2020), v2 (Chen et al., 2020) and v3 (Chen, Xie, He, ICCV 2021).

v1 and v2 compare a query with its key and with a queue of earlier keys; the key encoder follows the query encoder by
momentum. v3 has no queue: the other images of the batch are the negatives, both views are query and key in turn, and
a predictor stands on the query side only. K length of the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import ConfigError, check_fields, check_range, check_shape
from mi_core.encoders.batch_norm import split_batch_norm
from mi_core.encoders.heads import projection_head
from mi_core.objectives.base import MomentumObjective, gather, own_rows, similarities, width_of, world
from mi_core.runtime import upload


def queue_info_nce(queries: torch.Tensor, keys: torch.Tensor, queue: torch.Tensor, temperature: float) -> torch.Tensor:
    """InfoNCE of queries against their keys and a queue: equation 1 of MoCo, the mean over B queries.

    Takes queries and keys (B, D) and the queue (K, D), the negatives, of length 1, and tau > 0; gradients flow to the
    queries.
    Returns a scalar, float32.
    Raises ShapeError: the shapes do not fit; ConfigError: the temperature is not above 0.

    Example:
        >>> unit = torch.eye(2)
        >>> round(float(queue_info_nce(unit[:1], unit[:1], unit[1:], temperature=1.0)), 4)
        0.3133
    """
    batch, width = check_shape("queries", queries, "B D")
    check_shape("keys", keys, "B D", B=batch, D=width)
    check_shape("queue", queue, "K D", D=width)
    check_range("temperature", temperature, 0, open_low=True)
    positive = (queries.float() * keys.float()).sum(dim=1, keepdim=True)
    logits = torch.cat([positive, similarities(queries, queue)], dim=1) / temperature
    return F.cross_entropy(logits, torch.zeros(batch, dtype=torch.int64, device=logits.device))


def in_batch_info_nce(queries: torch.Tensor, keys: torch.Tensor, temperature: float) -> torch.Tensor:
    """InfoNCE with the keys of all workers as negatives, times 2 tau: ``ctr`` of MoCo v3's algorithm 1.

    Takes queries and keys (B, D) of any length, and tau > 0; gradients flow to the queries only.
    Returns a scalar, float32: the mean over this worker's queries.
    Raises ShapeError: the shapes do not fit; ConfigError: the temperature is not above 0.
    """
    batch, width = check_shape("queries", queries, "B D")
    check_shape("keys", keys, "B D", B=batch, D=width)
    check_range("temperature", temperature, 0, open_low=True)
    everyone = gather(F.normalize(keys.detach().float(), dim=1))
    logits = similarities(F.normalize(queries.float(), dim=1), everyone) / temperature
    return 2 * temperature * F.cross_entropy(logits, own_rows(batch, logits.device))


def share_of_own_keys(queue: int, batch_size: int, images: int) -> float:
    """The share of steps in which an image's own key of the epoch before is among its negatives.

    An epoch has S = ``images`` / ``batch_size`` steps in a new order, and the queue holds the keys of the last
    q = ``queue`` / ``batch_size`` steps. An image seen at step u of one epoch and at step t of the next, both uniform,
    finds its key if S - u + t <= q: q (q + 1) / (2 S ** 2) for q <= S.

    Example:
        >>> [round(share_of_own_keys(queue, 125, 500), 3) for queue in (500, 250)]
        [0.625, 0.188]
    """
    steps, held = images / batch_size, queue / batch_size
    return held * (held + 1) / (2 * steps**2)


@dataclass(frozen=True)
class MoCoV1Parameters:
    """Settings of MoCo v1; the defaults are those of its ImageNet experiments (section 4, table 1)."""

    temperature: float = 0.07
    queue: int = 65536
    momentum: float = 0.999
    projection_width: int = 128
    batch_norm_splits: int = 1

    def __post_init__(self) -> None:
        check_fields(self, "temperature", low=0, open_low=True)
        check_fields(self, "momentum", low=0, high=1)
        check_fields(self, "queue", "projection_width", "batch_norm_splits", low=1)


@dataclass(frozen=True)
class MoCoV2Parameters(MoCoV1Parameters):
    """Settings of MoCo v2: v1's with tau = 0.2 and a hidden layer in the head, by default as wide as the embedding."""

    temperature: float = 0.2
    projection_hidden: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "projection_hidden", low=1)


class _QueueMoCo(MomentumObjective):
    """MoCo with a queue of earlier keys and shuffled batch norm: v1 and v2."""

    sync_batch_norm = False  # statistics over all workers would undo the shuffling

    queue: torch.Tensor
    steps: int
    """Steps so far: a number of the host, as it would have to wait for one of the device in every step."""

    def __init__(self, backbone: nn.Module, parameters: MoCoV1Parameters, widths: tuple[int, ...]) -> None:
        super().__init__(split_batch_norm(backbone, parameters.batch_norm_splits))
        self.projection = projection_head(widths, batch_norm=False)
        self.temperature, self.momentum = parameters.temperature, parameters.momentum
        self.add_key_encoder()
        self.shuffled = parameters.batch_norm_splits > 1 or world()[1] > 1
        self.register_buffer("queue", F.normalize(torch.randn(parameters.queue, widths[-1]), dim=1))
        self.steps = 0
        self._keys: torch.Tensor | None = None

    @classmethod
    def check(cls, parameters: Any, *, batch_size: int, images: int | None, workers: int) -> None:
        """Raise ConfigError unless the queue is a number of whole batches, not above the data, and parts are equal."""
        if parameters.queue % batch_size:
            raise ConfigError(
                f"queue = {parameters.queue} is not divisible by batch_size = {batch_size}; whole batches replace its "
                f"oldest keys: use {max(1, parameters.queue // batch_size) * batch_size}"
            )
        if images is not None and parameters.queue > images:
            most, half = (max(1, part // batch_size) * batch_size for part in (images, images // 2))
            own, less = (share_of_own_keys(queue, batch_size, images) for queue in (most, half))
            raise ConfigError(
                f"queue = {parameters.queue} exceeds the {images} images trained on, so images would be their own "
                f"negatives; use at most {most}, where an image meets its own earlier key in {own:.0%} of the steps, "
                f"or {half} ({less:.0%})"
            )
        if (batch_size // workers) % parameters.batch_norm_splits:
            raise ConfigError(
                f"batch_norm_splits = {parameters.batch_norm_splits} does not divide the {batch_size // workers} "
                "images of a worker"
            )

    def forward(self, views: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """InfoNCE of views (B, 2, C, H, W): the first are queries, the second keys; there are no targets."""
        queries = F.normalize(self.projection(self.backbone(views[:, 0])).float(), dim=1)
        with torch.no_grad():
            keys = self._embed_keys(views[:, 1])
            self._keys = gather(keys)
        return queue_info_nce(queries, keys, self.queue, self.temperature)

    def _embed_keys(self, images: torch.Tensor) -> torch.Tensor:
        """Keys (B, P) of length 1, computed in a shuffled order so that batch statistics do not give them away."""
        if not self.shuffled:
            return self._key_encoder(images)
        rank, workers = world()
        everyone = gather(images)
        order = torch.randperm(len(everyone), generator=torch.Generator().manual_seed(self.steps))
        order = upload(order, images.device)
        mine = order.view(workers, -1)[rank]
        shuffled = gather(self._key_encoder(everyone[mine]))
        return shuffled[torch.argsort(order).view(workers, -1)[rank]]

    def _key_encoder(self, images: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.key_projection(self.key_backbone(images)).float(), dim=1)

    def after_step(self, progress: float) -> None:
        """Move the key encoder after the query encoder, and replace the oldest keys of the queue."""
        self.follow(self.momentum)
        if self._keys is not None:
            start = self.steps * len(self._keys) % len(self.queue)
            self.queue[start : start + len(self._keys)] = self._keys
            self._keys = None
        self.steps += 1

    def get_extra_state(self) -> torch.Tensor:
        """What a state holds besides weights and buffers: the steps so far, ()."""
        return torch.tensor(self.steps)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Continue after so many steps."""
        self.steps = int(state)


class MoCoV1(_QueueMoCo):
    """MoCo v1 (CVPR 2020): a linear head, a queue of keys as negatives, a momentum encoder for the keys."""

    Parameters = MoCoV1Parameters

    def __init__(self, backbone: nn.Module, parameters: MoCoV1Parameters) -> None:
        super().__init__(backbone, parameters, (width_of(backbone), parameters.projection_width))


class MoCoV2(_QueueMoCo):
    """MoCo v2 (2020): v1 with a head of two layers, stronger augmentation and a cosine schedule."""

    Parameters = MoCoV2Parameters

    def __init__(self, backbone: nn.Module, parameters: MoCoV2Parameters) -> None:
        hidden = parameters.projection_hidden or width_of(backbone)
        super().__init__(backbone, parameters, (width_of(backbone), hidden, parameters.projection_width))


@dataclass(frozen=True)
class MoCoV3Parameters:
    """Settings of MoCo v3; the defaults are those for ResNet-50 (appendix "ResNet"): heads of two layers.

    For a ViT: ``projection_layers`` 3, ``prediction_norm`` true, ``temperature`` 0.2, ``freeze_patches`` true.
    """

    temperature: float = 1.0
    momentum: float = 0.99
    projection_layers: int = 2
    projection_hidden: int = 4096
    projection_width: int = 256
    prediction_norm: bool = False
    freeze_patches: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "temperature", low=0, open_low=True)
        check_fields(self, "momentum", low=0, high=1)
        check_fields(self, "projection_layers", "projection_hidden", "projection_width", low=1)


class MoCoV3(MomentumObjective):
    """MoCo v3 (ICCV 2021): projector and predictor, symmetric loss within the batch, momentum that rises to 1."""

    Parameters = MoCoV3Parameters
    heads = ("projection", "prediction")

    def __init__(self, backbone: nn.Module, parameters: MoCoV3Parameters) -> None:
        super().__init__(backbone)
        hidden, out = parameters.projection_hidden, parameters.projection_width
        widths = (width_of(backbone), *[hidden] * (parameters.projection_layers - 1), out)
        self.projection = projection_head(widths, batch_norm=True, last_norm=True)
        self.prediction = projection_head((out, hidden, out), batch_norm=True, last_norm=parameters.prediction_norm)
        if parameters.freeze_patches:
            patches = getattr(backbone, "conv_proj", None)
            if not isinstance(patches, nn.Module):
                raise ConfigError("freeze_patches = True, but the backbone has no patch embedding; use it with a ViT")
            patches.requires_grad_(False)
        self.temperature, self.momentum = parameters.temperature, parameters.momentum
        self.add_key_encoder()

    def forward(self, views: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The symmetric loss of views (B, 2, C, H, W); there are no targets."""
        (first, second), (key_first, key_second) = self.answer(views)
        loss: torch.Tensor = in_batch_info_nce(first, key_second, self.temperature)
        return loss + in_batch_info_nce(second, key_first, self.temperature)
