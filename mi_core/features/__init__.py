"""Membership features: pure functions from embeddings to one row per sample.

A *need* names a feature with its setting, ``"pairwise:cosine"`` or ``"norm:2"``; attacks state their needs, extraction
computes them. `FEATURES` is the table; N samples, V views, D width. Each feature says what it asks an encoder for:
``views`` (V augmented views), ``sequential`` (of these as many as it takes to decide), ``clean`` (the image itself),
``patches`` (a grid of patches), ``parts`` (a global view with its feature map, and crops of it), ``caption`` (the image
and the text that goes with it), ``boundary`` (the images that a search for the decision boundary of a classifier asks
for), ``adversarial`` (images crafted on another one), ``neighbours`` (the image, and once the images of a bank), or for
its weights: ``gradient`` (the loss of the views of an image and its gradient) and ``caption-gradient`` (the same of the
image and its text).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mi_core.checks import ConfigError, check_choice
from mi_core.features.adversarial import parse_adversarial
from mi_core.features.boundary_distance import parse_boundary
from mi_core.features.caption_similarity import caption_similarity
from mi_core.features.loss_gradient import (
    CAPTION_GRADIENT,
    GRADIENT,
    OF_WEIGHTS,
    parse_captioned,
    parse_gradient,
    parse_pairs,
)
from mi_core.features.lp_norm import lp_norm, parse_order
from mi_core.features.neighbour_density import parse_neighbours
from mi_core.features.pairwise_similarity import METRICS, pairs_within, pairwise_similarity
from mi_core.features.part_energy import parse_parts, part_energies
from mi_core.features.patch_similarity import center_similarity, parse_grid


def _check_empty(setting: str) -> None:
    if setting:
        raise ConfigError(f"this feature has no setting, got {setting!r}")


def _check_caption(setting: str) -> None:
    if setting not in ("cosine", "embedding"):
        raise ConfigError(f"caption:{setting}, allowed: caption:cosine, caption:embedding")


@dataclass(frozen=True)
class Feature:
    """One kind of membership feature.

    Args:
        consumes: what an encoder is asked for, see above.
        check: raises ConfigError for an impossible setting; default: there is no setting.
        queries: setting and number of views to the queries per image, of an adaptive search the most it may spend;
            default: 1.
        compute: answers of the encoder (tensors in the order of `Answers`) and the setting to one row per sample;
            default: the answers as they are.
        output: the one output that it can be read off; None: any.
        bank: setting to the images of a bank that it compares with; default: none.
    """

    consumes: str
    check: Callable[[str], object] = _check_empty
    queries: Callable[[str, int], int] = lambda setting, views: 1
    compute: Callable[[Any, str], torch.Tensor] = lambda answer, setting: answer
    output: str | None = None
    bank: Callable[[str], int] = lambda setting: 0


FEATURES: dict[str, Feature] = {
    "pairwise": Feature(
        "views",
        check=lambda metric: check_choice("metric", metric, METRICS),
        queries=lambda _, views: views,
        compute=pairwise_similarity,
    ),
    "view-embeddings": Feature("views", queries=lambda _, views: views),
    "sequential": Feature("sequential", queries=lambda _, views: views),
    "norm": Feature("clean", parse_order, compute=lambda embeddings, order: lp_norm(embeddings, parse_order(order))),
    "embedding": Feature("clean"),
    "patches": Feature(
        "patches",
        check=parse_grid,
        queries=lambda grid, _: math.prod(parse_grid(grid)),
        compute=lambda embeddings, _: center_similarity(embeddings),
    ),
    "parts": Feature(
        "parts",
        check=parse_parts,
        queries=lambda parts, _: 1 + parse_parts(parts)[0],
        compute=lambda answer, _: part_energies(*answer),
        output="backbone",
    ),
    "caption": Feature(
        "caption",
        check=_check_caption,
        compute=lambda answer, part: caption_similarity(*answer) if part == "cosine" else answer[1],
        output="projection",
    ),
    "boundary": Feature("boundary", parse_boundary, lambda search, _: parse_boundary(search)[1], output="logits"),
    "adversarial": Feature(
        "adversarial", parse_adversarial, lambda images, _: parse_adversarial(images)[2], output="logits"
    ),
    "neighbours": Feature("neighbours", parse_neighbours, bank=lambda setting: parse_neighbours(setting)[1]),
    GRADIENT: Feature(
        GRADIENT,
        check=parse_pairs,
        queries=lambda loss, _: parse_gradient(loss).views,
        bank=lambda loss: parse_gradient(loss).bank,
    ),
    CAPTION_GRADIENT: Feature(
        CAPTION_GRADIENT,
        check=parse_captioned,
        queries=lambda loss, _: parse_gradient(loss).views,
        output="projection",
        bank=lambda loss: parse_gradient(loss).bank,
    ),
}


def parse_need(need: str) -> tuple[Feature, str]:
    """The feature that a need names, and its setting.

    Raises:
        ConfigError: no such feature or setting.

    Example:
        >>> parse_need("norm:2")[1]
        '2'
    """
    name, _, setting = need.partition(":")
    if name not in FEATURES:
        raise ConfigError(f"need = {need!r}, allowed: {', '.join(FEATURES)}, with a setting after a colon")
    FEATURES[name].check(setting)
    return FEATURES[name], setting


def consumes(need: str) -> str:
    """What a need asks an encoder for. Raises as `parse_need`.

    Example:
        >>> consumes("pairwise:cosine"), consumes("norm:2")
        ('views', 'clean')
    """
    return parse_need(need)[0].consumes


def of_weights(need: str) -> bool:
    """Whether a need takes the weights of the encoder, not its answers. Raises as `parse_need`.

    Example:
        >>> of_weights("gradient:0.5/4/256/6"), of_weights("norm:2")
        (True, False)
    """
    return consumes(need) in OF_WEIGHTS


def of_momentum(need: str) -> bool:
    """Whether a need takes the weights of the encoder's momentum copy too. Raises as `parse_need`.

    Example:
        >>> of_momentum("gradient:0.5/4/256/6/momentum"), of_momentum("gradient:0.5/4/256/6")
        (True, False)
    """
    return of_weights(need) and parse_gradient(need.partition(":")[2]).momentum


def bank_of(needs: Iterable[str]) -> int:
    """Images of the bank that some needs compare with, 0 for none. Raises as `parse_need`.

    Example:
        >>> bank_of(["neighbours:20/128", "norm:2"]), bank_of(["norm:2"])
        (128, 0)
    """
    return max((feature.bank(setting) for feature, setting in map(parse_need, needs)), default=0)


def asked(need: str) -> str:
    """The set of queries that a need is computed from; needs of one set share its queries. Raises as `parse_need`.

    Example:
        >>> asked("norm:2"), asked("embedding"), asked("patches:3x3")
        ('clean', 'clean', 'patches:3x3')
    """
    feature, _ = parse_need(need)
    if feature.consumes == "caption":  # the image's embedding is the clean one
        return "clean"
    return feature.consumes if feature.consumes in ("views", "clean") else need


def queries_per_image(needs: Iterable[str], views: int) -> int:
    """Queries per image for some needs, when ``views`` augmented views are drawn: each set of queries is asked once.

    Raises:
        ConfigError: as `parse_need`.

    Example:
        >>> queries_per_image(["pairwise:cosine", "pairwise:euclidean", "norm:2", "embedding"], 10)
        11
    """
    sets = {asked(need): parse_need(need) for need in needs}
    return sum(feature.queries(setting, views) for feature, setting in sets.values())


def compute(need: str, answer: Any) -> torch.Tensor:
    """The feature of N samples.

    Args:
        need: name and setting.
        answer: what the encoder answered: (N, V, D) embeddings of views or patches, (N, D) of the images themselves,
            un-normalised; for ``parts`` and ``caption`` the arguments of `part_energies` and `caption_similarity`.

    Returns:
        (N,) or (N, F) of the embeddings' dtype.

    Raises:
        ConfigError: as `parse_need`.
    """
    feature, setting = parse_need(need)
    return feature.compute(answer, setting)


def of_first_views(need: str, values: np.ndarray, drawn: int, used: int) -> np.ndarray:
    """What a feature would be if only the first ``used`` of the ``drawn`` views had been queried.

    Args:
        need: name and setting; one that does not consume views is returned as it is.
        values: (N, F) of ``drawn`` views; of embeddings of views, (N, V D), which become (N, V, D).

    Raises:
        ConfigError: fewer views were drawn than are asked for.

    Example:
        >>> of_first_views("pairwise:cosine", np.array([[12, 13, 23]]), drawn=3, used=2).tolist()
        [[12]]
    """
    if consumes(need) != "views":
        return values
    if used > drawn:
        raise ConfigError(f"views = {used}, but only {drawn} were drawn; raise queries.views")
    if need == "view-embeddings":
        return values.reshape(len(values), drawn, -1)[:, :used]
    return values[:, pairs_within(drawn, used)]
