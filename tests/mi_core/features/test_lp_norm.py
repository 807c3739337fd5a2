"""Norms of an embedding against the formula in a loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mi_core.checks import ConfigError, ShapeError
from mi_core.features.embedding import LpNorm, lp_norm
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
