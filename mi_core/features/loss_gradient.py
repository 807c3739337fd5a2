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

import torch
import torch.nn.functional as F

from mi_core.checks import ConfigError, check_range, check_shape

GRADIENT, CAPTION_GRADIENT = OF_WEIGHTS = ("gradient", "caption-gradient")
_OF_COPY, _OF_BOTH = "/momentum", "/both"


@dataclass(frozen=True)
class GradientSetting:
    """How a loss is taken, as the needs ``gradient:temperature/views/bank/layers`` and ``caption-gradient:...`` say.

    Args:
        temperature: by which cosines are divided, above 0.
        views: V, at least 2 where views are compared with each other.
        bank: A, images that are the negatives.
        layers: groups of layers of a tower whose gradients are told apart, at most.
        momentum: whether the keys are those of the encoder's momentum copy; the need then ends in ``/momentum``.
        both: whether the gradient is that of the text tower's weights too; the need then ends in ``/both``.
    """

    temperature: float
    views: int
    bank: int
    layers: int
    momentum: bool = False
    both: bool = False

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, 0, open_low=True)
        for name in ("views", "bank", "layers"):
            check_range(name, getattr(self, name), 1)

    def __str__(self) -> str:
        more = (_OF_COPY if self.momentum else "") + (_OF_BOTH if self.both else "")
        return f"{self.temperature:g}/{self.views}/{self.bank}/{self.layers}{more}"


def parse_gradient(text: str) -> GradientSetting:
    """The setting of a need.

    Raises:
        ConfigError: not four numbers, or one is out of range.

    Example:
        >>> parse_gradient("0.5/4/256/8").bank
        256
    """
    try:
        temperature, views, bank, layers = text.removesuffix(_OF_BOTH).removesuffix(_OF_COPY).split("/")
        numbers = float(temperature), int(views), int(bank), int(layers)
    except ValueError as error:
        raise ConfigError(
            f"gradient:{text}, allowed: temperature/views/bank/layers, as gradient:0.5/4/256/8"
        ) from error
    return GradientSetting(*numbers, momentum=_OF_COPY in text, both=text.endswith(_OF_BOTH))


def parse_pairs(text: str) -> GradientSetting:
    """The setting of a need whose loss compares views with each other. Raises as `parse_gradient`."""
    setting = parse_gradient(text)
    check_range("views", setting.views, 2)
    if setting.both:
        raise ConfigError(f"gradient:{text}, but the loss of views has no text tower; leave {_OF_BOTH} out")
    return setting


def parse_captioned(text: str) -> GradientSetting:
    """The setting of a need whose loss is of an image and its caption. Raises as `parse_gradient`."""
    setting = parse_gradient(text)
    if setting.momentum:
        raise ConfigError(f"caption-gradient:{text}, but captions have no momentum keys; leave {_OF_COPY} out")
    return setting


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
