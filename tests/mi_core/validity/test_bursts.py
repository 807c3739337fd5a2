"""Planted bursts are found whole, on each side; ordinary images are left alone."""

from __future__ import annotations

import numpy as np
import pytest

from mi_core.checks import NumericError, ShapeError
from mi_core.validity.bursts import find_bursts

SIDE = np.arange(400) < 200


def scenes(seed: int, sizes: list[int], spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings (N, 32) of scenes with so many images each, and the number of each one's scene."""
    rng = np.random.default_rng(seed)
    of = np.repeat(np.arange(len(sizes)), sizes)
    middle = rng.standard_normal((len(sizes), 32)) @ rng.standard_normal((32, 32)) + 3
    return (middle[of] + spread * rng.standard_normal((len(of), 32))).astype(np.float32), of


@pytest.mark.parametrize("size", [5, 10, 50])
def test_planted_bursts_are_found(size: int) -> None:
    embeddings, of = scenes(0, [size] * (200 // size) + [1] * 200, spread=0.5)
    found = find_bursts(embeddings, SIDE)
    assert found is not None
    for scene in range(200 // size):
        assert len(np.unique(found[of == scene])) == 1
    assert len(np.unique(found[SIDE])) == 200 // size  # and no two scenes are joined
    assert (
        len(np.unique(found[~SIDE])) > 130
    )  # few scenes are a coarse yardstick: too much is joined rather than too little
    mirrored = find_bursts(embeddings, ~SIDE)
    assert mirrored is not None and np.array_equal(mirrored, found)


def test_ordinary_images_are_left_alone() -> None:
    assert sum(find_bursts(scenes(seed, [1] * 400, 0.5)[0], SIDE) is not None for seed in range(40)) <= 1


def test_scenes_that_stand_on_both_sides_prove_nothing() -> None:
    embeddings, _ = scenes(1, [10] * 40, spread=0.5)
    found = find_bursts(embeddings, np.arange(400) % 2 == 0)
    assert found is None or len(np.unique(found)) > 350


@pytest.mark.parametrize(("width", "apart"), [(32, 36), (6, 5)], ids=["all of a side", "some stand beside the rest"])
def test_sides_that_lie_apart_are_no_bursts(width: int, apart: float) -> None:
    """Each would be one scene, with a few images beside it at most, of which no interval can be told."""
    embeddings = np.random.default_rng(0).normal(size=(400, width)).astype(np.float32)
    embeddings[SIDE, 0] += apart
    assert find_bursts(embeddings, SIDE) is None


def test_bad_input() -> None:
    embeddings = scenes(0, [1] * 400, 0.5)[0]
    assert find_bursts(embeddings, np.ones(400, dtype=bool)) is None
    with pytest.raises(ShapeError):
        find_bursts(embeddings, SIDE[:-1])
    with pytest.raises(NumericError):
        find_bursts(np.where(np.arange(400)[:, None] == 3, np.nan, embeddings).astype(np.float32), SIDE)
