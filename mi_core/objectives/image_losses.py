"""The losses of pre-training, of one image: of V of its views, or of them and its caption, against a fixed bank.

In training a loss is that of a batch. Here the bank, A other images of which one view each was embedded, stands for the
rest of the batch, and is the same for all images. D width of an embedding. `VIEW_LOSSES` and `CAPTION_LOSSES` are the
tables; the loss of a masked autoencoder needs no bank (`mi_core.encoders.masked`). That of Barlow Twins is not here: it
tells nothing of one image, and with its gradients no more than InfoNCE (`configs/results/README.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations

import torch
import torch.nn.functional as F

from mi_core.checks import check_shape
from mi_core.objectives.dino import DINOParameters, dino_loss
from mi_core.objectives.without_negatives import byol_loss


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
    views = _check(queries, keys, bank)
    queries, keys, bank = (F.normalize(one.float(), dim=1) for one in (queries, keys, bank))
    losses = _info_nce(queries @ keys.T / temperature, (queries @ bank.T / temperature)[:, None])
    other = ~torch.eye(views, dtype=torch.bool, device=losses.device)
    return (losses * other).sum() / (views * (views - 1))


def views_byol(queries: torch.Tensor, keys: torch.Tensor, bank: torch.Tensor, temperature: float) -> torch.Tensor:
    """Equation 2 of BYOL, the mean over all ordered pairs of two views; it knows no others, so the bank is not read.

    Args, returns and raises as `views_info_nce`; the temperature is not read.
    """
    views = _check(queries, keys, bank)
    return _mean(byol_loss(queries[[one]], keys[[other]]) for one, other in permutations(range(views), 2))


def views_dino(queries: torch.Tensor, keys: torch.Tensor, bank: torch.Tensor, temperature: float) -> torch.Tensor:
    """Equation 2 of DINO, the mean over all ordered pairs of two views; the bank's mean is the centre.

    The teacher's temperature is .4 of the student's, as .04 and .1 in DINO.

    Args: queries (V, K), keys (V, K) and bank (A, K) are scores of K prototypes. Otherwise as `views_info_nce`.
    """
    views, centre = _check(queries, keys, bank), bank.float().mean(dim=0)
    temperatures = temperature, temperature * DINOParameters.teacher_temperature / DINOParameters.temperature
    return _mean(
        dino_loss(queries[[one]], keys[[other]], centre, *temperatures) for one, other in permutations(range(views), 2)
    )


def caption_info_nce(
    images: torch.Tensor,
    text: torch.Tensor,
    bank: torch.Tensor,
    bank_texts: torch.Tensor,
    temperature: float,
    bias: float = 0.0,
) -> torch.Tensor:
    """The symmetric loss of CLIP (figure 3) of one image and its caption, the mean over the image's views.

    Args:
        images: (V, D) of the views.
        text: (D,) of the caption.
        bank, bank_texts: (A, D) of other images and of their captions: the other pairs of the batch.
        temperature: tau > 0.
        bias: not read.

    Returns:
        A scalar.

    Raises:
        ShapeError: the shapes do not fit.

    Example:
        >>> unit = torch.eye(2)
        >>> round(float(caption_info_nce(unit[:1], unit[0], unit[1:], unit[1:], 1.0)), 4)
        0.3133
    """
    positive, of_images, of_texts = _pair_logits(images, text, bank, bank_texts, temperature)
    return (_info_nce(positive, of_images) + _info_nce(positive, of_texts)).mean() / 2


def caption_sigmoid(
    images: torch.Tensor,
    text: torch.Tensor,
    bank: torch.Tensor,
    bank_texts: torch.Tensor,
    temperature: float,
    bias: float,
) -> torch.Tensor:
    """The sigmoid loss of SigLIP (algorithm 1) of one image and its caption, the mean over the image's views.

    It is the sum over all pairs of the image or the caption with itself and the bank.

    Args: as `caption_info_nce`; ``bias`` is added to the logits, strongly negative.

    Example:
        >>> unit = torch.eye(2)
        >>> round(float(caption_sigmoid(unit[:1], unit[0], unit[1:], unit[1:], 1.0, 0.0)), 4)
        1.6996
    """
    positive, of_images, of_texts = _pair_logits(images, text, bank, bank_texts, temperature)
    others = F.logsigmoid(-of_images - bias).sum(dim=1) + F.logsigmoid(-of_texts - bias).sum()
    return -(F.logsigmoid(positive + bias) + others).mean()


def _pair_logits(
    images: torch.Tensor, text: torch.Tensor, bank: torch.Tensor, bank_texts: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of views and caption (V,), of views and the bank's captions (V, A), of the bank and the caption (A,)."""
    _, width = check_shape("images", images, "V D")
    check_shape("text", text, "D", D=width)
    size, _ = check_shape("bank", bank, "A D", D=width)
    check_shape("bank_texts", bank_texts, "A D", A=size, D=width)
    images, bank, bank_texts = (F.normalize(one.float(), dim=1) for one in (images, bank, bank_texts))
    text = F.normalize(text.float(), dim=0)
    return images @ text / temperature, images @ bank_texts.T / temperature, bank @ text / temperature


def _info_nce(positive: torch.Tensor, negatives: torch.Tensor) -> torch.Tensor:
    """Minus the log of the share of a positive (...) among it and its negatives (..., A), all as logits."""
    return torch.logaddexp(positive, torch.logsumexp(negatives, dim=-1)) - positive


def _check(queries: torch.Tensor, keys: torch.Tensor, bank: torch.Tensor) -> int:
    """The number of views."""
    views, width = check_shape("queries", queries, "V D")
    check_shape("keys", keys, "V D", V=views, D=width)
    check_shape("bank", bank, "A D", D=width)
    return views


def _mean(losses: Iterator[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(losses)).mean()


@dataclass(frozen=True)
class ViewLoss:
    """A row of `VIEW_LOSSES`.

    Args:
        of: queries (V, D), keys (V, D), bank (A, D) and temperature to the loss of one image.
        temperature: of training by default; 1 where it has none.
        keyed: whether the keys may be those of a momentum copy.
        output: that it is read off; None: any.
    """

    of: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
    temperature: float = 1.0
    keyed: bool = False
    output: str | None = None


VIEW_LOSSES: dict[str, ViewLoss] = {
    "info-nce": ViewLoss(views_info_nce, 0.5, keyed=True),
    "byol": ViewLoss(views_byol, keyed=True),
    "dino": ViewLoss(views_dino, 0.1, keyed=True, output="prototypes"),
}
"""Losses of the views of an image, by their names in a config."""

CAPTION_LOSSES: dict[str, tuple[Callable[..., torch.Tensor], float]] = {
    "clip": (caption_info_nce, 0.07),
    "siglip": (caption_sigmoid, 0.1),
}
"""Losses of an image and its caption, each with the temperature of training by default."""
