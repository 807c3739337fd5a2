"""The law of dilution finds an exponent that was planted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from docs.studies import dilution

SIZES = (500, 2000, 8000, 32000)


def drawn(exponent: float, rng: np.random.Generator) -> dict[int, Any]:
    """Normal scores of nested members and of the same non-members, d' = .5 at 2,000."""
    noise = rng.normal(size=2 * dilution.MOST)
    return {
        size: np.concatenate(
            [noise[: min(size, dilution.MOST)] + 0.5 * (size / 2000) ** -exponent, noise[dilution.MOST :]]
        )
        for size in SIZES
    }


@pytest.mark.parametrize("exponent", [0.2, 1.0])
def test_a_planted_law_is_found(exponent: float) -> None:
    law = dilution.law_of(drawn(exponent, np.random.default_rng(3)))
    assert law["exponent"][1] < exponent < law["exponent"][2]
    assert law["at_2000"][1] < 0.5 < law["at_2000"][2]
    assert all(low < 0 < high for _, low, high in law["misses"])
    value, low, high = law["at_1300000"]["auc"]
    assert 0.5 < low < value < high
    assert law["at_1300000"]["by_lot"][0] == dilution.needed_images(value, by="lot")


def test_a_size_off_the_law_is_a_miss() -> None:
    points = drawn(0.5, np.random.default_rng(4))
    points[8000][: dilution.MOST] += 0.3
    _, low, _ = dilution.law_of(points)["misses"][2]
    assert low > 0


def test_what_a_reference_explains_is_taken_away() -> None:
    images = np.random.default_rng(5).normal(size=2 * dilution.MOST + len(dilution.KNOWN))
    target = np.concatenate([images[:500], images[dilution.MOST :]])
    found = dilution.less_reference({"loss": 2 * target + 1}, {"loss": images}, 500)
    assert np.allclose(found["loss, less reference"], 1)
