"""Tests that an encoder works at all: two views of an image must find each other in its embeddings.

An encoder with wrong weights or preprocessing leaks nothing, and an audit of it says nothing about the intended one. It
is compared with a reference that learned nothing, on the same views.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from scipy.special import betainc

from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.augmentations.views import Augmentation, clean, make_views
from mi_core.checks import check_range, check_shape
from mi_core.encoders.checkpoint import Encoder
from mi_core.metrics.intervals import rate
from mi_core.records import Estimate

_BATCH = 64
_LEVEL = 0.025
_NEARLY_ALL = 0.9
RAW_PIXELS = "raw pixels"
EASY = 0.8  # views of which a reference finds more than this share leave little room to be better
SMALL = (0.1, 0.3)  # share of the image in a small crop


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


def view_consistency(
    encoder: Encoder,
    reference: Encoder | None,
    images: torch.Tensor,
    streams: torch.Tensor,
    views: SimCLRAugmentation,
    *,
    device: torch.device | str = "cpu",
    fresh: bool = False,
) -> dict[str, Any]:
    """View consistency of an encoder beside that of fresh weights, or of pixels where nothing can be built afresh.

    Where even the reference finds nearly all views, small crops leave more room to be better.

    Args:
        encoder: on ``device``.
        reference: an untrained one on ``device``; None: the pixels themselves.
        images, streams: as `views_found`.
        views: those that attackers draw.
        device: where the encoders are.
        fresh: the encoder is meant to be untrained, and always counts as working.

    Returns:
        The shares ``encoder`` and ``reference`` as `records.Estimate.as_json` writes them, ``reference_name``,
        ``works``, and ``small_crops`` where these were drawn.

    Raises:
        ShapeError, ConfigError: as `views_found`.
    """
    small = False
    other = views_found(reference, images, streams, views, device=device, size=encoder.size)
    if float(other.float().mean()) > EASY:
        views, small = replace(views, crop_scale=SMALL), True
        other = views_found(reference, images, streams, views, device=device, size=encoder.size)
    own = views_found(encoder, images, streams, views, device=device, output=encoder.outputs[0])
    return {
        **({"small_crops": True} if small else {}),
        "encoder": consistency(own).as_json(),
        "reference": consistency(other).as_json(),
        "reference_name": RAW_PIXELS if reference is None else "fresh weights",
        "works": fresh or recognises(own, other),
    }


def consistency_in_words(shown: Mapping[str, Any]) -> str:
    """Share of images whose views find each other, beside a reference; a warning where it is no larger."""
    return f"{_seen(shown)}." if shown["works"] else f"WARNING: {fault_in_words(shown)}"


def fault_in_words(shown: Mapping[str, Any]) -> str:
    """The fault of an encoder that does not recognise images, with the evidence; empty where it does."""
    if shown["works"]:
        return ""
    against = "a comparison of raw pixels" if shown["reference_name"] == RAW_PIXELS else "an untrained one"
    return (
        f"this encoder recognises images no better than {against}. Wrong weights file or preprocessing? "
        f"It {_seen(shown)}."
    )


def _seen(shown: Mapping[str, Any]) -> str:
    own, other = shown["encoder"], shown["reference"]
    view = "small crop" if shown.get("small_crops") else "view"
    return (
        f"finds the other {view} of an image among {own['n']} in {own['value']:.1%} of cases "
        f"({shown['reference_name']}: {other['value']:.1%})"
    )


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
