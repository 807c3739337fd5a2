"""Norms of an embedding, and the density of a bank around it, against loops, and as the extractor asks for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders import build_backbone
from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.checkpoint import Encoder, channelwise, seeded
from mi_core.encoders.heads import projection_head
from mi_core.features.embedding import LpNorm, NeighbourDensity, lp_norm, neighbour_density
from mi_core.querying.extractor import Extractor
from mi_core.querying.plan import QueryPlan
from tests.raising import refused


@pytest.mark.parametrize("order", [0, 0.5, 1, 2, 3, 5, float("inf")])
def test_equals_the_formula(order: float) -> None:
    embeddings = torch.randn(7, 12, generator=torch.Generator().manual_seed(0))
    embeddings[:, 3] = 0
    for row, result in zip(embeddings.double().numpy(), lp_norm(embeddings, order), strict=True):
        if order == 0:
            expected = float(sum(value != 0 for value in row))
        elif np.isinf(order):
            expected = max(abs(value) for value in row)
        else:
            expected = sum(abs(value) ** order for value in row) ** (1 / order)  # the paper omits the absolute value
        assert float(result) == pytest.approx(expected, rel=1e-5)


def test_bad_input() -> None:
    refused(ConfigError, "norm order = -1", lp_norm, torch.zeros(2, 3), -1)
    refused(ConfigError, "norm order = -1", LpNorm, -1)
    refused(ConfigError, "norm order = nan", LpNorm, float("nan"))
    refused(ShapeError, "embeddings has shape", lp_norm, torch.zeros(2, 3, 4), 2)


NEED = NeighbourDensity(neighbours=2, bank=5)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_loop(embeddings: np.ndarray, bank: np.ndarray, nearest: int) -> list[float]:
    found = []
    for one in embeddings:
        cosines = sorted(float(one @ other / np.linalg.norm(one) / np.linalg.norm(other)) for other in bank)
        found.append(sum(cosines[-nearest:]) / nearest)
    return found


@pytest.mark.parametrize("nearest", [1, 3, 7])
def test_it_is_the_mean_cosine_with_the_nearest(nearest: int) -> None:
    embeddings, bank = (3 * torch.randn(rows, 4, generator=generator(rows)) + 1 for rows in (5, 7))
    expected = by_loop(embeddings.numpy(), bank.numpy(), nearest)
    np.testing.assert_allclose(neighbour_density(embeddings, bank, nearest), expected, rtol=1e-5)


def test_the_extractor_asks_for_images_as_they_are_and_once_for_the_bank() -> None:
    def build() -> Encoder:
        heads = {"projection": projection_head((128, 32, 16), batch_norm=True)}
        return Encoder(build_backbone("conv4", 3, 12), heads, channelwise((0.5,), 3), channelwise((0.5,), 3))

    model, outputs = for_queries(seeded(0, build).eval(), "cpu"), ("backbone", "projection")
    asked_for: list[int] = []
    model.register_forward_pre_hook(lambda _, given: asked_for.append(len(given[0])))
    images = torch.randint(0, 256, (14, 3, 12, 12), dtype=torch.uint8, generator=generator(11))
    bank = images[8:]  # asked for whole, of which the first 5 count
    extractor = Extractor(
        {"e": model},
        QueryPlan((NEED, LpNorm()), outputs, batch_views=6),
        SimCLRAugmentation(),
        torch.device("cpu"),
        bank=bank,
    )
    found = extractor(images[:8], torch.arange(8), [f"pool/{row}" for row in range(8)])["e"]
    assert sum(asked_for) == 2 * 8 + 6
    assert max(asked_for) == 6
    with torch.no_grad():
        answers = model(images.float() / 255)
    for output in outputs:
        rows = answers[output].numpy()
        np.testing.assert_allclose(found[f"{output}.{NEED}"], by_loop(rows[:8], rows[8:13], 2), rtol=1e-4)


def test_it_is_a_set_of_queries_of_its_own_with_a_bank() -> None:
    assert (NEED.query, NEED.bank, NEED.query_count(10)) == ("neighbours:2/5", 5, 1)
    assert not QueryPlan((NEED,), ("backbone",)).searches


def test_mistakes_are_named() -> None:
    refused(ConfigError, "neighbours = 6", NeighbourDensity, 6, 5)
    refused(ConfigError, "bank = 0", NeighbourDensity, 1, 0)
    with pytest.raises(ShapeError):
        neighbour_density(torch.ones(2, 3), torch.ones(4, 2), 1)
    refused(ConfigError, "nearest = 5", neighbour_density, torch.ones(2, 3), torch.ones(4, 3), 5)
