"""SigLIP (Zhai et al., "Sigmoid loss for language image pre-training", ICCV 2023): every pair is judged by itself.

CLIP asks which of all captions belongs to an image. SigLIP asks of every image and every caption whether they belong
together, so no sum over the batch is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import check_shape
from mi_core.objectives.base import similarities
from mi_core.objectives.clip import CLIP, CLIPParameters
from mi_core.objectives.gather import gather, own_rows
from mi_core.objectives.text import without_padding


def sigmoid_loss(images: torch.Tensor, texts: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The sigmoid loss, algorithm 1 of SigLIP: summed over captions, the mean over images.

    Args:
        images, texts: (B, D) embeddings of any length; row i of both is one pair; B is equal on all workers.
        scale: factor of the cosines, above 0.
        bias: added to them; strongly negative at first, since most pairs do not belong together.

    Returns:
        A scalar, float32: the mean over this worker's images, with the captions of all workers.

    Raises:
        ShapeError: the shapes differ.

    Example:
        >>> round(sigmoid_loss(torch.eye(2), torch.eye(2), torch.tensor(1.0), torch.tensor(0.0)).item(), 4)
        1.0064
    """
    batch, width = check_shape("images", images, "B D")
    check_shape("texts", texts, "B D", B=batch, D=width)
    everyone = gather(F.normalize(texts.float(), dim=1))
    logits = scale * similarities(F.normalize(images.float(), dim=1), everyone) + bias
    sign = torch.full_like(logits, -1.0)
    sign[torch.arange(batch, device=logits.device), own_rows(batch, logits.device)] = 1.0
    return -F.logsigmoid(sign * logits).sum(dim=1).mean()


@dataclass(frozen=True)
class SigLIPParameters(CLIPParameters):
    """Settings of SigLIP: CLIP's, with the first temperature of section 3.2 and a bias.

    Args:
        bias: of the first step; it is learned.
    """

    temperature: float = 0.1
    bias: float = -10.0


class SigLIP(CLIP):
    """SigLIP (ICCV 2023): a sigmoid for every pair of image and caption, with a learned scale and bias."""

    Parameters = SigLIPParameters

    def __init__(self, backbone: nn.Module, parameters: SigLIPParameters) -> None:
        super().__init__(backbone, parameters)
        self.bias = nn.Parameter(torch.tensor(parameters.bias))

    def forward(self, views: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The loss of views (B, 1, C, H, W) and encoded captions (B, ...)."""
        assert targets is not None
        images, texts = self.projection(self.backbone(views[:, 0])), self.text(without_padding(targets))
        return sigmoid_loss(images, texts, self.scale.exp(), self.bias)

    def after_step(self, progress: float) -> None:
        """The scale is not bounded."""
