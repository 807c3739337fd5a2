"""Needs name features: parsing, what they consume, and computing the right one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mi_core.checks import ConfigError
from mi_core.features import FEATURES, compute, consumes, of_first_views, parse_need, queries_per_image
from mi_core.features.caption_similarity import caption_similarity
from mi_core.features.lp_norm import lp_norm
from mi_core.features.pairwise_similarity import pairwise_similarity
from mi_core.features.patch_similarity import center_similarity


def test_needs_compute_what_they_name() -> None:
    generator = torch.Generator().manual_seed(0)
    views, clean = torch.randn(4, 3, 8, generator=generator), torch.randn(4, 8, generator=generator)
    assert torch.equal(compute("pairwise:correlation", views), pairwise_similarity(views, "correlation"))
    assert torch.equal(compute("norm:1", clean), lp_norm(clean, 1))
    assert torch.equal(compute("norm:inf", clean), lp_norm(clean, float("inf")))
    assert torch.equal(compute("embedding", clean), clean)
    assert torch.equal(compute("patches:3x1", views), center_similarity(views))
    assert torch.equal(compute("caption:cosine", (clean, clean)), caption_similarity(clean, clean))
    assert torch.equal(compute("caption:embedding", (clean, clean + 1)), clean + 1)
    assert {consumes(need) for need in ("norm:2", "embedding")} == {"clean"}
    assert torch.equal(compute("view-embeddings", views), views)
    kinds = {"views", "clean", "patches", "parts", "caption", "boundary", "adversarial", "sequential"}
    kinds |= {"neighbours", "gradient", "caption-gradient"}
    assert {feature.consumes for feature in FEATURES.values()} == kinds


def test_each_set_of_queries_is_asked_once() -> None:
    assert queries_per_image(["norm:1", "norm:2", "embedding", "caption:cosine"], 10) == 1
    assert queries_per_image(["pairwise:cosine", "pairwise:euclidean"], 10) == 10
    assert queries_per_image(["patches:3x3", "patches:3x1", "parts:128", "norm:2"], 10) == 9 + 3 + 129 + 1
    assert queries_per_image(["pairwise:cosine", "view-embeddings"], 10) == 10
    assert queries_per_image(["boundary:7/1500", "adversarial:0.03/10/100"], 10) == 1500 + 100


@pytest.mark.parametrize("used", [2, 3, 5])
def test_first_views_are_what_fewer_views_would_have_given(used: int) -> None:
    views = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))
    for need in ("pairwise:cosine", "pairwise:euclidean"):
        whole = compute(need, views).numpy()
        np.testing.assert_allclose(
            of_first_views(need, whole, 5, used), compute(need, views[:, :used]).numpy(), atol=1e-6
        )
    stored = views.flatten(1).numpy()  # as a table holds them
    np.testing.assert_array_equal(of_first_views("view-embeddings", stored, 5, used), views[:, :used].numpy())
    norms = np.ones(4)
    assert of_first_views("norm:2", norms, 5, used) is norms
    with pytest.raises(ConfigError, match="views = 6, but only 5 were drawn"):
        of_first_views("pairwise:cosine", whole, 5, 6)


@pytest.mark.parametrize(
    ("need", "expected"),
    [
        ("pairs:cosine", "need = 'pairs:cosine', allowed: pairwise, view-embeddings, sequential, norm, "),
        ("patches:2x2", "odd numbers"),
        ("patches:3", "rows x columns"),
        ("parts:0", "parts"),
        ("parts:many", "128 in the paper"),
        ("parts:128/0", "parts = 0"),
        ("parts:128/x", "128 in the paper"),
        ("boundary:7", "boundary:7/2000"),
        ("boundary:0/2000", "iterations = 0"),
        ("adversarial:0.1", "adversarial:0.0314/10/10"),
        ("adversarial:2/10/10", "epsilon = 2"),
        ("adversarial:0.1/10/1", "classes = 1"),
        ("gradient:0.5/2/128/6/both", "the loss of views has no text tower; leave /both out"),
        ("caption-gradient:0.5/2/128/6/momentum", "captions have no momentum keys; leave /momentum out"),
        ("caption-gradient:0.5/2/128/6/text", "allowed: temperature/views/bank/layers"),
        ("caption:euclidean", "allowed: caption:cosine, caption:embedding"),
        ("pairwise", "metric = '', allowed: correlation, cosine, euclidean"),
        ("norm:x", "order 'x'"),
        ("embedding:2", "has no setting, got '2'"),
    ],
)
def test_unknown_needs(need: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse_need(need)
