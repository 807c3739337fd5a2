"""Noise on embeddings: its distribution and size, and what is left of it when an attacker asks again and again."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.checks import ConfigError, NumericError
from mi_core.defenses.base import answers, numbers
from mi_core.defenses.output_noise import OutputNoise, OutputNoiseParameters, standard_noise
from mi_core.encoders.averaging import ask_anew, averaged
from mi_core.encoders.checkpoint import Encoder
from mi_core.features.embedding import Embedding
from mi_core.metrics.delong import auc
from mi_core.querying.extractor import Extractor
from mi_core.querying.plan import QueryPlan
from mi_core.streams import uniforms
from tests.mi_core.defenses.planted import attribute_images, classifier, encoder_of, membership_images
from tests.raising import refused

COUNT = 400
GROUPS = [membership_images(COUNT, seed, member=seed == 0) for seed in (0, 1)]
IMAGES = torch.cat([group.images for group in GROUPS])
LAWS = {"gaussian": stats.norm(), "laplace": stats.laplace(scale=0.5**0.5)}
MEMBER = np.arange(2 * COUNT) < COUNT


def leaky() -> Encoder:
    """Embeddings whose first dimension is higher for members, by twice its spread among either."""
    backbone = nn.Linear(16, 2)
    with torch.no_grad():
        backbone.weight.zero_()
        backbone.weight[0, 12:] = 0.25
        backbone.weight[1, :12] = 1 / 12
        backbone.bias.zero_()
    return encoder_of(nn.Sequential(nn.Flatten(), backbone), nn.Linear(2, 3))


def noisy(**settings: Any) -> Encoder:
    encoder, defense = leaky(), OutputNoise(OutputNoiseParameters(**settings))
    return defense.defended(encoder, defense.fit(encoder, GROUPS[0]))


def leak(encoder: Encoder) -> Any:
    """AUC of the dimension that gives members away."""
    return auc(answers(encoder, IMAGES, "backbone")[:, 0].numpy(), MEMBER)


def expected(deviation: float) -> float:
    """That AUC under Gaussian noise of this standard deviation, from the embeddings without it."""
    level = answers(leaky(), IMAGES, "backbone")[:, 0].double().numpy()
    gaps = level[MEMBER][:, None] - level[~MEMBER][None]
    return float(stats.norm.cdf(gaps / (np.sqrt(2) * deviation)).mean())


@pytest.mark.parametrize("distribution", LAWS)
def test_the_noise_has_its_distribution(distribution: str) -> None:
    drawn = uniforms(torch.arange(2000), epoch=0, view=0, count=50)
    noise = standard_noise(drawn, distribution).flatten().double().numpy()
    for name, law in LAWS.items():
        likely = stats.kstest(noise, law.cdf).pvalue
        assert likely > 1e-3 if name == distribution else likely < 1e-9
    assert abs(noise.var() - 1) < 0.03
    ends = standard_noise(torch.tensor([[0.0, 1 - 2.0**-24]]), distribution)
    assert ends.isfinite().all()
    assert ends[0, 0] == -ends[0, 1]


@pytest.mark.parametrize("distribution", ["gaussian", "laplace"])
def test_its_size_is_relative_to_the_members(distribution: str) -> None:
    plain = answers(classifier(), attribute_images(2000, 4).images, "backbone")
    members = attribute_images(500, 0)
    own = answers(classifier(), members.images, "backbone")
    for relative, wanted in (
        ("spread", 0.7 * own.std(dim=0, correction=0)),
        ("norm", (0.7 * own.norm(dim=1).mean() / 4).expand(16)),
    ):
        defense = OutputNoise(OutputNoiseParameters(scale=0.7, relative_to=relative, distribution=distribution))
        state = defense.fit(classifier(), members)
        found = answers(defense.defended(classifier(), state), attribute_images(2000, 4).images, "backbone") - plain
        torch.testing.assert_close(found.std(dim=0), wanted, rtol=0.12, atol=0)
        assert (found.mean(dim=0).abs() < 5 * wanted / np.sqrt(2000)).all()
        assert np.abs(np.corrcoef(found.T.numpy()) - np.eye(16)).max() < 5 / np.sqrt(2000)
        shown = numbers(state)
        assert shown["noise_length"] == pytest.approx(float(wanted.norm()), rel=1e-4)
        assert shown["embedding_length"] == pytest.approx(float(own.norm(dim=1).mean()), rel=1e-4)


@pytest.mark.parametrize("queries", [1, 8, 64])
def test_fresh_noise_hides_a_gap_and_averaging_brings_it_back_as_computed(queries: int) -> None:
    defense = OutputNoise(OutputNoiseParameters(scale=8.0, mode="fresh"))
    state = defense.fit(leaky(), GROUPS[0])
    found = leak(averaged(defense.defended(leaky(), state), queries))
    wanted = expected(float(state["deviation"][0]) / np.sqrt(queries))
    assert abs(found.value - wanted) < found.high - found.low  # four standard errors
    assert leak(leaky()).value > 0.95
    if queries == 1:
        assert found.value < 0.7
    if queries == 64:
        assert found.value > 0.85


def test_fresh_noise_is_fresh_within_a_request_too_and_starts_the_same() -> None:
    served, again = noisy(mode="fresh"), noisy(mode="fresh")
    image = IMAGES[:1].float().repeat(3, 1, 1, 1) / 255
    seen = torch.cat([served(image)["backbone"], served(image)["backbone"]])
    assert len(seen.unique(dim=0)) == 6
    assert torch.equal(again(image)["backbone"], seen[:3])


def asked_in(parts: int) -> torch.Tensor:
    """What is read off 24 images, each asked 3 times, that come in so many calls to one encoder."""
    encoder = averaged(noisy(mode="fresh"), 3)
    plan = QueryPlan(needs=(Embedding(),), outputs=("backbone",), views=2)
    extractor = Extractor({"e": encoder}, plan, SimCLRAugmentation(), torch.device("cpu"))
    streams, names = torch.arange(24), [f"x/{row}" for row in range(24)]
    rows = torch.arange(24).tensor_split(parts)
    found = [extractor(IMAGES[some], streams[some], [names[row] for row in some.tolist()]) for some in rows]
    return torch.cat([torch.tensor(one["e"]["backbone.embedding"]) for one in found])


def test_fresh_noise_does_not_depend_on_chunks_and_retries() -> None:
    whole = asked_in(1)
    torch.testing.assert_close(asked_in(5), whole, rtol=1e-5, atol=1e-6)
    served, images = noisy(mode="fresh"), IMAGES[:12].float() / 255
    one = served(images)["backbone"]
    assert not torch.equal(served(images)["backbone"], one)
    ask_anew(served)
    order = torch.arange(12).flip(0)
    again = torch.cat([served(images[some])["backbone"] for some in order.split(5)])[order]
    torch.testing.assert_close(again, one, rtol=1e-6, atol=1e-6)


def test_fixed_noise_is_not_averaged_away_except_by_near_copies() -> None:
    served = noisy(scale=8.0)
    often = answers(averaged(served, 16), IMAGES, "backbone")
    torch.testing.assert_close(often, answers(served, IMAGES, "backbone"), rtol=1e-5, atol=1e-5)
    assert leak(served).value < 0.7
    # a pixel that says nothing of membership, a little brighter or darker: what the module's text admits
    total = torch.zeros(2 * COUNT, 2)
    for row, column, change in itertools.product(range(3), range(4), (-3, -2, -1, 1, 2, 3)):
        near = IMAGES.clone()
        near[:, 0, row, column] += change
        total += answers(served, near, "backbone")
    assert auc(total[:, 0].numpy(), MEMBER).value > 0.85


def test_one_query_is_no_average_and_text_and_heads_stay() -> None:
    served = noisy()
    once = averaged(served, 1)
    assert torch.equal(answers(once, IMAGES, "logits"), answers(served, IMAGES, "logits"))
    assert once.outputs == ("backbone", "logits")
    refused(ConfigError, "queries", averaged, served, 0)


def test_mistakes() -> None:
    for settings in ({"scale": -1}, {"relative_to": "x"}, {"distribution": "x"}, {"mode": "x"}):
        refused(ConfigError, next(iter(settings)), OutputNoiseParameters, **settings)
    encoder = leaky()
    with torch.no_grad():
        encoder.backbone[1].bias.fill_(torch.nan)  # type: ignore[index]
    refused(NumericError, "embedding of the provider's images", OutputNoise().fit, encoder, GROUPS[0])
