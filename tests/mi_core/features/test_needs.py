"""Needs name features: parsing, what they consume, and computing the right one."""

from __future__ import annotations

import pytest
import torch

from mi_core.checks import ConfigError
from mi_core.features import FEATURES, compute, consumes, parse_need
from mi_core.features.lp_norm import lp_norm
from mi_core.features.pairwise_similarity import pairwise_similarity


def test_needs_compute_what_they_name() -> None:
    generator = torch.Generator().manual_seed(0)
    views, clean = torch.randn(4, 3, 8, generator=generator), torch.randn(4, 8, generator=generator)
    assert torch.equal(compute("pairwise:correlation", views=views), pairwise_similarity(views, "correlation"))
    assert torch.equal(compute("norm:1", views=views, clean=clean), lp_norm(clean, 1))
    assert torch.equal(compute("norm:inf", clean=clean), lp_norm(clean, float("inf")))
    assert torch.equal(compute("embedding", clean=clean), clean)
    assert {consumes(need) for need in ("norm:2", "embedding")} == {"clean"}
    assert {feature.consumes for feature in FEATURES.values()} == {"views", "clean"}


@pytest.mark.parametrize(
    ("need", "expected"),
    [
        ("pairs:cosine", "need = 'pairs:cosine', allowed: pairwise, norm, embedding"),
        ("pairwise", "metric = '', allowed: cosine, correlation, euclidean"),
        ("norm:x", "order 'x'"),
        ("embedding:2", "has no setting, got '2'"),
    ],
)
def test_unknown_needs(need: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse_need(need)


def test_missing_embeddings() -> None:
    with pytest.raises(ConfigError, match="need 'norm:2' consumes the embeddings of clean"):
        compute("norm:2", views=torch.zeros(2, 3, 4))
