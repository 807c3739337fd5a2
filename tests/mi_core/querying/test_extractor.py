"""Querying an encoder: batching changes nothing, statistics are those of a loop, bad encoders are named; batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.augmentations.views import make_views
from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.encoders import build_backbone
from mi_core.encoders.checkpoint import Encoder, channelwise, seeded
from mi_core.encoders.heads import projection_head
from mi_core.features import Measure
from mi_core.features.adversarial import AdversarialLogits, targeted_pgd
from mi_core.features.boundary_distance import BoundaryDistance, hop_skip_jump
from mi_core.features.caption_similarity import CaptionEmbedding, CaptionSimilarity
from mi_core.features.embedding import Embedding, LpNorm, ViewEmbeddings
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.features.patch_similarity import CenterSimilarity, center_similarity, patches
from mi_core.querying.extractor import Extractor, best_batch
from mi_core.querying.plan import QueryPlan
from mi_core.streams import stream_keys
from tests.raising import refused

AUGMENTATION = SimCLRAugmentation(crop_scale=(0.3, 1.0), rotation=10)
NEEDS = (PairwiseSimilarity(), LpNorm(), Embedding())
IDS = [f"pool/{row:03d}" for row in range(30)]


def encoder(seed: int = 0) -> Encoder:
    def build() -> Encoder:
        heads = {"projection": projection_head((128, 32, 16), batch_norm=True)}
        return Encoder(build_backbone("conv4", 3, 12), heads, channelwise((0.5,), 3), channelwise((0.5,), 3))

    return seeded(seed, build).eval()


def inputs() -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    images = torch.randint(0, 256, (30, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return images, stream_keys(0, "train", "pool", [name.split("/")[1] for name in IDS]), IDS


def extractor(model: Any = None, **plan: Any) -> Extractor:
    settings = {"needs": NEEDS, "outputs": ("backbone", "projection"), "views": 4} | plan
    return Extractor({"e": model or encoder()}, QueryPlan(**settings), AUGMENTATION, torch.device("cpu"))


def test_views_are_drawn_at_the_size_that_the_encoder_takes() -> None:
    """Crops of the decoded image are resized once, to the encoder's size, not twice."""
    images, streams, ids = inputs()
    model = encoder()
    model.size = 20
    found = extractor(model, needs=(PairwiseSimilarity(), Embedding()))(images, streams, ids)["e"]
    views = make_views(images, streams, AUGMENTATION, views=4, size=20)
    embedded = torch.nn.functional.normalize(model(views.flatten(0, 1))["backbone"], dim=1).unflatten(0, (30, 4))
    expected = (embedded[:, 0] * embedded[:, 1]).sum(dim=1)
    np.testing.assert_allclose(found["backbone.pairwise:cosine"][:, 0], expected.detach(), atol=1e-5)
    whole = model(images.float() / 255)["backbone"]
    np.testing.assert_allclose(found["backbone.embedding"], whole.detach(), atol=1e-4)


def test_features_are_those_of_a_loop() -> None:
    images, streams, ids = inputs()
    model = encoder()
    result = extractor(model)(images, streams, ids)["e"]
    with torch.inference_mode():
        for row in (0, 17, 29):
            one = slice(row, row + 1)
            views = [AUGMENTATION(images[one], streams[one], epoch=0, view=view) for view in range(4)]
            embedded = [model(view)["projection"][0] for view in views]
            cosines = [
                float(torch.cosine_similarity(embedded[i], embedded[j], dim=0))
                for i in range(4)
                for j in range(i + 1, 4)
            ]
            np.testing.assert_allclose(result["projection.pairwise:cosine"][row], cosines, atol=1e-5)
            plain = model(images[one].float() / 255)["backbone"][0]
            np.testing.assert_allclose(result["backbone.embedding"][row], plain, atol=1e-5)
            np.testing.assert_allclose(result["backbone.norm:2"][row], float(plain.norm()), rtol=1e-5)


def test_batch_size_and_order_do_not_matter() -> None:
    images, streams, ids = inputs()
    whole = extractor(batch_views=5 * 64)(images, streams, ids)["e"]
    small = extractor(batch_views=5 * 7)(images, streams, ids)["e"]
    order = torch.randperm(30, generator=torch.Generator().manual_seed(2))
    shuffled = extractor()(images[order], streams[order], [ids[row] for row in order.tolist()])["e"]
    for column, values in whole.items():
        np.testing.assert_allclose(small[column], values, atol=1e-5)
        np.testing.assert_allclose(shuffled[column], values[order.numpy()], atol=1e-5)


def test_several_encoders_share_the_views_but_not_the_results() -> None:
    images, streams, ids = inputs()
    both = Extractor({"one": encoder(1), "two": encoder(2)}, extractor().plan, AUGMENTATION, torch.device("cpu"))(
        images, streams, ids
    )
    for column, values in extractor(encoder(2))(images, streams, ids)["e"].items():
        np.testing.assert_allclose(both["two"][column], values, atol=1e-6)
    assert not np.allclose(both["one"]["projection.norm:2"], both["two"]["projection.norm:2"])


@pytest.mark.parametrize(("needs", "queries"), [(NEEDS, 5), ((PairwiseSimilarity(),), 4), ((LpNorm(2), LpNorm(1)), 1)])
def test_queries_are_counted_as_they_are_spent(needs: tuple[Measure, ...], queries: int) -> None:
    calls = []

    class Counting(nn.Module):
        size = None

        def forward(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
            calls.append(len(batch))
            return {"backbone": batch.flatten(1)}

    images, streams, ids = inputs()
    made = extractor(Counting(), needs=needs, outputs=("backbone",), batch_views=7 * queries)
    made(images[:20], streams[:20], ids[:20])
    assert sum(calls) == 20 * queries  # neither more nor fewer, whatever the batches
    assert made.plan.queries_per_image == queries


class _Faulty(nn.Module):
    """An encoder that misbehaves on images whose first pixel is white."""

    size = None

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        embeddings = batch.flatten(1)
        white = batch[:, 0, 0, 0] == 1
        if self.fault == "nan":
            embeddings = torch.where(white[:, None], torch.nan, embeddings)
        elif self.fault == "width" and bool(white.any()):
            embeddings = embeddings[:, :-1]
        return {"backbone": embeddings}


@pytest.mark.parametrize(("fault", "error"), [("nan", NumericError), ("width", ShapeError)])
def test_a_faulty_encoder_is_stopped_naming_the_sample(fault: str, error: type[Exception]) -> None:
    images, streams, ids = inputs()
    images[:, :, 0, 0] = 0
    images[23, :, 0, 0] = 255
    made = extractor(_Faulty(fault), needs=(LpNorm(),), outputs=("backbone",), batch_views=1)
    refused(error, "pool/023", made, images, streams, ids)


def test_an_output_that_is_not_there_is_named() -> None:
    images, streams, ids = inputs()
    refused(ShapeError, "no output 'projection'; it has backbone", extractor(_Faulty("none")), images, streams, ids)
    refused(ConfigError, "views = 0", QueryPlan, (LpNorm(),), ("backbone",), views=0)


def test_patches_and_captions_in_one_pass() -> None:
    images, streams, ids = inputs()
    model = encoder()
    model.text = Lengths()
    needs = (
        CenterSimilarity(),
        CaptionSimilarity(),
        CaptionEmbedding(),
        Embedding(),
        PairwiseSimilarity(),
    )
    made = extractor(model, needs=needs)
    assert made.plan.queries_per_image == 9 + 1 + 4
    captions = [f"caption {row}" for row in range(30)]
    found = made(images, streams, ids, captions)["e"]
    clean = images.float() / 255
    with torch.inference_mode():
        expected = center_similarity(model(patches(clean, (3, 3)).flatten(0, 1))["projection"].unflatten(0, (30, 9)))
        np.testing.assert_allclose(found["projection.patches:3x3"], expected, atol=1e-5)
        texts = model.text(captions)
        cosines = torch.cosine_similarity(model(clean)["projection"], texts, dim=1)
        np.testing.assert_allclose(found["projection.caption:cosine"], cosines, atol=1e-5)
        np.testing.assert_allclose(found["projection.caption:embedding"], texts, atol=1e-6)
    pairs, turned = extractor(model, needs=(CaptionSimilarity(),), batch_views=7), captions[::-1]
    both = pairs(images, streams, ids, list(zip(captions, turned, strict=True)))["e"]["projection.caption:cosine"]
    each = [pairs(images, streams, ids, one)["e"]["projection.caption:cosine"] for one in (captions, turned)]
    np.testing.assert_allclose(both, np.stack(each, axis=1), atol=1e-6)
    assert "backbone.caption:cosine" not in found
    with pytest.raises(ConfigError, match="caption:cosine is read off the output 'projection', the outp"):
        QueryPlan((CaptionSimilarity(),), ("backbone",))
    small = extractor(model, needs=needs, batch_views=25)(images, streams, ids, captions)["e"]
    for column, values in found.items():
        np.testing.assert_allclose(small[column], values, atol=1e-4, err_msg=column)


class Lengths(nn.Module):
    """Texts to embeddings that tell them apart."""

    def forward(self, captions: list[str]) -> torch.Tensor:
        return torch.stack([torch.sin(torch.arange(16.0) * (1 + sum(text.encode()))) for text in captions])


def classifier(seed: int, classes: int = 3) -> Encoder:
    def build() -> Encoder:
        heads = {"logits": nn.Linear(128, classes)}
        return Encoder(build_backbone("conv4", 3, 12), heads, channelwise((0.5,), 3), channelwise((0.5,), 3))

    return seeded(seed, build).eval()


def test_distances_and_crafted_images_of_a_classifier() -> None:
    images, streams, ids = inputs()
    target, shadow = classifier(1), classifier(2)
    needs = (BoundaryDistance(2, 400), AdversarialLogits(0.05, 3, 3), Embedding(), ViewEmbeddings())
    made = extractor(target, needs=needs, outputs=("logits",))
    made.crafter = shadow
    assert made.plan.queries_per_image == 400 + 3 + 1 + 4
    clean = images.float() / 255
    logits = target(clean)["logits"].detach()
    labels = logits.argmax(dim=1)
    labels[0] = (labels[0] + 1) % 3
    found = made(images, streams, ids, labels=labels.tolist())["e"]

    def predict(points: torch.Tensor) -> torch.Tensor:
        return target(points)["logits"].argmax(dim=1)

    expected = hop_skip_jump(predict, clean, labels, streams, iterations=2, queries=400)
    np.testing.assert_allclose(found["logits.boundary:2/400"], expected.distance, rtol=1e-3, atol=1e-5)
    assert found["logits.boundary:2/400"][0] == 0
    for wanted in range(3):
        crafted = targeted_pgd(
            lambda points: shadow(points)["logits"], clean, torch.full((30,), wanted), epsilon=0.05, steps=3
        )
        answered = target(crafted)["logits"].detach()
        np.testing.assert_allclose(found["logits.adversarial:0.05/3/3"][:, wanted], answered, atol=1e-4)
    views = make_views(images, streams, AUGMENTATION, views=4, size=None)
    asked = target(views.flatten(0, 1))["logits"].detach().unflatten(0, (30, 4))
    np.testing.assert_allclose(found["logits.view-embeddings"], asked, atol=1e-4)
    small = extractor(target, needs=needs, outputs=("logits",), batch_views=8 * 7)
    small.crafter = shadow
    for column, values in small(images, streams, ids, labels=labels.tolist())["e"].items():
        np.testing.assert_allclose(values, found[column], rtol=1e-3, atol=1e-4, err_msg=column)


def test_what_attacks_on_classifiers_lack_is_named() -> None:
    images, streams, ids = inputs()
    asks = {"needs": (AdversarialLogits(0.05, 3, 3),), "outputs": ("logits",)}
    refused(ConfigError, "give a shadow with the output logits", extractor(classifier(1), **asks), images, streams, ids)
    made = extractor(classifier(1, classes=5), **asks)
    made.crafter = classifier(2)
    refused(ConfigError, "encoder e tells 5 classes; set classes of baseline-c to that", made, images, streams, ids)
    with pytest.raises(ShapeError, match="encoder e has no output 'logits'"):
        extractor(needs=(BoundaryDistance(1, 200),), outputs=("logits",))(images, streams, ids, labels=[0] * 30)


def test_captions_that_are_missing() -> None:
    images, streams, ids = inputs()
    model = encoder()
    asks = {"needs": (CaptionSimilarity(),), "outputs": ("projection",)}
    refused(ConfigError, "the encoder e has no text tower", extractor(model, **asks), images, streams, ids, ["x"] * 30)
    model.text = Lengths()
    refused(ConfigError, "pool/000 has no caption", extractor(model, **asks), images, streams, ids)
    with pytest.raises(ConfigError, match="pool/003 has no caption; give data.captions, or shards with .txt"):
        extractor(model, **asks)(images, streams, ids, ["x"] * 3 + [""] + ["x"] * 26)


def bad(function: Any) -> Encoder:
    class Function(nn.Module):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = function(batch)
            return result

    return Encoder(Function(), {}, channelwise((0.5,), 3), channelwise((0.5,), 3)).eval()


def trial(
    seconds: Callable[[int], float], memory: int = 10**9, tried: list[int] | None = None
) -> Callable[[int], float]:
    def timed(size: int) -> float:
        if tried is not None:
            tried.append(size)
        if size > memory:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return seconds(size)

    return timed


@pytest.mark.parametrize(
    ("launch", "memory", "expected"),
    [
        (0.0, 10**9, 64),  # every query costs the same: nothing is gained
        (1e9, 10**9, 1024),  # a call costs the same whatever it holds: up to the bound
        (100.0, 10**9, 512),  # (100 + 512) / 512 = 1.2 a query, 1.1 with twice as many, and above the bound 4 % less
        (1e9, 300, 128),  # 256 fit, 512 do not: half of what fitted
        (1e9, 64, 64),  # what was asked for fits, no more does
        (1e9, 63, 16),  # 32 fit
        (1e9, 1, 1),
    ],
)
def test_the_batch_grows_while_that_pays_and_fits(launch: float, memory: int, expected: int) -> None:
    most = 1024 if launch != 100.0 else 1023
    assert best_batch(64, most, trial(lambda size: launch + size, memory)) == expected


def test_a_gain_too_small_for_its_memory_ends_the_search() -> None:
    tried: list[int] = []
    assert best_batch(64, 10**6, trial(lambda size: 100.0 + size, tried=tried)) == 1024
    assert tried == [64, 128, 256, 512, 1024, 2048]  # each once; 2,048 save 4.4 % of a query's 1.098


def test_nothing_above_the_bound_is_tried() -> None:
    tried: list[int] = []
    assert best_batch(48, 100, trial(lambda size: 1.0, tried=tried)) == 96
    assert tried == [48, 96]


def test_an_image_that_does_not_fit_and_other_faults_are_told() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        best_batch(64, 64, trial(lambda size: 1.0, memory=0))

    def broken(size: int) -> float:
        raise RuntimeError("the encoder is broken")

    refused(RuntimeError, "broken", best_batch, 64, 64, broken)
