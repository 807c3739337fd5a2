"""DINO (Caron et al., "Emerging properties in self-supervised vision transformers", ICCV 2021): a student matches the
teacher's distribution over prototypes.

The teacher follows the student by momentum. Its scores are centred and sharpened, so that it neither prefers one
prototype nor all alike (section 3.1). Views are two large crops; the small ones of multi-crop are not drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from mi_core.checks import check_fields, check_shape
from mi_core.encoders.heads import Prototypes
from mi_core.objectives.base import MomentumObjective, gather, width_of

_CENTRE = 0.9  # momentum of the centre, section A


def dino_loss(
    student: torch.Tensor, teacher: torch.Tensor, centre: torch.Tensor, temperature: float, teacher_temperature: float
) -> torch.Tensor:
    """Cross-entropy of the student's distribution under the teacher's, equation 2 of DINO: the mean over B images.

    Takes scores (B, K) of both, the centre (K,) that is taken from the teacher's, and the temperatures by which scores
    are divided, above 0; gradients flow to the student only.
    Returns a scalar, float32.
    Raises ShapeError: the shapes do not fit.

    Example:
        >>> scores = torch.tensor([[1.0, 1.0]])
        >>> round(dino_loss(scores, scores, torch.zeros(2), 0.1, 0.04).item(), 4)
        0.6931
    """
    batch, count = check_shape("student", student, "B K")
    check_shape("teacher", teacher, "B K", B=batch, K=count)
    check_shape("centre", centre, "K", K=count)
    wanted = F.softmax((teacher.detach().float() - centre) / teacher_temperature, dim=1)
    return -(wanted * F.log_softmax(student.float() / temperature, dim=1)).sum(dim=1).mean()


@dataclass(frozen=True)
class DINOParameters:
    """Settings of DINO; the defaults are those of its ViT-S (section A and the released code).

    Args:
        temperature, teacher_temperature: by which the scores of student and teacher are divided.
        momentum: of the teacher in the first step; it rises to 1.
        projection_hidden: width of the two hidden layers of the head.
        projection_width: width of what is compared with the prototypes.
        prototypes: K.
    """

    temperature: float = 0.1
    teacher_temperature: float = 0.04
    momentum: float = 0.996
    projection_hidden: int = 2048
    projection_width: int = 256
    prototypes: int = 65536

    def __post_init__(self) -> None:
        check_fields(self, "temperature", "teacher_temperature", low=0, open_low=True)
        check_fields(self, "momentum", low=0, high=1)
        check_fields(self, "projection_hidden", "projection_width", low=1)
        check_fields(self, "prototypes", low=2)


class DINO(MomentumObjective):
    """DINO (ICCV 2021): a student matches a momentum teacher's distribution over prototypes; no negatives."""

    Parameters = DINOParameters
    heads = ("projection", "prototypes")
    copied = ("projection", "prototypes")

    centre: torch.Tensor

    def __init__(self, backbone: nn.Module, parameters: DINOParameters) -> None:
        super().__init__(backbone)
        hidden, out = parameters.projection_hidden, parameters.projection_width
        first, second = nn.Linear(width_of(backbone), hidden), nn.Linear(hidden, hidden)
        self.projection = nn.Sequential(first, nn.GELU(), second, nn.GELU(), nn.Linear(hidden, out))
        self.prototypes = Prototypes(out, parameters.prototypes)
        self.momentum = parameters.momentum
        self.temperatures = parameters.temperature, parameters.teacher_temperature
        self.register_buffer("centre", torch.zeros(parameters.prototypes))
        self.add_key_encoder()

    def forward(self, views: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The symmetric loss of views (B, 2, C, H, W), the mean of both directions; there are no targets."""
        (first, second), (key_first, key_second) = self.answer(views)
        loss = dino_loss(first, key_second, self.centre, *self.temperatures)
        loss = (loss + dino_loss(second, key_first, self.centre, *self.temperatures)) / 2
        if self.training:  # equation 4: the centre follows the mean of the teacher's scores (B, K) over all workers
            with torch.no_grad():
                mean = gather(torch.cat([key_first, key_second]).float().mean(dim=0)[None]).mean(dim=0)
                self.centre.lerp_(mean, 1 - _CENTRE)
        return loss
