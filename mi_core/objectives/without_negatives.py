"""Frameworks that draw views of an image together and keep embeddings apart without other images.

BYOL (Grill et al., "Bootstrap your own latent", NeurIPS 2020): one view predicts the other, without negatives.

The online network (backbone, projector, predictor) predicts what the target network (backbone, projector) makes of the
other view. The target network follows the online one by momentum, so there is nothing else to repel.

Barlow Twins (Zbontar et al., ICML 2021): the cross-correlation of two views is drawn to the identity.

Coordinates agree between the views, and differ from each other. There are no negatives and no momentum encoder.

VICReg (Bardes, Ponce, LeCun, ICLR 2022): views agree, coordinates vary, and do not covary.

The released code differs from equation 6 of the paper: it takes the mean over coordinates of the squared distance, not
their sum, and halves the variance terms. The published results are the code's, so this follows the code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import ShapeError, check_range, check_shape
from mi_core.encoders.heads import projection_head
from mi_core.objectives.base import MomentumObjective, Objective, gather, rising, similarities, width_of


def byol_loss(predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Equation 2 of BYOL: the mean of 2 - 2 cos over B predictions.

    Args:
        predictions, targets: (B, D) of any length; gradients flow to the predictions only.

    Returns:
        A scalar, float32, in [0, 4].

    Raises:
        ShapeError: the shapes differ.

    Example:
        >>> byol_loss(torch.eye(2), 3 * torch.eye(2)).item(), byol_loss(torch.eye(2), -torch.eye(2)).item()
        (0.0, 4.0)
    """
    batch, width = check_shape("predictions", predictions, "B D")
    check_shape("targets", targets, "B D", B=batch, D=width)
    return 2 - 2 * F.cosine_similarity(predictions.float(), targets.detach().float(), dim=1).mean()


@dataclass(frozen=True)
class BYOLParameters:
    """Settings of BYOL; the defaults are those of its ImageNet experiments (section 3.3).

    Args:
        momentum: tau of the first step; it rises to 1.
        projection_hidden: width of the hidden layers of projector and predictor.
        projection_width: width of what both answer.
    """

    momentum: float = 0.996
    projection_hidden: int = 4096
    projection_width: int = 256

    def __post_init__(self) -> None:
        check_range("momentum", self.momentum, 0, 1)
        check_range("projection_hidden", self.projection_hidden, 1)
        check_range("projection_width", self.projection_width, 1)


class BYOL(MomentumObjective):
    """BYOL (NeurIPS 2020): each view predicts a momentum encoder's projection of the other; no negatives."""

    Parameters = BYOLParameters
    heads = ("projection", "prediction")

    def __init__(self, backbone: nn.Module, parameters: BYOLParameters) -> None:
        super().__init__()
        hidden, out = parameters.projection_hidden, parameters.projection_width
        self.backbone = backbone
        self.projection = projection_head((width_of(backbone), hidden, out), batch_norm=True)
        self.prediction = projection_head((out, hidden, out), batch_norm=True)
        self.momentum = parameters.momentum
        self.add_key_encoder()

    def forward(self, views: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The symmetric loss of views (B, 2, C, H, W); there are no targets."""
        (first, second), (key_first, key_second) = self.answer(views)
        return byol_loss(first, key_second) + byol_loss(second, key_first)

    def after_step(self, progress: float) -> None:
        """Move the target network after the online network, ever more slowly."""
        self.follow(rising(self.momentum, progress))


_LEAST = 1e-5  # added to variances, as by the batch norm of the released code


def barlow_twins_loss(first: torch.Tensor, second: torch.Tensor, redundancy: float) -> torch.Tensor:
    """Equation 1 of Barlow Twins, over the batches of all workers.

    Args:
        first, second: (B, D) projections of the two views; B is equal on all workers.
        redundancy: lambda, the weight of what different coordinates share.

    Returns:
        A scalar, float32, the same on all workers. The mean over workers of its gradient is that of one worker with
        the whole batch.

    Raises:
        ShapeError: the views differ in shape.
        ConfigError: redundancy is below 0.

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
        check_range("redundancy", self.redundancy, 0)
        check_range("projection_hidden", self.projection_hidden, 1)
        check_range("projection_width", self.projection_width, 1)


class BarlowTwins(Objective):
    """Barlow Twins (ICML 2021): coordinates agree between two views, and differ from each other; no negatives."""

    Parameters = BarlowTwinsParameters

    def __init__(self, backbone: nn.Module, parameters: BarlowTwinsParameters) -> None:
        super().__init__()
        hidden = parameters.projection_hidden
        self.backbone = backbone
        widths = (width_of(backbone), hidden, hidden, parameters.projection_width)
        self.projection = projection_head(widths, batch_norm=True)
        self.redundancy = parameters.redundancy

    def forward(self, views: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The loss of views (B, 2, C, H, W); there are no targets."""
        first, second = (self.projection(self.backbone(views[:, view])) for view in range(2))
        return barlow_twins_loss(first, second, self.redundancy)


_LEAST_VARIANCE = 1e-4  # added to variances (equation 2)


def vicreg_loss(
    first: torch.Tensor, second: torch.Tensor, invariance: float, variance: float, covariance: float
) -> torch.Tensor:
    """The three terms of VICReg, variance and covariance over the batches of all workers.

    Args:
        first, second: (B, D) projections of the two views; B is equal on all workers, and above 1 in all.
        invariance, variance, covariance: lambda, mu and nu, the weights of the terms.

    Returns:
        A scalar, float32. The mean over workers of it and of its gradient is that of one worker with the whole batch.

    Raises:
        ShapeError: the views differ in shape, or there is one image.

    Example:
        >>> views = 2 * torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> vicreg_loss(views, views, 25, 25, 1).item()
        0.0
    """
    batch, width = check_shape("first", first, "B D")
    check_shape("second", second, "B D", B=batch, D=width)
    agreement = F.mse_loss(first.float(), second.float())
    total = invariance * agreement
    for views in (gather(first.float()), gather(second.float())):
        if len(views) < 2:
            raise ShapeError("a variance needs 2 images in a batch, got 1")
        centred = views - views.mean(dim=0)
        deviation = (centred.square().sum(dim=0) / (len(views) - 1) + _LEAST_VARIANCE).sqrt()
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
        for name in ("invariance", "variance", "covariance"):
            check_range(name, getattr(self, name), 0)
        check_range("projection_hidden", self.projection_hidden, 1)
        check_range("projection_width", self.projection_width, 1)


class VICReg(Objective):
    """VICReg (ICLR 2022): two views agree; each coordinate varies, and shares nothing with the others; no negatives."""

    Parameters = VICRegParameters

    def __init__(self, backbone: nn.Module, parameters: VICRegParameters) -> None:
        super().__init__()
        hidden = parameters.projection_hidden
        self.backbone = backbone
        widths = (width_of(backbone), hidden, hidden, parameters.projection_width)
        self.projection = projection_head(widths, batch_norm=True)
        self.weights = parameters.invariance, parameters.variance, parameters.covariance

    def forward(self, views: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The loss of views (B, 2, C, H, W); there are no targets."""
        first, second = (self.projection(self.backbone(views[:, view])) for view in range(2))
        return vicreg_loss(first, second, *self.weights)
