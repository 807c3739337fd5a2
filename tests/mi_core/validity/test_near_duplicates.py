"""Hashes against SciPy's DCT, pairs against all pairs, and alterations of real photographs that must be found."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance
from scipy.fft import dctn
from sklearn.datasets import load_digits, load_sample_images

from mi_core.checks import ConfigError, ShapeError
from mi_core.validity import near_duplicates
from mi_core.validity.near_duplicates import clusters, confirmed, descriptors, near_pairs, perceptual_hash
from tests.mi_core.validity.test_hash_tables import all_pairs, differing
from tests.raising import refused


def area_means(grey: np.ndarray, side: int) -> np.ndarray:
    """(side, side) of (H, W): every pixel repeated until the cells hold whole pixels."""
    for axis in (0, 1):
        shape = list(grey.shape)
        shape[axis : axis + 1] = [side, shape[axis]]
        grey = np.repeat(grey, side, axis=axis).reshape(shape).mean(axis=axis + 1)
    return grey


def grey_of(image: np.ndarray) -> np.ndarray:
    return np.tensordot([77, 150, 29], image, axes=1) / 256 if len(image) == 3 else image[0].astype(float)


def tiles(side: int) -> np.ndarray:
    """(N, 3, side, side) of two photographs."""
    found = []
    for photo in load_sample_images().images:
        rows, columns = (size // side for size in photo.shape[:2])
        cut = photo[: rows * side, : columns * side].reshape(rows, side, columns, side, 3)
        found.append(cut.transpose(0, 2, 4, 1, 3).reshape(-1, 3, side, side))
    return np.concatenate(found)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 32, 32), (3, 64, 96), (3, 20, 45), (1, 96, 7)])
def test_bits_are_the_signs_of_scipys_transform(shape: tuple[int, int, int]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, *shape), dtype=np.uint8)
    for image, word in zip(images, perceptual_hash(images), strict=True):
        low = dctn(area_means(grey_of(image), 32), norm="ortho")[:8, :8].ravel()
        margin = low - np.median(low[1:])
        clear = np.abs(margin) > 1e-3
        clear[0] = False
        bits = (int(word) >> np.arange(64, dtype=object)) & 1
        assert clear.sum() >= 61
        np.testing.assert_array_equal(bits[clear] == 1, margin[clear] > 0)
        assert bits[0] == 0
        assert bits.sum() == 31


def test_a_hash_is_a_matter_of_the_pixels_alone() -> None:
    images = np.random.default_rng(1).integers(0, 256, (150, 3, 31, 33), dtype=np.uint8)
    hashes = perceptual_hash(images)
    np.testing.assert_array_equal(hashes, [perceptual_hash(image[None])[0] for image in images])
    np.testing.assert_array_equal(hashes[::-3], perceptual_hash(images[::-3]))
    strided = np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(hashes, perceptual_hash(strided))
    grey = images[:, :1]
    np.testing.assert_array_equal(perceptual_hash(grey), perceptual_hash(np.repeat(grey, 3, axis=1)))
    assert perceptual_hash(images[:0]).shape == (0,)


def test_flat_images_are_told_and_in_no_pair() -> None:
    generator = np.random.default_rng(0)
    ramp = np.arange(32, dtype=np.uint8)
    flat = [
        *(np.full((32, 32), level) for level in (0, 1, 128, 255)),
        *(level + generator.integers(0, 4, (32, 32)) for level in (3, 200)),
        np.broadcast_to(7 * ramp, (32, 32)),
        np.broadcast_to(255 * (ramp[:, None] // 4 % 2), (32, 32)),
    ]
    images = np.stack([np.stack([image.astype(np.uint8)] * 3) for image in flat])
    textured = generator.integers(0, 256, (9, 3, 32, 32), dtype=np.uint8)
    hashes = perceptual_hash(np.concatenate([images, textured, textured]))
    assert (hashes != 0).tolist() == [False] * len(flat) + [True] * 18
    first = len(flat) + np.arange(9)
    np.testing.assert_array_equal(near_pairs(hashes), np.stack([first, first + 9], axis=1))
    assert near_pairs(np.array([0, 1, 0, 2, 5], dtype=np.uint64), distance=2).tolist() == [[1, 3], [1, 4]]


def altered(image: np.ndarray, how: str) -> np.ndarray:
    picture = Image.fromarray(image.transpose(1, 2, 0))
    size = picture.size
    if how.startswith("jpeg"):
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=int(how[4:]))
        picture = Image.open(file)
    elif how == "resized":
        picture = picture.resize((size[0] * 3 // 4, size[1] * 3 // 4)).resize(size)
    elif how == "brighter":
        picture = ImageEnhance.Brightness(picture).enhance(1.1)
    return np.asarray(picture).transpose(2, 0, 1)


@pytest.mark.parametrize(("how", "share"), [("jpeg90", 0.99), ("jpeg50", 0.9), ("resized", 0.95), ("brighter", 0.95)])
def test_altered_photographs_stay_close_and_are_confirmed(how: str, share: float) -> None:
    images = tiles(80)
    images = images[perceptual_hash(images) != 0]
    copies = np.stack([altered(image, how) for image in images])
    hashes, others = perceptual_hash(images), perceptual_hash(copies)
    assert len(images) > 40
    assert np.mean(differing(hashes, others) <= 3) >= share
    assert np.median(differing(hashes, np.roll(others, 1))) > 20
    pairs = np.arange(2 * len(images)).reshape(2, -1).T
    both = descriptors(np.concatenate([images, copies]))
    assert len(confirmed(pairs, both)) >= 0.98 * len(pairs)
    wrong = np.stack([pairs[:, 0], np.roll(pairs[:, 1], 1)], axis=1)
    assert len(confirmed(wrong, both)) <= 0.05 * len(pairs)


def test_copies_are_a_chain() -> None:
    hashes = np.array([5, 2**63, 5, 4, 5, 4], dtype=np.uint64)
    assert near_pairs(hashes, distance=1).tolist() == [[0, 2], [0, 3], [2, 4], [3, 5]]
    many = np.full(10_000, 77, dtype=np.uint64)
    np.testing.assert_array_equal(near_pairs(many), np.stack([np.arange(9999), np.arange(1, 10_000)], axis=1))
    assert near_pairs(many[:1]).shape == near_pairs(many[:0]).shape == (0, 2)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 60), max_size=25), st.integers(0, 3))
def test_groups_are_those_of_all_pairs(values: list[int], distance: int) -> None:
    words = np.array(values, dtype=np.uint64)
    group = list(range(len(values)))
    for first, second in all_pairs(words, distance):
        joined = {group[first], group[second]}
        group = [min(joined) if label in joined else label for label in group]
    numbers = {label: number for number, label in enumerate(dict.fromkeys(group))}
    pairs = near_pairs(words, distance=distance)
    assert clusters(len(values), pairs).tolist() == [numbers[label] for label in group]
    assert clusters(len(values), pairs[::-1, ::-1]).tolist() == [numbers[label] for label in group]


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 5, 19), (3, 100, 41)])
def test_descriptors_are_area_means(shape: tuple[int, int, int]) -> None:
    images = np.random.default_rng(4).integers(0, 256, (30, *shape), dtype=np.uint8)
    wanted = np.stack([area_means(grey_of(image), 8).ravel() for image in images])
    assert np.abs(descriptors(images) - wanted).max() <= 0.5 + 1e-9


def test_confirmation_is_correlation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_duplicates, "_AT_ONCE", 7)
    generator = np.random.default_rng(5)
    rows = generator.integers(0, 256, (20, 64), dtype=np.uint8)
    rows[10:] = rows[:10] // 2 + generator.integers(0, 50, (10, 64)) + 40
    rows[3] = 9
    pairs = np.stack(np.triu_indices(20, 1), axis=1)
    unit = rows - rows.mean(axis=1, keepdims=True)
    unit /= np.maximum(unit.std(axis=1, keepdims=True), 1e-9)
    count = 20 + 64  # as if 64 more were noise
    mean = unit.sum(axis=0) / count
    spread = unit.T @ unit / count - np.outer(mean, mean) + (64 / count + 0.1) * np.eye(64)
    beside = (unit - mean) @ np.linalg.cholesky(np.linalg.inv(spread))

    def cosine(rows: np.ndarray, pair: list[int]) -> float:
        first, second = rows[pair]
        return float(first @ second / max(np.linalg.norm(first) * np.linalg.norm(second), 1e-9))

    both = {tuple(pair): (cosine(unit, pair), cosine(beside, pair)) for pair in pairs.tolist()}
    kept = [list(pair) for pair, (plain, own) in both.items() if plain >= 0.8 and (own >= 0.8 or plain >= 0.998)]
    assert 3 <= len(kept) < sum(plain >= 0.8 for plain, _ in both.values())
    assert confirmed(pairs, rows, least=0.8).tolist() == kept
    assert confirmed(pairs[:0], rows).shape == (0, 2)
    assert confirmed(np.array([[0, 0], [3, 3]]), rows, least=1.0).tolist() == [[0, 0]]


def test_what_is_alike_on_all_images_makes_no_copies() -> None:
    """Digits are all light strokes on a dark ground: 509 of 1,797 had passed for copies. Copies of them still do."""
    digits = np.kron(load_digits().images, np.ones((8, 8)))[:, None] * 15.9
    images = digits.astype(np.uint8)
    copies = np.stack([altered(np.repeat(image, 3, axis=0), "jpeg50")[:1] for image in images[:100]])
    pool = np.concatenate([images, copies])
    group = clusters(len(pool), confirmed(near_pairs(perceptual_hash(pool), distance=8), descriptors(pool)))
    assert len(images) - len(np.unique(group[: len(images)])) <= 18
    assert (group[:100] == group[len(images) :]).sum() >= 99


def test_many_near_copies_are_doubted_and_six_shown() -> None:
    pairs = [(f"a{row}", f"b{row}") for row in range(9)]
    assert near_duplicates.doubt(10, 1000, pairs) == ""
    told = near_duplicates.doubt(11, 1000, pairs)
    assert "11 of 1000 images" in told and "a5 is left out for b5. If" in told and "a6" not in told


def test_bad_input() -> None:
    images = np.zeros((2, 3, 8, 8), dtype=np.uint8)
    for function in (perceptual_hash, descriptors):
        refused(ShapeError, "images has shape", function, images[0])
        refused(ShapeError, "allowed: 1 or 3 channels", function, images[:, :2])
        refused(ShapeError, "at least 1 x 1 pixels", function, images[:, :, :0])
        refused(ConfigError, "dtype float64, allowed: uint8", function, images / 255)
    hashes = np.zeros(2, dtype=np.uint64)
    refused(ShapeError, "hashes has shape", near_pairs, hashes[None])
    refused(ConfigError, "dtype int64, allowed: uint64", near_pairs, hashes.astype(np.int64))
    refused(ConfigError, "distance = 9", near_pairs, hashes, distance=9)
    pairs, found = np.array([[0, 1]]), np.zeros((2, 64), dtype=np.uint8)
    refused(ConfigError, "count = -1", clusters, -1, pairs)
    refused(ShapeError, "pairs has shape", clusters, 2, pairs.T)
    refused(ConfigError, r"rows 0 to 2, allowed: \[0, 1\]", clusters, 2, 2 * pairs)
    refused(ConfigError, "dtype float64, allowed: integers", confirmed, pairs / 1, found)
    refused(ConfigError, "rows -1 to 0", confirmed, pairs - 1, found)
    refused(ShapeError, "descriptors has shape", confirmed, pairs, found[:, :9])
    refused(ConfigError, "dtype int8, allowed: uint8", confirmed, pairs, found.astype(np.int8))
    refused(ConfigError, "least = 1.5", confirmed, pairs, found, least=1.5)
