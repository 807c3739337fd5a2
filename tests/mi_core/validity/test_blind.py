"""The blind classifier finds a difference that is there, none that is not, and its interval is honest."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from mi_core.checks import ShapeError
from mi_core.metrics.delong import auc
from mi_core.validity.blind import blind_scores


def digits(seed: int, count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    pixels = np.round(load_digits().images * 255 / 16).astype(np.uint8)[:, None]
    chosen = np.random.default_rng(seed).permutation(len(pixels))[:count]
    return pixels[chosen], np.arange(count) % 2 == 0


def test_random_groups_look_alike_and_the_interval_covers_a_half() -> None:
    estimates = [auc(blind_scores(*digits(seed), seed=seed), digits(seed)[1]) for seed in range(60)]
    covered = sum(estimate.low <= 0.5 <= estimate.high for estimate in estimates)
    assert covered >= 52  # binomial(60, .95): fewer has probability .002; ordinary cross-validation gives about 48
    assert np.mean([estimate.value for estimate in estimates]) == pytest.approx(0.5, abs=0.012)


def test_a_shift_is_found_with_the_right_sign() -> None:
    images, member = digits(0)
    darker = np.where(member[:, None, None, None], images, images * 0.8).astype(np.uint8)
    assert auc(blind_scores(darker, member, seed=0), member).low > 0.7


def test_large_images_are_shrunk_not_refused() -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (40, 3, 100, 70), dtype=np.uint8)
    member = np.arange(40) % 2 == 0
    images[member, :, :50] //= 2  # only the upper half differs
    assert auc(blind_scores(images, member, seed=0), member).value > 0.9


def test_the_seed_decides() -> None:
    images, member = digits(1)
    first = blind_scores(images, member, seed=3)
    np.testing.assert_array_equal(first, blind_scores(images, member, seed=3))
    assert not np.array_equal(first, blind_scores(images, member, seed=4))


def test_too_few_samples() -> None:
    images, _ = digits(0, 20)
    with pytest.raises(ShapeError, match="needs 5 samples of each class, got 4"):
        blind_scores(images, np.arange(20) < 4, seed=0)
    with pytest.raises(ShapeError, match="member has shape"):
        blind_scores(images, np.zeros(19, dtype=bool), seed=0)
