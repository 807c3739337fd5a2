"""VICReg (Bardes, Ponce, LeCun, ICLR 2022): views agree, coordinates vary, and do not covary.

The released code differs from equation 6 of the paper: it takes the mean over coordinates of the squared distance, not
their sum, and halves the variance terms. The published results are the code's, so this follows the code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import ShapeError, check_fields, check_shape
from mi_core.encoders.heads import projection_head
from mi_core.objectives.base import Objective, gather, similarities, width_of

_LEAST = 1e-4  # added to variances (equation 2)


def vicreg_loss(
    first: torch.Tensor, second: torch.Tensor, invariance: float, variance: float, covariance: float
) -> torch.Tensor:
    """The three terms of VICReg, variance and covariance over the batches of all workers.

    Takes (B, D) projections of the two views, B equal on all workers and above 1 in all, and the weights of the terms.
    Returns:
        A scalar, float32. The mean over workers of it and of its gradient is that of one worker with the whole batch.

    Raises ShapeError: the views differ in shape, or there is one image.

    Example:
        >>> views = 2 * torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> vicreg_loss(views, views, 25, 25, 1).item()
        0.0
    """
    batch, width = check_shape("first", first, "B D")
    check_shape("second", second, "B D", B=batch, D=width)
    total = invariance * F.mse_loss(first.float(), second.float())
    for views in (gather(first.float()), gather(second.float())):
        if len(views) < 2:
            raise ShapeError("a variance needs 2 images in a batch, got 1")
        centred = views - views.mean(dim=0)
        deviation = (centred.square().sum(dim=0) / (len(views) - 1) + _LEAST).sqrt()
        shared = similarities(centred.T, centred.T) / (len(views) - 1)
        between = shared.square().sum() - torch.diagonal(shared).square().sum()
        total = total + variance * F.relu(1 - deviation).mean() / 2 + covariance * between / width
    return total


@dataclass(frozen=True)
class VICRegParameters:
    """Settings of VICReg; the defaults are those of its ImageNet experiments (section 4.2).

    Args:
        invariance, variance, covariance: lambda, mu and nu, the weights of the terms.
        projection_hidden: width of the two hidden layers of the expander.
        projection_width: width of what it answers.
    """

    invariance: float = 25.0
    variance: float = 25.0
    covariance: float = 1.0
    projection_hidden: int = 8192
    projection_width: int = 8192

    def __post_init__(self) -> None:
        check_fields(self, "invariance", "variance", "covariance", low=0)
        check_fields(self, "projection_hidden", "projection_width", low=1)


class VICReg(Objective):
    """VICReg (ICLR 2022): two views agree; each coordinate varies, and shares nothing with the others; no negatives."""

    Parameters = VICRegParameters

    def __init__(self, backbone: nn.Module, parameters: VICRegParameters) -> None:
        super().__init__(backbone)
        hidden = parameters.projection_hidden
        widths = (width_of(backbone), hidden, hidden, parameters.projection_width)
        self.projection = projection_head(widths, batch_norm=True)
        self.weights = parameters.invariance, parameters.variance, parameters.covariance

    def forward(self, views: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The loss of views (B, 2, C, H, W); there are no targets."""
        first, second = (self.projection(self.backbone(views[:, view])) for view in range(2))
        return vicreg_loss(first, second, *self.weights)
