"""The pre-training loss of an image and the norm of its gradient by layer, for attackers who hold the weights.

Training lowers the loss of its images and leaves their gradients small (Nasr, Shokri, Houmansadr, "Comprehensive
privacy analysis of deep learning", IEEE S&P 2019, section III, for classifiers). Encoders are trained by losses on
views, so that is the loss taken here: InfoNCE of the views of one image, or of the image and its caption, against a
fixed bank of other images. V views of an image, A images in the bank, D width.

The loss of a pair has gradients in two towers, image and text, and CLIP trains both. Gomez ("Rethinking membership
inference attacks for CLIP", AAAI 2026, abstract) attacks by gradients a CLIP of 400 million pairs, of which attacks on
answers tell nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from mi_core.checks import check_range, check_shape
from mi_core.features.measure import Measure, Oracle


@dataclass(frozen=True)
class LossGradient(Measure):
    """The loss of an image, and the norms of its gradient by groups of layers.

    Args:
        temperature: by which cosines are divided, above 0.
        views: V of its own, at least 2 where views are compared with each other.
        bank: A, images that are the negatives.
        layers: groups of layers of a tower whose gradients are told apart, at most.
    """

    temperature: float = 0.5
    views: int = 4
    bank: int = 128
    layers: int = 6

    consumes = "views"
    weights = True
    least_views: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, 0, open_low=True)
        check_range("views", self.views, self.least_views)
        for name in ("bank", "layers"):
            check_range(name, getattr(self, name), 1)

    @property
    def both(self) -> bool:
        """Whether the gradient is that of the text tower's weights too."""
        return False

    def query_count(self, views: int) -> int:
        """One per view of its own."""
        return self.views

    def shape(self, views: int, width: int) -> tuple[int, ...]:
        """The loss, and a norm per group of layers of each tower."""
        return (1 + self.layers * (2 if self.both else 1),)

    def answers(self, oracle: Oracle, sent: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Losses and norms."""
        return oracle.losses(self)


@dataclass(frozen=True)
class ViewsGradient(LossGradient):
    """Of the loss of an image's views, see `views_info_nce`.

    Args:
        momentum: whether the keys are those of the encoder's momentum copy.
    """

    momentum: bool = False

    kind = "gradient"
    least_views = 2


@dataclass(frozen=True)
class CaptionGradient(LossGradient):
    """Of the loss of an image and its caption, see `caption_info_nce`.

    Args:
        both: whether the gradient is that of the text tower's weights too.
    """

    both: bool = False

    kind = "caption-gradient"
    output = "projection"
    captions = True


def views_info_nce(queries: torch.Tensor, keys: torch.Tensor, bank: torch.Tensor, temperature: float) -> torch.Tensor:
    """InfoNCE of the views of one image: the mean over all ordered pairs of two views.

    The query of one view is drawn to the key of the other, and away from the bank: equation 1 of MoCo with the bank as
    queue. Where the queries are the keys it is NT-Xent (SimCLR, equation 1) with the bank as the rest of the batch.

    Args:
        queries, keys: (V, D) of the same views, of any length.
        bank: (A, D) of any length.
        temperature: tau > 0.

    Returns:
        A scalar.

    Raises:
        ShapeError: the shapes do not fit.

    Example:
        >>> unit = torch.eye(3)
        >>> round(float(views_info_nce(unit[[0, 0]], unit[[0, 0]], unit[1:2], 1.0)), 4)
        0.3133
    """
    views, width = check_shape("queries", queries, "V D")
    check_shape("keys", keys, "V D", V=views, D=width)
    check_shape("bank", bank, "A D", D=width)
    queries, keys, bank = (F.normalize(one.float(), dim=1) for one in (queries, keys, bank))
    losses = _info_nce(queries @ keys.T / temperature, (queries @ bank.T / temperature)[:, None])
    other = ~torch.eye(views, dtype=torch.bool, device=losses.device)
    return (losses * other).sum() / (views * (views - 1))


def caption_info_nce(
    images: torch.Tensor, text: torch.Tensor, bank: torch.Tensor, bank_texts: torch.Tensor, temperature: float
) -> torch.Tensor:
    """The symmetric loss of CLIP (figure 3) of one image and its caption, the mean over the image's views.

    Args:
        images: (V, D) of the views.
        text: (D,) of the caption.
        bank, bank_texts: (A, D) of other images and of their captions: the other pairs of the batch.
        temperature: tau > 0.

    Returns:
        A scalar.

    Raises:
        ShapeError: the shapes do not fit.

    Example:
        >>> unit = torch.eye(2)
        >>> round(float(caption_info_nce(unit[:1], unit[0], unit[1:], unit[1:], 1.0)), 4)
        0.3133
    """
    _, width = check_shape("images", images, "V D")
    check_shape("text", text, "D", D=width)
    size, _ = check_shape("bank", bank, "A D", D=width)
    check_shape("bank_texts", bank_texts, "A D", A=size, D=width)
    images, bank, bank_texts = (F.normalize(one.float(), dim=1) for one in (images, bank, bank_texts))
    text = F.normalize(text.float(), dim=0)
    positive = images @ text / temperature
    of_images = _info_nce(positive, images @ bank_texts.T / temperature)
    of_texts = _info_nce(positive, bank @ text / temperature)
    return (of_images + of_texts).mean() / 2


def _info_nce(positive: torch.Tensor, negatives: torch.Tensor) -> torch.Tensor:
    """Minus the log of the share of a positive (...) among it and its negatives (..., A), all as logits."""
    return torch.logaddexp(positive, torch.logsumexp(negatives, dim=-1)) - positive
