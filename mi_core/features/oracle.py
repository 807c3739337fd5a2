"""What a measure may ask of an encoder about a batch of N images; `mi_core.querying` answers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from mi_core.augmentations.views import Augmentation, make_views

if TYPE_CHECKING:
    from mi_core.features.loss_gradient import LossGradient
    from mi_core.features.sequential import StoppingRule


@dataclass(frozen=True)
class Batch:
    """Images that encoders are asked about together.

    Args:
        images: (N, C, S, S) uint8.
        streams: (N,) int64, of their views.
        ids: N names, for errors.
        captions: N texts; None: there are none.
        labels: (N,) int64 classes; None: there are none.
    """

    images: torch.Tensor
    streams: torch.Tensor
    ids: list[str]
    captions: Sequence[str] | None
    labels: torch.Tensor | None


@dataclass(frozen=True)
class Views:
    """How views are drawn.

    Args:
        recipe: of one view.
        number: V, those of a measure that shares them.
        size: side of the views; None: that of the images.
    """

    recipe: Augmentation
    number: int
    size: int | None

    def drawn(
        self, images: torch.Tensor, streams: torch.Tensor, number: int | None = None, first: int = 0
    ) -> torch.Tensor:
        """Views (N, V, C, S, S) of images from their streams (N,); as many as ``number``, by default V."""
        views = self.number if number is None else number
        return make_views(images, streams, self.recipe, views=views, first=first, size=self.size)


class Oracle(Protocol):
    """One encoder and a batch of N images."""

    @property
    def name(self) -> str:
        """The encoder, for errors."""

    @property
    def batch(self) -> Batch:
        """The images."""

    @property
    def views(self) -> Views:
        """How views are drawn."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs that are read."""

    @property
    def at_once(self) -> int:
        """Queries that go to the encoder in one call, at most."""

    @property
    def rule(self) -> StoppingRule | None:
        """When to stop asking for the views of an image."""

    @property
    def side(self) -> int | None:
        """The only side of an image that the encoder takes; None: any."""

    def embed(
        self, images: torch.Tensor, outputs: tuple[str, ...] | None = None, ids: list[str] | None = None
    ) -> dict[str, torch.Tensor]:
        """Embeddings by output, (M, D) of images (M, C, S, S), or (M, V, D) of several each (M, V, C, S, S).

        Args:
            images: float32 in [0, 1].
            outputs: default: those that are read.
            ids: of the images, which errors name; default: those of the batch.
        """

    def feature_map(self, images: torch.Tensor) -> torch.Tensor:
        """The feature map (N, L, D) of images (N, C, S, S) in [0, 1]. Raises ConfigError: the encoder gives none."""

    def bank(self, count: int) -> Mapping[str, torch.Tensor]:
        """Embeddings (A, D) by output of the first A = ``count`` images of the bank; asked once for all batches."""

    def crafter(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Images to the logits of the classifier that adversarial images are crafted on. Raises ConfigError: none."""

    def losses(self, measure: LossGradient) -> dict[str, torch.Tensor]:
        """Losses of the images and norms of their gradients by output; see `mi_core.querying.gradients`."""

    def check(self, what: str, rows: torch.Tensor) -> None:
        """Raise NumericError, now or when the batch is fetched, for rows (N, ...) that are not finite."""
