"""N images that encoders are asked about together, and how views of them are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mi_core.augmentations.views import Augmentation, make_views


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

    def draw(
        self, images: torch.Tensor, streams: torch.Tensor, number: int | None = None, first: int = 0
    ) -> torch.Tensor:
        """Views (N, V, C, S, S) of images from their streams (N,); as many as ``number``, by default V."""
        views = self.number if number is None else number
        return make_views(images, streams, self.recipe, views=views, first=first, size=self.size)
