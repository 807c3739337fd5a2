"""Several seeded views per image for attacks, and the image itself as an encoder sees it."""

from __future__ import annotations

from typing import Protocol

import torch

from mi_core.checks import check_range, check_shape


class Augmentation(Protocol):
    """A recipe of random views: images (B, C, H, W) to float32 (B, C, S, S) in [0, 1]."""

    def __call__(
        self,
        images: torch.Tensor,
        stream_keys: torch.Tensor,
        *,
        epoch: int,
        view: int | torch.Tensor,
        size: int | None = None,
    ) -> torch.Tensor:
        """One view of every image, drawn from its stream (B,) for this epoch and view (one, or one per image)."""


def make_views(
    images: torch.Tensor,
    streams: torch.Tensor,
    augmentation: Augmentation,
    *,
    views: int,
    size: int | None = None,
) -> torch.Tensor:
    """V views of each of B images, in one batched call of the recipe; attacks query in epoch 0.

    Args:
        images: (B, C, H, W) uint8, or float32 in [0, 1].
        streams: (B,) int64, from `streams.stream_keys`.
        augmentation: the recipe.
        views: V.
        size: height and width S of the views; default: those of the images.

    Returns:
        (B, V, C, S, S) float32 in [0, 1].

    Raises:
        ShapeError: images and streams differ in number.
        ConfigError: views is below 1.
    """
    check_range("views", views, 1)
    (count, *_) = check_shape("images", images, "B C H W")
    check_shape("streams", streams, "B", B=count)
    index = torch.arange(views, device=streams.device).repeat(count)
    repeated, keys = images.repeat_interleave(views, dim=0), streams.repeat_interleave(views)
    drawn = augmentation(repeated, keys, epoch=0, view=index, size=size)
    return drawn.reshape(count, views, *drawn.shape[1:])


def clean(images: torch.Tensor) -> torch.Tensor:
    """The images themselves: (B, C, H, W) uint8 to float32 in [0, 1]."""
    return images.float() / 255
