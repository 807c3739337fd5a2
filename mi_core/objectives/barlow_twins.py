"""Barlow Twins (Zbontar et al., ICML 2021): the cross-correlation of two views is drawn to the identity.

Coordinates agree between the views, and differ from each other. There are no negatives and no momentum encoder.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from mi_core.checks import check_fields, check_range, check_shape
from mi_core.encoders.heads import projection_head
from mi_core.objectives.base import Objective, gather, similarities, width_of

_LEAST = 1e-5  # added to variances, as by the batch norm of the released code


def barlow_twins_loss(first: torch.Tensor, second: torch.Tensor, redundancy: float) -> torch.Tensor:
    """Equation 1 of Barlow Twins, over the batches of all workers.

    Takes (B, D) projections of the two views, B equal on all workers, and lambda (`BarlowTwinsParameters`).
    Returns a scalar, float32, the same on all workers. The mean over workers of its gradient is that of one worker with
    the whole batch.
    Raises ShapeError: the views differ in shape; ConfigError: redundancy is below 0.

    Example:
        >>> views = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> [round(barlow_twins_loss(views, other, 0.1).item(), 3) for other in (views, -views)]
        [0.0, 8.0]
    """
    batch, width = check_shape("first", first, "B D")
    check_shape("second", second, "B D", B=batch, D=width)
    check_range("redundancy", redundancy, 0)
    one, other = (_standardised(gather(views.float())) for views in (first, second))
    correlation = similarities(one.T, other.T) / len(one)
    own = torch.diagonal(correlation)
    return (own - 1).square().sum() + redundancy * (correlation.square().sum() - own.square().sum())


def _standardised(views: torch.Tensor) -> torch.Tensor:
    centred = views - views.mean(dim=0)
    return centred * torch.rsqrt(centred.square().mean(dim=0) + _LEAST)


@dataclass(frozen=True)
class BarlowTwinsParameters:
    """Settings of Barlow Twins; the defaults are those of its ImageNet experiments (section 2.2).

    Args:
        redundancy: lambda, the weight of what different coordinates share.
        projection_hidden: width of the two hidden layers of the projector.
        projection_width: width of what it answers; more is better.
    """

    redundancy: float = 0.0051
    projection_hidden: int = 8192
    projection_width: int = 8192

    def __post_init__(self) -> None:
        check_fields(self, "redundancy", low=0)
        check_fields(self, "projection_hidden", "projection_width", low=1)


class BarlowTwins(Objective):
    """Barlow Twins (ICML 2021): coordinates agree between two views, and differ from each other; no negatives."""

    Parameters = BarlowTwinsParameters

    def __init__(self, backbone: nn.Module, parameters: BarlowTwinsParameters) -> None:
        super().__init__(backbone)
        hidden = parameters.projection_hidden
        widths = (width_of(backbone), hidden, hidden, parameters.projection_width)
        self.projection = projection_head(widths, batch_norm=True)
        self.redundancy = parameters.redundancy

    def forward(self, views: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The loss of views (B, 2, C, H, W); there are no targets."""
        first, second = (self.projection(self.backbone(views[:, view])) for view in range(2))
        return barlow_twins_loss(first, second, self.redundancy)
