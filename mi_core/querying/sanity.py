"""Tests that an encoder works at all: two views of an image must find each other in its embeddings.

An encoder with wrong weights or preprocessing leaks nothing, and an audit of it says nothing about the intended one. It
is compared with a reference that learned nothing, on the same views.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from scipy.special import betainc

from mi_core.augmentations.views import Augmentation, clean, make_views
from mi_core.checks import check_range, check_shape
from mi_core.encoders.checkpoint import Encoder
from mi_core.metrics.intervals import rate
from mi_core.records import Estimate

_BATCH = 64
_LEVEL = 0.025
_NEARLY_ALL = 0.9


@torch.inference_mode()
def views_found(
    encoder: Encoder | None,
    images: torch.Tensor,
    streams: torch.Tensor,
    augmentation: Augmentation,
    *,
    device: torch.device | str = "cpu",
    size: int | None = None,
    output: str = "backbone",
) -> torch.Tensor:
    """Whether the nearest of N second views, by cosine, is that of the same image.

    Args:
        encoder: on ``device``. None: the pixels themselves.
        images: (N, C, H, W) uint8, at least 2.
        streams: (N,) int64, from `streams.stream_keys` with purpose ``probe``.
        augmentation: the recipe of the views.
        device: where the encoder is.
        size: side of the views; default: that of the encoder, else of the images.
        output: the embedding that is compared.

    Returns:
        (N,) bool on the CPU, one per image.

    Raises:
        ShapeError: images and streams differ in number.
        ConfigError: fewer than 2 images.
    """
    (count, *_) = check_shape("images", images, "N C H W")
    check_shape("streams", streams, "N", N=count)
    check_range("images", count, 2)
    side = size if encoder is None or encoder.size is None else encoder.size
    parts = []
    for pixels, own in zip(images.split(_BATCH), streams.split(_BATCH), strict=True):
        views = make_views(pixels.to(device), own.to(device), augmentation, views=2, size=side)
        flat = views.flatten(0, 1)
        embedded = flat.flatten(1) if encoder is None else encoder(flat)[output]
        parts.append(F.normalize(embedded.float(), dim=1).unflatten(0, (-1, 2)))
    first, second = torch.cat(parts).unbind(1)  # (N, D) each
    nearest = (first @ second.T).argmax(dim=1)
    return (nearest == torch.arange(count, device=first.device)).cpu()


def consistency(matched: torch.Tensor) -> Estimate:
    """The share of N images whose other view was found, with its Clopper-Pearson interval.

    Args:
        matched: (N,) bool, of `views_found`.

    Raises:
        ShapeError: not (N,).
    """
    (count,) = check_shape("matched", matched, "N")
    return rate(int(matched.sum()), count)


def recognises(matched: torch.Tensor, reference: torch.Tensor) -> bool:
    """Whether an encoder finds views better than a reference that learned nothing, on the same images.

    McNemar's test (Psychometrika, 1947), exact and one-sided at .025: of the images on which the two differ, the
    encoder must be right on more than half. An encoder whose lower bound is above .9 passes too: where nearly every
    view is found there is no room to be better.

    Args:
        matched: (N,) bool of the encoder, of `views_found`.
        reference: (N,) bool of fresh weights or of raw pixels.

    Raises:
        ShapeError: the two differ in number.

    Example:
        >>> nothing = torch.zeros(20, dtype=torch.bool)
        >>> recognises(torch.ones(20, dtype=torch.bool), nothing), recognises(nothing, nothing)
        (True, False)
    """
    (count,) = check_shape("matched", matched, "N")
    check_shape("reference", reference, "N", N=count)
    if consistency(matched).low > _NEARLY_ALL:
        return True
    better, worse = int((matched & ~reference).sum()), int((reference & ~matched).sum())
    return better > 0 and float(betainc(better, worse + 1, 0.5)) <= _LEVEL  # P(Binomial(better + worse, 1/2) >= better)


@dataclass(frozen=True)
class Agreement:
    """Agreement of the answers to the same images decoded in two ways.

    Args:
        cosine: mean over the images.
        centred: the same after the mean embedding of all is taken away, which shows what tells images apart.
        images: how many.
    """

    cosine: float
    centred: float
    images: int


@torch.inference_mode()
def agreement(
    encoder: Encoder, first: torch.Tensor, second: torch.Tensor, *, device: torch.device | str = "cpu"
) -> Agreement:
    """Compare the embeddings of the same images decoded in two ways, on the encoder's last output but logits.

    Args:
        encoder: on ``device``.
        first, second: (N, C, H, W) uint8, N at least 2; the sizes of the two may differ.
        device: where the encoder is.

    Raises:
        ShapeError: they differ in number.
    """
    (count, *_) = check_shape("first", first, "N C H W")
    check_shape("second", second, "N C H W", N=count)
    output = [name for name in encoder.outputs if name != "logits"][-1]
    one_way, other_way = (
        torch.cat([encoder(clean(part.to(device)))[output].float() for part in images.split(_BATCH)])
        for images in (first, second)
    )
    middle = torch.cat([one_way, other_way]).mean(dim=0)
    cosine = F.cosine_similarity(one_way, other_way, dim=1).mean()
    centred = F.cosine_similarity(one_way - middle, other_way - middle, dim=1).mean()
    return Agreement(float(cosine), float(centred), count)


def relative_differences(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Relative distances of two answers to the same queries: (N,) of |a - b| / |a|, Euclidean.

    Args:
        first, second: (N, D).

    Returns:
        (N,) float32, 0 where both are the same, infinity where only the second differs from 0.

    Raises:
        ShapeError: they differ in shape.

    Example:
        >>> relative_differences(torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 4.5]])).tolist()
        [0.10000000149011612]
    """
    (count, width) = check_shape("first", first, "N D")
    check_shape("second", second, "N D", N=count, D=width)
    apart = (first.float() - second.float()).norm(dim=1)
    return torch.where(apart == 0, torch.zeros_like(apart), apart / first.float().norm(dim=1))


def unit_lengths(embeddings: torch.Tensor) -> bool:
    """Whether all of N embeddings (N, D) have length 1 within .001: they were normalised, perhaps rounded."""
    check_shape("embeddings", embeddings, "N D")
    return bool(((embeddings.float().norm(dim=1) - 1).abs() <= 1e-3).all())
