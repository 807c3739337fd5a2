"""An encoder works if it ranks the views of an image better than pixels do and than a network that learned nothing."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import torch
from scipy import stats
from torch import nn

from docs.studies.shared import SHARED, cifar10, published, scrambled, untrained
from mi_core.augmentations.frameworks import CLIPAugmentation
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders.checkpoint import Encoder, channelwise
from mi_core.encoders.pixels import pixels
from mi_core.querying import sanity
from mi_core.querying.sanity import (
    HARD,
    VIEWS,
    agreement,
    consistency_in_words,
    fault_in_words,
    mean_of,
    ranks,
    similarities,
    view_consistency,
)
from mi_core.streams import pixel_streams
from tests.raising import refused

COUNT = 100
IMAGES = torch.randint(0, 256, (COUNT, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
STREAMS = pixel_streams("", 0, "probe", IMAGES)
MILD = SimCLRAugmentation(
    crop_scale=(0.95, 1.0), crop_ratio=(1.0, 1.0), flip=0, jitter_probability=1.0, brightness=0.3, contrast=0,
    saturation=0, hue=0, grayscale=0,
)  # fmt: skip


class _Fixed(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.kind == "noise":
            return torch.randn(len(images), 16, generator=torch.Generator().manual_seed(len(images)))
        if self.kind == "constant":
            return torch.ones(len(images), 4)
        if self.kind == "edges":  # the direction of the edges, up to a mirror: views keep it
            gray = images.mean(dim=1)
            down, across = gray.diff(dim=1)[:, :, :-1], gray.diff(dim=2)[:, :-1]
            return torch.stack(
                [(down**2 - across**2).mean(dim=(1, 2)), 2 * (down * across).mean(dim=(1, 2)).abs()], dim=1
            )
        return images.flatten(1)


def encoder(kind: str, size: int | None = None) -> Encoder:
    return Encoder(_Fixed(kind), {}, channelwise((0.0,), 3), channelwise((1.0,), 3), size=size)


def similar(kind: str | None, size: int | None = None, views: int = 2) -> torch.Tensor:
    return similarities(None if kind is None else encoder(kind, size), IMAGES, STREAMS, MILD, views=views)


def test_views_of_an_image_are_alike_where_the_embedding_is_the_image() -> None:
    assert ranks(similar("pixels")).mean() > 0.99
    assert ranks(similar("pixels", size=12)).mean() > 0.99
    assert torch.equal(similar(None), similar("pixels"))
    assert 0.4 < float(ranks(similar("noise")).mean()) < 0.6
    assert torch.equal(ranks(similar("constant")), torch.full((COUNT,), 0.5, dtype=torch.float64))
    assert torch.equal(pixels(IMAGES), IMAGES.flatten(1))


def test_ranks_by_a_slow_loop() -> None:
    drawn = torch.randint(0, 5, (2, 7, 7), generator=torch.Generator().manual_seed(1)).float()
    for image in range(7):
        shares = []
        for pair in drawn.tolist():
            others = [pair[image][other] for other in range(7) if other != image]
            shares += [1.0 if one < pair[image][image] else 0.5 if one == pair[image][image] else 0.0 for one in others]
        assert float(ranks(drawn)[image]) == pytest.approx(sum(shares) / len(shares))


def test_every_ordered_pair_of_views_counts() -> None:
    four = similar("pixels", views=4)
    assert four.shape == (12, COUNT, COUNT)
    pairs = list(permutations(range(4), 2))
    for row, (first, second) in enumerate(pairs):
        torch.testing.assert_close(four[row], four[pairs.index((second, first))].T)
    torch.testing.assert_close(four[0], similar("pixels")[0])  # views 0 and 1 are the same however many there are


def test_a_mean_is_tested_as_by_scipy() -> None:
    values = torch.randn(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.3
    estimate, p = mean_of(values)
    theirs = stats.ttest_1samp(values.numpy(), 0, alternative="greater")
    assert p == pytest.approx(theirs.pvalue)
    both = stats.ttest_1samp(values.numpy(), 0).confidence_interval(0.95)
    assert (estimate.low, estimate.high) == pytest.approx((both.low, both.high))
    assert (mean_of(torch.ones(3))[1], mean_of(torch.zeros(3))[1]) == (0.0, 1.0)


def stripes(count: int) -> torch.Tensor:
    """Images of stripes in two colours: each has its own direction, and begins where it likes."""
    generator = torch.Generator().manual_seed(3)
    angle, phase = (
        torch.rand(2, count, 1, 1, generator=generator) * torch.tensor([1.5, 6.3])[:, None, None, None]
    ).unbind()
    down, across = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    wave = torch.sin(down * torch.cos(angle) + across * torch.sin(angle) + phase)[:, None]
    colours = torch.rand(count, 3, 1, 1, generator=generator)
    return (127 + 128 * wave * (0.3 + 0.7 * colours)).clamp(0, 255).to(torch.uint8)


def shown(kind: str, reference: str | None, views: SimCLRAugmentation = MILD, *, fresh: bool = False) -> dict[str, Any]:
    images = stripes(COUNT)
    other = None if reference is None else encoder(reference)
    return view_consistency(encoder(kind), other, images, STREAMS, views, fresh=fresh)


@pytest.mark.parametrize(
    ("kind", "reference", "works"),
    [
        ("edges", None, True),
        ("edges", "noise", True),
        ("edges", "edges", False),  # no better than a network that learned nothing
        ("noise", None, False),
        ("noise", "noise", False),
        ("constant", "noise", False),
        ("pixels", "noise", False),  # beats the reference, but not pixels
    ],
)
def test_an_encoder_works_if_it_beats_every_baseline(kind: str, reference: str | None, works: bool) -> None:
    found = shown(kind, reference)
    assert found["works"] is works
    assert found["queries"] == VIEWS * COUNT
    assert found["reference_name"] == ("raw pixels" if reference is None else "fresh weights")
    assert (found["encoder"]["n"], found["reference"]["n"]) == (COUNT, COUNT)
    assert shown(kind, reference, fresh=True)["works"]


@pytest.mark.parametrize(("kind", "images"), [("edges", 64), ("noise", 130)])
def test_an_encoder_that_clearly_works_is_looked_at_once(
    kind: str, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looks are those of as many images alone, to the bit, and no image is asked twice."""
    asked = [0]
    forward = _Fixed.forward

    def counted(self: _Fixed, given: torch.Tensor) -> torch.Tensor:
        asked[0] += len(given) if self.kind == kind else 0
        return forward(self, given)

    monkeypatch.setattr(_Fixed, "forward", counted)
    pictures, streams = stripes(130), torch.arange(130)
    told: list[int] = []
    found = view_consistency(encoder(kind), encoder("constant"), pictures, streams, MILD, asked=told.append)
    assert found["works"] is (images == 64)
    assert sum(told) == 2 * VIEWS * images  # both networks
    assert asked[0] == found["queries"] == VIEWS * images
    monkeypatch.setattr(sanity, "_FIRST", 1000)
    assert found == view_consistency(encoder(kind), encoder("constant"), pictures[:images], streams[:images], MILD)


def test_networks_are_asked_in_bfloat16_where_that_is_said_and_compared_in_float32() -> None:
    network = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(192, 16)), {}, *map(channelwise, ((0.0,), (1.0,)), (3, 3)))
    plain, half = (similarities(network, IMAGES, STREAMS, MILD, half=one) for one in (False, True))
    assert 0 < (plain - half).abs().max() < 0.02 and not torch.equal(half, half.bfloat16().float())
    found = [view_consistency(network, network, IMAGES, STREAMS, MILD, half=one)["ranking"] for one in (False, True)]
    means = [ways[0]["baselines"][sanity.FRESH]["mean"] for ways in found]
    assert means[0] != means[1]  # of the reference too


def test_the_two_looks_share_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = []

    def looked(baselines: Any, similar_in: Any, views: Any, level: float) -> dict[str, Any]:
        levels.append(level)
        return {"works": False}

    monkeypatch.setattr(sanity, "_look", looked)
    view_consistency(encoder("noise"), None, stripes(130), torch.arange(130), MILD)
    assert len(levels) == 2
    assert sum(levels) == pytest.approx(0.025)


def test_the_views_of_the_audit_count_while_they_are_not_too_easy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder that is the better on them alone works, unless a baseline finds nearly everything there."""

    def asked(scores: dict[tuple[bool, bool], float]) -> dict[str, Any]:
        def given(encoder: Encoder | None, images: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
            mean = scores[encoder is not None, rest[1] is HARD]
            below = torch.arange(COUNT) < round(mean * (COUNT - 1))
            own = below.float().repeat(COUNT, 1)
            own[torch.arange(COUNT), torch.arange(COUNT)] = 0.5
            return (1 - own)[None]

        monkeypatch.setattr("mi_core.querying.sanity.similarities", given)
        return view_consistency(encoder("pixels"), None, IMAGES, STREAMS, MILD)

    worse = {(True, True): 0.6, (False, True): 0.7}
    assert asked({**worse, (True, False): 0.9, (False, False): 0.8})["works"]
    assert not asked({**worse, (True, False): 0.99, (False, False): 0.96})["works"]
    assert not asked({**worse, (True, False): 0.7, (False, False): 0.8})["works"]
    assert asked({(True, True): 0.99, (False, True): 0.95, (True, False): 0.7, (False, False): 0.8})["works"]


def test_no_view_of_the_audit_is_one_that_fresh_networks_know_better_than_pixels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipes = []

    def given(encoder: Encoder | None, images: torch.Tensor, streams: torch.Tensor, recipe: Any, **more: Any) -> Any:
        recipes.append(recipe)
        return similarities(encoder, images, streams, recipe, **more)

    monkeypatch.setattr("mi_core.querying.sanity.similarities", given)
    for scale, kept in (((0.1, 0.3), (0.7, 0.7)), ((0.2, 1.0), (0.7, 1.0)), ((0.9, 1.0), (0.9, 1.0))):
        recipes.clear()
        shown("pixels", None, SimCLRAugmentation(crop_scale=scale, hue=0.4))
        assert recipes == [HARD, HARD] + [SimCLRAugmentation(crop_scale=kept, flip=0, hue=0.4)] * 2


def test_what_is_said_of_it() -> None:
    fine = shown("edges", "noise")
    said = consistency_in_words(fine)
    assert said.startswith("shown two views of an image, it ranks the second above ")
    assert said.endswith("; 100 images), clearly better.")
    assert fault_in_words(fine) == ""
    assert "recognises images no better than an untrained one." in fault_in_words(shown("noise", "noise"))
    weak = shown("noise", None)
    assert "recognises images no better than a comparison of raw pixels." in fault_in_words(weak)
    assert consistency_in_words(weak) == f"WARNING: {fault_in_words(weak)}"


@pytest.mark.skipif(not SHARED.exists(), reason="the published networks are not there")
def test_a_published_classifier_works_and_its_scrambled_weights_do_not() -> None:
    """It was trained with labels, and two views of CLIP's recipe are easy for everything."""
    images, _ = cifar10("test", 0)
    encoder = published(20)
    fresh = untrained(encoder, 0)
    for asked, works in ((encoder, True), (scrambled(encoder, 0), False)):
        found = view_consistency(asked, fresh, images[:96], torch.arange(96), CLIPAugmentation())
        assert [way["better"] for way in found["ranking"]] == [works, False]


def test_bad_input() -> None:
    refused(ShapeError, "streams has shape", similarities, None, IMAGES, STREAMS[:3], MILD)
    refused(ConfigError, "images = 2", similarities, None, IMAGES[:2], STREAMS[:2], MILD)
    refused(ConfigError, "views = 1", similarities, None, IMAGES, STREAMS, MILD, views=1)
    refused(ShapeError, "similar has shape", ranks, torch.zeros(2, 3, 4))
    refused(ShapeError, "values has shape", mean_of, torch.zeros(2, 2))
    refused(ConfigError, "values = 1", mean_of, torch.zeros(1))


def test_two_ways_of_decoding_are_compared() -> None:
    same = agreement(encoder("pixels"), IMAGES, IMAGES)
    assert (round(same.cosine, 5), round(same.centred, 5), same.images) == (1.0, 1.0, COUNT)
    apart = agreement(encoder("pixels"), IMAGES, (IMAGES.int() + 40).clamp(0, 255).to(torch.uint8))
    assert apart.centred < apart.cosine < 0.999
    refused(ShapeError, "second", agreement, encoder("pixels"), IMAGES, IMAGES[1:])
