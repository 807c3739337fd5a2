"""The blind classifier finds a difference that is there, and none that is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from mi_core.checks import NumericError, ShapeError
from mi_core.images import encode_png
from mi_core.metrics.delong import auc
from mi_core.validity.blind import blind_scores, telling
from mi_core.validity.file_features import file_features, pixel_features, shrunken
from tests.raising import refused


def digits(seed: int, count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    pixels = np.round(load_digits().images * 255 / 16).astype(np.uint8)[:, None]
    return pixels[np.random.default_rng(seed).permutation(len(pixels))[:count]], np.arange(count) % 2 == 0


def summaries(images: np.ndarray) -> np.ndarray:
    return np.array([np.concatenate([file_features(encode_png(image[0])), pixel_features(image)]) for image in images])


def score(images: np.ndarray, member: np.ndarray, **settings: Any) -> np.ndarray:
    return blind_scores(summaries(images), np.stack([shrunken(image) for image in images]), member, **settings)


def test_a_shift_is_found_with_the_right_sign() -> None:
    images, member = digits(0)
    darker = np.where(member[:, None, None, None], images, images * 0.8).astype(np.uint8)
    assert auc(score(darker, member, seed=0), member).low > 0.7


def test_one_telling_number_does_not_drown_in_thousands_of_pixels() -> None:
    generator = np.random.default_rng(0)
    member = np.arange(400) % 2 == 0
    pixels = generator.random((400, 3072), dtype=np.float32)
    told = generator.normal(size=(400, 20))
    told[:, 7] += 3.0 * member
    assert auc(blind_scores(told, pixels, member, seed=0), member).value > 0.95  # all alike in the penalty: .85
    assert telling(told, [str(number) for number in range(20)], member).popitem()[1] < 0.65
    assert next(iter(telling(told, [str(number) for number in range(20)], member))) == "7"


def test_columns_that_are_standardised_in_parts_change_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    images, member = digits(0)
    parts = score(images, member, seed=0)
    for columns in (7, 10**6):
        monkeypatch.setattr("mi_core.validity.blind._COLUMNS", columns)
        np.testing.assert_array_equal(score(images, member, seed=0), parts)


def test_a_group_stays_in_one_fold() -> None:
    """Copies in several folds would be recognised: their labels are those of their group."""
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(60), 8)
    member = groups % 2 == 0
    told = generator.normal(size=(60, 40))[groups] + 0.01 * generator.normal(size=(480, 40))
    pixels = generator.random((480, 4000), dtype=np.float32)
    assert auc(blind_scores(told, pixels, member, seed=0), member).value > 0.8
    assert abs(auc(blind_scores(told, pixels, member, seed=0, groups=groups), member).value - 0.5) < 0.2
    with pytest.raises(ShapeError, match="needs 5 groups of each class, got 4 of one"):
        blind_scores(told, pixels, member, seed=0, groups=np.minimum(groups, 7))


def test_large_images_are_shrunk_not_refused() -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (40, 3, 100, 70), dtype=np.uint8)
    member = np.arange(40) % 2 == 0
    images[member, :, :50] //= 2  # only the upper half differs
    pixels = np.stack([shrunken(image) for image in images])
    assert pixels.shape == (40, 3 * 25 * 23)
    assert pixels[1].mean() == pytest.approx(images[1, :, :, :69].mean() / 255, abs=1e-6)
    assert auc(blind_scores(np.zeros((40, 1)), pixels, member, seed=0), member).value > 0.9


def test_the_seed_decides() -> None:
    images, member = digits(1)
    first = score(images, member, seed=3)
    np.testing.assert_array_equal(first, score(images, member, seed=3))
    assert not np.array_equal(first, score(images, member, seed=4))


def test_mistakes_are_told() -> None:
    images, _ = digits(0, 20)
    refused(ShapeError, "needs 5 samples of each class, got 4", score, images, np.arange(20) < 4, seed=0)
    refused(ShapeError, "member has shape", score, images, np.zeros(19, dtype=bool), seed=0)
    refused(ShapeError, "image has shape", shrunken, images)
    with pytest.raises(NumericError, match="summary of an image is not finite for 1 of 20 samples: row 3"):
        wrong = summaries(images)
        wrong[3, 0] = np.nan
        blind_scores(wrong, np.zeros((20, 1), dtype=np.float32), np.arange(20) < 10, seed=0)
