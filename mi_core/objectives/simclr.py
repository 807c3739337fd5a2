"""SimCLR (Chen, Kornblith, Norouzi, Hinton, 2020): two views of one image attract, all others repel.

NT-Xent, equation 1 of section 2.1: for the 2B views of a batch, each against its partner and the other
2B - 2 views, on cosine similarity divided by a temperature.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import check_fields, check_range, check_shape
from mi_core.encoders.heads import projection_head
from mi_core.objectives.base import Objective, gather, own_rows, similarities, width_of


def nt_xent(first: torch.Tensor, second: torch.Tensor, temperature: float) -> torch.Tensor:
    """NT-Xent of two views per image: the mean over this worker's 2B views.

    Takes (B, D) projections of the two views, of any length, B equal on all workers, and tau > 0.
    Returns a scalar, float32. Under a process group the negatives come from all workers, and the mean over workers of
    this value and of its gradient equals the single-process one on the whole batch.
    Raises ShapeError: the views differ in shape; ConfigError: the temperature is not above 0.

    Example:
        >>> round(float(nt_xent(torch.eye(2), torch.eye(2), temperature=1.0)), 4)
        0.5514
    """
    batch, width = check_shape("first", first, "B D")
    check_shape("second", second, "B D", B=batch, D=width)
    check_range("temperature", temperature, 0, open_low=True)
    local = F.normalize(torch.cat([first, second]).float(), dim=1)  # (2B, D)
    everyone = gather(local)  # (W*2B, D)
    logits = similarities(local, everyone) / temperature
    own = own_rows(2 * batch, local.device)
    logits[torch.arange(2 * batch, device=local.device), own] = -torch.inf
    return F.cross_entropy(logits, own.roll(batch))


@dataclass(frozen=True)
class SimCLRParameters:
    """Settings of SimCLR; the defaults are those of its CIFAR experiments (appendix B.9).

    Args:
        temperature: tau, by which similarities are divided.
        projection_hidden: width of the hidden layer of the projection head.
        projection_width: width of what the projection head answers.
        projection_batch_norm: whether the projection head normalises its batches.
    """

    temperature: float = 0.5
    projection_hidden: int = 512
    projection_width: int = 128
    projection_batch_norm: bool = True

    def __post_init__(self) -> None:
        check_fields(self, "temperature", low=0, open_low=True)
        check_fields(self, "projection_hidden", "projection_width", low=1)


class SimCLR(Objective):
    """SimCLR (ICML 2020): two views of one image attract, all other views of the batch repel (NT-Xent)."""

    Parameters = SimCLRParameters

    def __init__(self, backbone: nn.Module, parameters: SimCLRParameters) -> None:
        super().__init__(backbone)
        self.projection = projection_head(
            (width_of(backbone), parameters.projection_hidden, parameters.projection_width),
            batch_norm=parameters.projection_batch_norm,
        )
        self.temperature = parameters.temperature

    def forward(self, views: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """NT-Xent of views (B, 2, C, H, W); there are no targets."""
        return self.contrast(self.backbone(views.transpose(0, 1).flatten(0, 1)))  # (2B, D), first views first

    def contrast(self, embeddings: torch.Tensor) -> torch.Tensor:
        """NT-Xent of the backbone's embeddings (2B, D), those of the first views first."""
        batch = len(embeddings) // 2
        projected = self.projection(embeddings)
        return nt_xent(projected[:batch], projected[batch:], self.temperature)
