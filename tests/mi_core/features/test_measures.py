"""What every entry of MEASURES keeps to: names, JSON, rows of the shape that it declares; and how measures share."""

from __future__ import annotations

import json
import math
import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.checks import ConfigError
from mi_core.encoders import build_backbone
from mi_core.encoders.checkpoint import Encoder, channelwise, seeded
from mi_core.features import MEASURES, Measure, as_json, queries_per_image
from mi_core.features.adversarial import AdversarialLogits
from mi_core.features.boundary_distance import BoundaryDistance
from mi_core.features.caption_similarity import CaptionEmbedding, CaptionSimilarity, caption_similarity
from mi_core.features.embedding import Embedding, LpNorm, NeighbourDensity, ViewEmbeddings, lp_norm
from mi_core.features.pairwise_similarity import METRICS, PairwiseSimilarity, pairwise_similarity
from mi_core.features.patch_similarity import CenterSimilarity, center_similarity
from mi_core.objectives.clip import CLIP, CLIPParameters
from mi_core.querying.extractor import Extractor
from mi_core.querying.plan import QueryPlan

VIEWS, IMAGES, WIDTHS = 4, 2, {"backbone": 128, "projection": 16}
SMALL = CLIPParameters(projection_width=16, text_width=16, text_layers=3, text_heads=2, text_length=24)
OTHER = {"pairwise": "euclidean"}  # parameters that are words


def varied(measure: Measure) -> Iterator[Measure]:
    """The measure, and others of which one parameter each differs."""
    yield measure
    for field in fields(measure):
        value = getattr(measure, field.name)
        if isinstance(value, bool):
            yield replace(measure, **{field.name: not value})  # type: ignore[arg-type]
        elif isinstance(value, str):
            yield replace(measure, **{field.name: OTHER[measure.kind.partition(":")[0]]})  # type: ignore[arg-type]
        else:
            yield replace(measure, **{field.name: value + (2 if isinstance(value, int) else 0.125)})


EVERY = [measure for kind in MEASURES.values() for measure in varied(kind())]


def encoder(classes: int) -> Encoder:
    """An encoder with all outputs and a text tower."""

    def build() -> Encoder:
        module = CLIP(build_backbone("conv4", 3, 12), SMALL)
        heads = {"projection": module.projection, "logits": nn.Linear(16, classes)}
        plain = channelwise((0.5,), 3)
        return Encoder(module.backbone, heads, plain, plain, text=module.text_tower())

    return seeded(0, build).eval()


def extracted(measure: Measure, views: int = VIEWS) -> dict[str, np.ndarray]:
    """The rows of some images, by column."""
    classes = getattr(measure, "classes", 10)
    images = torch.randint(0, 256, (132, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    streams, texts = torch.arange(132), tuple(f"text {row}" for row in range(132))
    extractor = Extractor(
        {"e": encoder(classes)},
        QueryPlan((measure,), (measure.output or "backbone",), views),
        SimCLRAugmentation(crop_scale=(0.3, 1.0)),
        torch.device("cpu"),
        crafter=encoder(classes),
        bank=images[IMAGES:],
    )
    found = extractor(images[:IMAGES], streams[:IMAGES], ["a", "b"], texts[:IMAGES], [0, 1])
    return found["e"]


def test_every_kind_says_what_it_is() -> None:
    assert all(kind.kind == word and is_dataclass(kind) for word, kind in MEASURES.items())
    assert all(field.name in kind.__doc__ for kind in MEASURES.values() for field in own_fields(kind))


def own_fields(kind: type[Measure]) -> list[Any]:
    return [field for field in fields(kind) if field.name in kind.__annotations__]


def test_names_tell_measures_apart() -> None:
    assert [name for name, number in Counter(measure.name for measure in EVERY).items() if number > 1] == []
    assert len(set(EVERY)) == len(EVERY)
    tiny = [LpNorm(0.1 + 2**-number) for number in range(3, 50)]
    assert len({measure.name for measure in tiny}) == len(tiny)


@pytest.mark.parametrize("measure", EVERY, ids=str)
def test_a_measure_is_a_value(measure: Measure) -> None:
    other = pickle.loads(pickle.dumps(measure))
    assert (other, hash(other), other.name, str(other)) == (measure, hash(measure), measure.name, measure.name)
    json.dumps(as_json(measure), allow_nan=False)
    assert as_json(type(measure)()) == {"kind": measure.kind}
    assert len(as_json(measure)) == 1 + (measure != type(measure)())


@pytest.mark.parametrize("measure", EVERY, ids=str)
def test_the_extractor_returns_rows_of_the_declared_shape(measure: Measure) -> None:
    output = measure.output or "backbone"
    found = extracted(measure)
    assert list(found) == [f"{output}.{measure.name}"]
    (rows,) = found.values()
    width = getattr(measure, "classes", 10) if output == "logits" else WIDTHS[output]
    assert rows.shape == (IMAGES, *measure.shape(VIEWS, width))
    if measure.shares_views:
        (fewer,) = extracted(measure, 3).values()
        stored = rows.reshape(IMAGES, -1)
        np.testing.assert_allclose(measure.first_views(stored, VIEWS, 3), fewer, atol=1e-5)
        with pytest.raises(ConfigError, match="views = 5, but only 4 were drawn"):
            measure.first_views(stored, VIEWS, 5)
    else:
        assert measure.first_views(rows, VIEWS, 3) is rows


def test_columns_are_named_as_configs_and_papers_write_them() -> None:
    assert [kind().name for kind in MEASURES.values()] == [
        *("pairwise:cosine", "view-embeddings", "norm:2", "embedding", "patches:3x3"),
        *("caption:cosine", "caption:embedding", "boundary:7/2000", "adversarial:0.03137254901960784/10/10"),
        "neighbours:20/128",
    ]
    assert (LpNorm(1).name, LpNorm(math.inf).name, LpNorm(1)) == ("norm:1", "norm:inf", LpNorm(1.0))
    assert json.dumps(as_json(LpNorm(1))) == json.dumps(as_json(LpNorm(1.0)))  # so that digests are the same
    assert as_json(LpNorm(math.inf)) == {"kind": "norm", "order": "inf"}


def test_measures_compute_what_they_name() -> None:
    generator = torch.Generator().manual_seed(0)
    views, clean = torch.randn(4, 3, 8, generator=generator), torch.randn(4, 8, generator=generator)
    for metric in METRICS:
        assert torch.equal(PairwiseSimilarity(metric).values(views), pairwise_similarity(views, metric))
    for order in (1, math.inf):
        assert torch.equal(LpNorm(order).values(clean), lp_norm(clean, order))
    assert torch.equal(Embedding().values(clean), clean)
    assert torch.equal(ViewEmbeddings().values(views), views)
    assert torch.equal(CenterSimilarity(3, 1).values(views), center_similarity(views))
    assert torch.equal(CaptionSimilarity().values(clean, clean), caption_similarity(clean, clean))
    assert torch.equal(CaptionEmbedding().values(clean, clean + 1), clean + 1)


def test_each_set_of_queries_is_asked_once() -> None:
    assert queries_per_image([LpNorm(1), LpNorm(2), Embedding(), CaptionSimilarity()], 10) == 1
    assert queries_per_image([PairwiseSimilarity(), PairwiseSimilarity("euclidean")], 10) == 10
    crops = [CenterSimilarity(3, 3), CenterSimilarity(3, 1)]
    assert queries_per_image([*crops, LpNorm()], 10) == 9 + 3 + 1
    assert queries_per_image([PairwiseSimilarity(), ViewEmbeddings()], 10) == 10
    assert queries_per_image([BoundaryDistance(7, 1500), AdversarialLogits(0.03, 10, 100)], 10) == 1500 + 100
    assert queries_per_image([PairwiseSimilarity(), NeighbourDensity()], 10) == 10 + 1


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"kind": "pairwise", "metric": "dot"}, "metric = 'dot', allowed: correlation, cosine, euclidean"),
        ({"kind": "patches", "rows": 2}, "grid = '2x3', allowed: odd numbers"),
        ({"kind": "boundary", "iterations": 0}, "iterations = 0"),
        ({"kind": "boundary", "queries": 149}, r"queries = 149, allowed: \[150"),
        ({"kind": "adversarial", "epsilon": 2}, "epsilon = 2"),
        ({"kind": "adversarial", "steps": 0}, "steps = 0"),
        ({"kind": "adversarial", "classes": 1}, "classes = 1"),
        ({"kind": "neighbours", "neighbours": 129}, "neighbours = 129"),
    ],
)
def test_parameters_that_no_measure_has(entry: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        MEASURES[entry.pop("kind")](**entry)
