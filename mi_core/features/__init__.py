"""Membership features: pure functions from embeddings to one row per sample.

A *need* names a feature with its setting, ``"pairwise:cosine"`` or ``"norm:2"``; attacks state their needs, extraction
computes them. `FEATURES` is the table; N samples, V views, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from mi_core.checks import ConfigError
from mi_core.features.lp_norm import lp_norm, parse_order
from mi_core.features.pairwise_similarity import METRICS, pairwise_similarity


@dataclass(frozen=True)
class Feature:
    """One kind of membership feature.

    Args:
        consumes: ``views`` (N, V, D) embeddings of augmented views, or ``clean`` (N, D) of the image itself.
        compute: embeddings and the setting to one row per sample.
        check: raises ConfigError for an impossible setting.
    """

    consumes: str
    compute: Callable[[torch.Tensor, str], torch.Tensor]
    check: Callable[[str], object]


def _is_metric(setting: str) -> None:
    if setting not in METRICS:
        raise ConfigError(f"metric = {setting!r}, allowed: {', '.join(METRICS)}")


def _is_empty(setting: str) -> None:
    if setting:
        raise ConfigError(f"the embedding itself has no setting, got {setting!r}")


FEATURES: dict[str, Feature] = {
    "pairwise": Feature("views", pairwise_similarity, _is_metric),
    "norm": Feature("clean", lambda embeddings, order: lp_norm(embeddings, parse_order(order)), parse_order),
    "embedding": Feature("clean", lambda embeddings, _: embeddings, _is_empty),
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
    """``views`` or ``clean``: which embeddings a need is computed from. Raises as `parse_need`.

    Example:
        >>> consumes("pairwise:cosine"), consumes("norm:2")
        ('views', 'clean')
    """
    return parse_need(need)[0].consumes


def compute(need: str, *, views: torch.Tensor | None = None, clean: torch.Tensor | None = None) -> torch.Tensor:
    """The feature of N samples.

    Args:
        need: name and setting.
        views: (N, V, D) un-normalised embeddings of the views, for needs that consume them.
        clean: (N, D) un-normalised embeddings of the images themselves.

    Returns:
        (N,) or (N, F) of the embeddings' dtype.

    Raises:
        ConfigError: as `parse_need`, or the embeddings that the need consumes are not given.
    """
    feature, setting = parse_need(need)
    embeddings = {"views": views, "clean": clean}[feature.consumes]
    if embeddings is None:
        raise ConfigError(f"need {need!r} consumes the embeddings of {feature.consumes}, which are not given")
    return feature.compute(embeddings, setting)
