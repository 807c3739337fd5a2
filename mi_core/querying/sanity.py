"""Tests that an encoder works at all: it must put two views of an image closer together than other images.

An encoder with wrong weights or preprocessing leaks nothing, and an audit of it says nothing about the intended one. It
is compared with raw pixels, and with an untrained reference where one can be built, on the same views: hard ones, under
which untrained networks do worse than pixels, and those of the audit, for images and encoders that such views are too
hard for.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from typing import Any

import torch
import torch.nn.functional as F
from scipy.special import stdtr, stdtrit
from torch import nn

from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.augmentations.views import Augmentation, clean, make_views
from mi_core.checks import check_range, check_shape
from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.checkpoint import Encoder
from mi_core.metrics.intervals import rate
from mi_core.querying.precision_trial import copy_rounded
from mi_core.records import Estimate

_BATCH = 64
_LEVEL = 0.025
_FIRST, _FIRST_LEVEL = 64, 0.005  # images of the first of two looks, and its part of the level
_WAYS = 2  # hard views and the audit's, at half of the level each
_TAIL = 0.025  # outside either end of an interval
_PIXEL_SIDE = 32  # of the views whose raw pixels are compared: larger ones tell no more
_HARD, _OWN = 4, 2  # views of every image
_LARGE = 0.7  # least share of the area in a crop of the audit's views
_ROOM = 0.95  # the audit's views count if every baseline ranks below
PROBED = 256  # images on which an encoder is tried out
VIEWS = _HARD + _OWN  # queries per image that trying an encoder out takes
RAW_PIXELS, FRESH, _OWN_NAME = "raw pixels", "fresh weights", "encoder"
HARD = SimCLRAugmentation(crop_scale=(0.2, 1.0), jitter_probability=1.0)
"""Crops as small as those of MoCo, and SimCLR's colours for CIFAR-10 in every view."""


@torch.inference_mode()
def similarities(
    encoder: Encoder | None,
    images: torch.Tensor,
    streams: torch.Tensor,
    augmentation: Augmentation,
    *,
    views: int = 2,
    device: torch.device | str = "cpu",
    output: str = "backbone",
    kept: list[torch.Tensor] | None = None,
    asked: Callable[[int], None] = lambda views: None,
    half: bool = False,
) -> torch.Tensor:
    """Cosines of views of N images with other views of the same images.

    Args:
        encoder: on ``device``. None: the pixels themselves, in views of at most 32 pixels.
        images: (N, C, H, W) uint8, at least 3.
        streams: (N,) int64, from `mi_core.streams` with purpose ``probe``.
        augmentation: the recipe of the views.
        views: V of every image, at least 2.
        device: where the encoder is.
        output: the embedding that is compared.
        kept: embeddings of the first of these images, from a call with fewer of them; those of the others are added.
        asked: called after each batch with the number of views that the encoder was shown.
        half: whether the encoder computes in bfloat16.

    Returns:
        (V (V - 1), N, N) float32 on the CPU: for every ordered pair of views, image i in the one and j in the other.

    Raises ShapeError: images and streams differ in number; ConfigError: fewer than 3 images or 2 views.
    """
    (count, *_) = check_shape("images", images, "N C H W")
    check_shape("streams", streams, "N", N=count)
    check_range("images", count, 3)
    check_range("views", views, 2)
    side = min(_PIXEL_SIDE, images.shape[2]) if encoder is None else encoder.size
    parts = [] if kept is None else kept
    done = sum(map(len, parts))
    for pixels, own in zip(images[done:].split(_BATCH), streams[done:].split(_BATCH), strict=True):
        flat = make_views(pixels.to(device), own.to(device), augmentation, views=views, size=side).flatten(0, 1)
        with torch.autocast(flat.device.type, torch.bfloat16, enabled=half):
            embedded = flat.flatten(1) if encoder is None else encoder(flat)[output]
        parts.append(F.normalize(embedded.float(), dim=1).unflatten(0, (-1, views)).cpu())
        asked(0 if encoder is None else len(flat))
    return torch.stack([one @ other.T for one, other in permutations(torch.cat(parts).unbind(1), 2)])  # of (N, D)


def ranks(similar: torch.Tensor) -> torch.Tensor:
    """Share of the other images that are less similar to a view of an image than another view of that image is.

    Ties count half. An encoder that tells nothing apart has .5.

    Takes (P, N, N) of `similarities`; returns (N,) float64 in [0, 1]: one per image, the mean over the P pairs of
    views.
    Raises ShapeError: not (P, N, N).

    Example:
        >>> ranks(torch.tensor([[[0.9, 0.2, 0.1], [0.5, 0.5, 0.1], [0.9, 0.8, 0.1]]])).tolist()
        [1.0, 0.75, 0.0]
    """
    _, count, _ = check_shape("similar", similar, "P N M", M=similar.shape[1])
    own = similar.diagonal(dim1=1, dim2=2)[:, :, None]
    below = (similar < own).double().sum(dim=2) + ((similar == own).double().sum(dim=2) - 1) / 2
    return below.mean(dim=0) / (count - 1)


def mean_of(values: torch.Tensor) -> tuple[Estimate, float]:
    """The mean of N >= 2 values (N,) with Student's 95 % interval, and the one-sided p-value of a mean of at most 0.

    The p-value is at most .025 where the interval lies above 0. N is at least 64 in practice, so the values need not be
    normal.

    Raises ShapeError: not (N,); ConfigError: fewer than 2 values.

    Example:
        >>> estimate, p = mean_of(torch.tensor([0.0, 0.1, 0.2], dtype=torch.float64))
        >>> [round(number, 3) for number in (estimate.value, estimate.low, estimate.high, p)]
        [0.1, -0.148, 0.348, 0.113]
    """
    (count,) = check_shape("values", values, "N")
    check_range("values", count, 2)
    mean, error = float(values.mean()), float(values.std()) / math.sqrt(count)
    half = float(stdtrit(count - 1, 1 - _TAIL)) * error
    p = float(stdtr(count - 1, -mean / error)) if error else float(mean <= 0)
    return Estimate(mean, mean - half, mean + half, count), p


def view_consistency(
    encoder: Encoder,
    reference: Encoder | None,
    images: torch.Tensor,
    streams: torch.Tensor,
    views: SimCLRAugmentation,
    *,
    device: torch.device | str = "cpu",
    fresh: bool = False,
    asked: Callable[[int], None] = lambda views: None,
    half: bool = False,
) -> dict[str, Any]:
    """Compare how an encoder ranks the views of images with raw pixels, and with a network that learned nothing.

    The statistic is the mean of `ranks` over the images. The test is Student's, paired by image and one-sided. It is
    done on the `HARD` views and on the audit's, at half of the level each: an encoder works if on either of them it is
    better than *every* baseline. So one that is no better than the best baseline is called working with a probability
    of at most .025 over images. Of 128 images and more the first 64 are looked at alone, with .005 of the level:
    most encoders that work need no second look, with the other .02. Pixels are among the baselines because fresh
    networks differ from each other by more than images explain, and none of them does better than pixels on hard
    views. On mirror images and on small crops of one colour they do; so the audit's views are taken unmirrored, in
    crops of at least 70 % of the area, and do not count where a baseline ranks .95 or more already.

    Args:
        encoder: on ``device``. It is asked for `VIEWS` views of every image.
        reference: an untrained one on ``device``, likewise; None: pixels alone are compared with.
        images, streams: as `similarities`.
        views: those that attackers draw.
        device: where the encoders are.
        fresh: the encoder is meant to be untrained, and always counts as working; one look suffices.
        asked, half: as `similarities`, for both networks.

    Returns ``works``; ``queries`` that the encoder answered, fewer after one look; ``encoder`` and ``reference``, the
    shares of images whose nearest neighbour in one other hard view is the same image; ``reference_name``; and
    ``ranking``, two entries, for hard views and for the audit's: the mean rank of ``encoder``, ``better`` or not, and
    under ``baselines`` by name their ``mean``, the ``gain`` of the encoder and ``p``. Estimates are as
    `records.Estimate.as_json` writes them.
    Raises ShapeError, ConfigError: as `similarities`.
    """
    given = {_OWN_NAME: encoder, FRESH: reference}
    ready = {name: _quicker(one, device) for name, one in given.items() if one is not None}
    networks = {RAW_PIXELS: None, **({name: copy_rounded(one) for name, one in ready.items()} if half else ready)}
    kept: dict[tuple[str, bool], list[torch.Tensor]] = {}

    def similar_in(name: str, recipe: SimCLRAugmentation, count: int, first: int) -> torch.Tensor:
        network, parts = networks[name], kept.setdefault((name, recipe is HARD), [])
        output = encoder.outputs[0] if name == _OWN_NAME else "backbone"
        how: dict[str, Any] = {"views": count, "device": device, "output": output, "kept": parts, "asked": asked}
        return similarities(network, images[:first], streams[:first], recipe, half=half, **how)

    two = len(images) >= 2 * _FIRST
    looks = ((_FIRST, _FIRST_LEVEL), (len(images), _LEVEL - _FIRST_LEVEL)) if two else ((len(images), _LEVEL),)
    found: dict[str, Any] = {}
    for first, level in looks:
        found = _look([name for name in networks if name != _OWN_NAME], partial(similar_in, first=first), views, level)
        found |= {"works": fresh or found["works"], "queries": VIEWS * first}
        if found["works"]:
            break
    return found


def _look(
    baselines: Sequence[str], similar_in: Callable[..., torch.Tensor], views: SimCLRAugmentation, level: float
) -> dict[str, Any]:
    """One look: what `view_consistency` returns but the number of queries."""
    name = baselines[-1]
    ways: list[dict[str, Any]] = []
    matched: dict[str, Estimate] = {}
    low, high = (max(_LARGE, share) for share in views.crop_scale)
    for recipe, count in ((HARD, _HARD), (replace(views, flip=0.0, crop_scale=(low, high)), _OWN)):
        own = similar_in(_OWN_NAME, recipe, count)
        own_ranks = ranks(own)
        compared: dict[str, dict[str, Any]] = {}
        for one in baselines:
            similar = similar_in(one, recipe, count)
            matched.setdefault(one, _matched(similar))
            other_ranks = ranks(similar)
            gain, p = mean_of(own_ranks - other_ranks)
            compared[one] = {"mean": mean_of(other_ranks)[0].as_json(), "gain": gain.as_json(), "p": p}
        matched.setdefault(_OWN_NAME, _matched(own))
        room = recipe is HARD or all(entry["mean"]["value"] < _ROOM for entry in compared.values())
        better = room and all(entry["p"] <= level / _WAYS for entry in compared.values())
        ways.append({"encoder": mean_of(own_ranks)[0].as_json(), "baselines": compared, "better": better})
    told = {"encoder": matched[_OWN_NAME].as_json(), "reference": matched[name].as_json(), "reference_name": name}
    return {**told, "works": any(way["better"] for way in ways), "ranking": ways}


def _quicker(encoder: Encoder, device: torch.device | str) -> Encoder:
    """A copy whose batch norm is folded; the encoder itself where it has none, is no network or cannot be copied."""
    if type(encoder) is not Encoder or not any(isinstance(part, nn.BatchNorm2d) for part in encoder.modules()):
        return encoder
    try:
        copied = copy.deepcopy(encoder)
    except Exception:  # noqa: BLE001 - whatever code of others raises
        return encoder
    return for_queries(copied, device)


def _matched(similar: torch.Tensor) -> Estimate:
    """Share of images found by the first view among the second views."""
    first = similar[0]
    return rate(int((first.argmax(dim=1) == torch.arange(len(first))).sum()), len(first))


def consistency_in_words(shown: Mapping[str, Any]) -> str:
    """How well an encoder ranks the views of an image, beside its baselines; a warning where that is no better."""
    better = ", clearly better" if _decisive_views(shown)["better"] else ""
    return f"{_seen(shown)}{better}." if shown["works"] else f"WARNING: {fault_in_words(shown)}"


def fault_in_words(shown: Mapping[str, Any]) -> str:
    """The fault of an encoder that does not recognise images, with the evidence; empty where it does."""
    if shown["works"]:
        return ""
    fresh = _decisive_views(shown)["baselines"].get(FRESH)
    untrained = fresh is not None and fresh["p"] > (_LEVEL - _FIRST_LEVEL) / _WAYS
    against = "an untrained one" if untrained else "a comparison of raw pixels"
    seen = _seen(shown)
    return (
        f"this encoder recognises images no better than {against}. Wrong weights file or preprocessing? "
        f"{seen[0].upper()}{seen[1:]}."
    )


def _decisive_views(shown: Mapping[str, Any]) -> Mapping[str, Any]:
    """The views on which an encoder is better, else the hard ones."""
    return next((one for one in shown["ranking"] if one["better"]), shown["ranking"][0])


def _seen(shown: Mapping[str, Any]) -> str:
    way = _decisive_views(shown)
    others = ", ".join(f"{name}: {100 * entry['mean']['value']:.1f}" for name, entry in way["baselines"].items())
    return (
        f"shown two views of an image, it ranks the second above {100 * way['encoder']['value']:.1f} of 100 other "
        f"images ({others}; {way['encoder']['n']} images)"
    )


@dataclass(frozen=True)
class Agreement:
    """Agreement of the answers to the same images decoded in two ways."""

    cosine: float  # mean over the images
    centred: float  # the same after the mean embedding of all is taken away, which shows what tells images apart
    images: int  # how many


@torch.inference_mode()
def agreement(
    encoder: Encoder, first: torch.Tensor, second: torch.Tensor, *, device: torch.device | str = "cpu"
) -> Agreement:
    """Compare the embeddings of the same images decoded in two ways, on the encoder's last output but logits.

    Both are (N, C, H, W) uint8, N at least 2; their sizes may differ. The encoder is on ``device``.

    Raises ShapeError: they differ in number.
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


def unit_lengths(embeddings: torch.Tensor) -> bool:
    """True if all of N embeddings (N, D) have length 1 within .001: they were normalised, perhaps rounded."""
    check_shape("embeddings", embeddings, "N D")
    return bool(((embeddings.float().norm(dim=1) - 1).abs() <= 1e-3).all())
