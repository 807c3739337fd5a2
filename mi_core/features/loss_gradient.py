"""The loss that an encoder was trained by, of one image, and the gradient of its weights there.

Training lowers the loss of its images and leaves their gradients small (Nasr, Shokri, Houmansadr, "Comprehensive
privacy analysis of deep learning", IEEE S&P 2019, section III, for classifiers). Encoders are trained by losses on
views, or on an image and its caption (`mi_core.objectives.image_losses`). V views of an image, A images in the bank, D
width. The errors of hidden patches, of MAE and I-JEPA, found no member (`configs/results/README.md`), and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from mi_core.checks import check_choice, check_range
from mi_core.features.measure import Measure, Oracle
from mi_core.objectives.image_losses import CAPTION_LOSSES, VIEW_LOSSES


class LossGradient(Measure):
    """The loss of an image, and the norms of its gradient by groups of layers.

    ``views`` is V of its own, at least 2 where views are compared with each other. ``layers`` is the largest number of
    groups of layers of a tower whose gradients are told apart.
    """

    views: int
    layers: int

    consumes = "views"
    weights = True
    least_views: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_range("views", self.views, self.least_views)
        check_range("layers", self.layers, 1)

    def query_count(self, views: int) -> int:
        """A query per view of its own."""
        return self.views

    def shape(self, views: int, width: int) -> tuple[int, ...]:
        """The loss, and a norm per group of layers."""
        return (1 + self.layers,)

    def answers(self, oracle: Oracle, sent: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Losses and norms."""
        return oracle.losses(self)


@dataclass(frozen=True)
class _AgainstBank(LossGradient):
    """Of a loss against a bank.

    Args:
        temperature: by which cosines or scores are divided, above 0; not read by a loss that has none.
        views: V of its own.
        bank: A, images that stand for the rest of a batch.
        layers: groups of layers of a tower whose gradients are told apart, at most.
    """

    temperature: float = 0.5
    views: int = 4
    bank: int = 128
    layers: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("temperature", self.temperature, 0, open_low=True)
        check_range("bank", self.bank, 1)


@dataclass(frozen=True)
class ViewsGradient(_AgainstBank):
    """Of a loss of an image's views.

    Args:
        loss: of `image_losses.VIEW_LOSSES`.
        momentum: whether the keys are those of the encoder's momentum copy.
    """

    loss: str = "info-nce"
    momentum: bool = False

    kind = "gradient"
    least_views = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("loss", self.loss, VIEW_LOSSES)

    @property
    def output(self) -> str | None:  # type: ignore[override]
        """The one output that the loss is defined on; None: any."""
        return VIEW_LOSSES[self.loss].output


@dataclass(frozen=True)
class CaptionGradient(_AgainstBank):
    """Of a loss of an image and its caption.

    Args:
        loss: of `image_losses.CAPTION_LOSSES`.
        bias: added to the logits of ``siglip``.
    """

    loss: str = "clip"
    bias: float = -10.0

    kind = "caption-gradient"
    output = "projection"
    captions = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("loss", self.loss, CAPTION_LOSSES)
