"""Numbers of a real GPU beside those of the CPU: views, features, training. Skipped where there is no GPU.

`test_devices` shows on any machine that nothing lies on the wrong device; only this shows that the values are right.
Both sides compute in float32 without TF32, unless a test says otherwise.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from mi_core.encoders import ENCODERS
from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.checkpoint import seeded
from mi_core.features import Measure
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.querying.extractor import Extractor
from mi_core.querying.plan import QueryPlan
from mi_core.training.loop import Pretrainer
from mi_core.training.optimizers import OPTIMIZERS
from tests.mi_core.test_devices import CLASSES, NEEDS, RECIPES, STEPS, encoder, new_trainer, query_plan, recipe

if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

CPU, GPU = torch.device("cpu"), torch.device("cuda")
IMAGES, SIDE = 24, 48
RANDOM = ("boundary",)
"""Needs whose random numbers are the device's own, so that other values are right too."""


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """Products of float32 in float32."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    yield
    matmul.allow_tf32, cudnn.allow_tf32 = before


def pictures(count: int = IMAGES, side: int = SIDE) -> torch.Tensor:
    """(N, 3, S, S) uint8: smooth random images."""
    coarse = torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    smooth = torch.nn.functional.interpolate(coarse, size=side, mode="bicubic").clamp(0, 1)
    return (smooth * 255).to(torch.uint8)


def seeded_encoder(name: str, device: torch.device) -> Any:
    """The same weights on either device."""

    return seeded(3, lambda: encoder(name, device))


def features(name: str, needs: tuple[Measure, ...], device: torch.device, **settings: Any) -> dict[str, np.ndarray]:
    """Features of random images by column, computed on a device."""
    asked = seeded_encoder(name, device)
    if settings.pop("compile", False):
        asked = for_queries(asked, device, compile=True)
    plan = query_plan(needs, settings.pop("precision", "float32"))
    images, keys = pictures(), torch.arange(IMAGES)
    drawn = recipe(settings.pop("recipe", "simclr"))
    extractor = Extractor({"e": asked}, plan, drawn, device, crafter=asked, bank=pictures(8))
    several = settings.pop("batches", 1)
    begun = []
    for rows in torch.arange(IMAGES).chunk(several):
        captions = [f"picture {row}" for row in rows.tolist()] if plan.captioned else None
        labels = [row % CLASSES for row in rows.tolist()] if plan.labelled else None
        names = [f"pool/{row}" for row in rows.tolist()]
        begun.append(extractor.begin(images[rows], keys[rows], names, captions, labels))
    found = [one.fetched()["e"] for one in begun]
    return {column: np.concatenate([one[column] for one in found]) for column in found[0]}


def largest_difference(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """The largest difference of two tables, as a share of the length of a column's rows."""
    assert set(one) == set(other)
    return max(float(np.abs(one[name] - other[name]).max() / (np.abs(one[name]).max() + 1e-6)) for name in one)


@pytest.mark.parametrize("name", RECIPES)
def test_views_are_those_of_the_cpu(name: str) -> None:
    images, keys, draw = pictures(), torch.arange(IMAGES), recipe(name)
    view = torch.arange(2).repeat_interleave(IMAGES // 2)
    ours, theirs = (
        draw(images.to(place), keys.to(place), epoch=3, view=view.to(place), size=32).cpu() for place in (CPU, GPU)
    )
    off = (ours - theirs).abs() > 1e-3
    assert off.float().mean() < 1e-3  # a solarised or rounded value may fall on the other side


@pytest.mark.parametrize(
    "name", [name for name in ENCODERS if not name.startswith(("clip-vit-l", "vit-h", "vit-l", "dinov2-l"))]
)
def test_embeddings_are_those_of_the_cpu(name: str) -> None:
    needs = (PairwiseSimilarity(), NEEDS["norm"][0], NEEDS["embedding"][0])
    assert largest_difference(features(name, needs, CPU), features(name, needs, GPU)) < 2e-3


@pytest.mark.parametrize("feature", NEEDS)
def test_every_need_is_that_of_the_cpu(feature: str) -> None:
    for need in NEEDS[feature]:
        ours, theirs = (features("resnet8", (need,), place) for place in (CPU, GPU))
        assert all(np.isfinite(rows).all() for rows in theirs.values())
        if feature not in RANDOM:
            assert largest_difference(ours, theirs) < 1e-2, need


@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
@pytest.mark.parametrize("name", ["resnet18", "vit-tiny"])
def test_fewer_bits_change_similarities_little(name: str, precision: str) -> None:
    needs = (PairwiseSimilarity(),)
    assert largest_difference(features(name, needs, CPU), features(name, needs, GPU, precision=precision)) < 3e-2


@pytest.mark.parametrize("name", ["resnet18", "vit-tiny"])
def test_a_compiled_encoder_answers_as_before(name: str) -> None:
    needs = (PairwiseSimilarity(),)
    assert largest_difference(features(name, needs, CPU), features(name, needs, GPU, compile=True)) < 2e-3


def test_batches_on_their_way_do_not_mix() -> None:
    needs = (PairwiseSimilarity(), NEEDS["embedding"][0])
    assert largest_difference(features("resnet8", needs, CPU), features("resnet8", needs, GPU, batches=8)) < 2e-3


def pretrainer(case: str, device: torch.device, optimizer: str = "adamw", **settings: Any) -> Pretrainer:
    return new_trainer(case, pictures(16, 32), device, optimizer, **settings)


def losses(case: str, device: torch.device, optimizer: str = "adamw", **settings: Any) -> np.ndarray:
    trainer = pretrainer(case, device, optimizer, **settings)
    return np.array([trainer.train_epoch() for _ in range(2)])


@pytest.mark.parametrize("case", STEPS)
def test_training_loses_what_it_loses_on_the_cpu(case: str) -> None:
    ours, theirs = losses(case, CPU), losses(case, GPU)
    np.testing.assert_allclose(theirs, ours, rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(losses(case, GPU, precision="bfloat16"), ours, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimisers_step_as_on_the_cpu(optimizer: str) -> None:
    np.testing.assert_allclose(losses("simclr", GPU, optimizer), losses("simclr", CPU, optimizer), rtol=1e-2)


def test_a_state_of_a_gpu_continues_on_the_cpu() -> None:
    whole = pretrainer("moco-v1", GPU)
    first = whole.train_epoch()
    other = pretrainer("moco-v1", CPU)
    other.load_state_bytes(io.BytesIO(whole.state_bytes()).getvalue())
    assert other.losses == [first]
    np.testing.assert_allclose(other.train_epoch(), whole.train_epoch(), rtol=1e-2)


def test_the_batch_of_queries_is_found_by_trying() -> None:
    plan = QueryPlan((PairwiseSimilarity(),), ("backbone",), views=10, batch_views=40)
    extractor = Extractor({"e": seeded_encoder("resnet8", GPU)}, plan, recipe("simclr"), GPU)
    assert extractor.fit_batch((3, 32, 32), 512) >= 4
    assert extractor.seconds_per_image((3, 32, 32)) > 0  # type: ignore[operator]
