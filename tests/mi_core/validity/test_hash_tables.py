"""Pairs of close hashes against all pairs: of all tables at once, and of their parts one by one."""

from __future__ import annotations

import numpy as np
import pytest

from mi_core.checks import ConfigError, ShapeError
from mi_core.validity import hash_tables
from mi_core.validity.hash_tables import distinct_hashes, near_tables, union_of_pairs
from mi_core.validity.near_duplicates import near_pairs
from tests.raising import refused


def differing(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.bitwise_count(first ^ second)


def all_pairs(words: np.ndarray, distance: int) -> list[list[int]]:
    first, second = np.nonzero(np.triu(differing(words[:, None], words[None]) <= distance, 1))
    return np.stack([first, second], axis=1).tolist()


def spoilt(count: int, seed: int, bits: int = 64) -> np.ndarray:
    """Distinct words, a third of them others with up to 6 bits flipped."""
    generator = np.random.default_rng(seed)
    words = generator.integers(1, 2**bits, count, dtype=np.uint64)
    for row in range(0, count - 1, 3):
        flipped = generator.choice(bits, generator.integers(0, 7), replace=False)
        words[row] = words[row + 1] ^ np.bitwise_or.reduce(np.uint64(1) << flipped.astype(np.uint64))
    return generator.permutation(np.unique(words[words > 0]))


@pytest.mark.parametrize(
    ("distance", "sorting", "at_once"),  # sorting 0: many tables of short runs; the larger, the fewer
    [
        (0, 3, 2**14),
        (1, 3, 2**14),
        (2, 3, 2**14),
        (3, 3, 2**14),
        (3, 0, 2**14),
        (3, 10**9, 2**14),
        (3, 3, 64),
        (5, 1, 300),
    ],
)
def test_every_pair_is_found_once(monkeypatch: pytest.MonkeyPatch, distance: int, sorting: int, at_once: int) -> None:
    monkeypatch.setattr(hash_tables, "_SORTING", sorting)
    monkeypatch.setattr(hash_tables, "_AT_ONCE", at_once)
    words = spoilt(1200, seed=distance)
    wanted = all_pairs(words, distance)
    assert len(wanted) >= 40 * distance
    assert near_pairs(words, distance=distance).tolist() == wanted


@pytest.mark.parametrize("distance", [3, 8])
def test_long_runs_hide_no_pair(distance: int) -> None:
    words = spoilt(300, seed=9, bits=13) << np.uint64(25)
    assert near_pairs(words, distance=distance).tolist() == all_pairs(words, distance)


@pytest.mark.parametrize(("distance", "sorting"), [(1, 3), (2, 0), (3, 3), (3, 0), (4, 1), (8, 3)])
@pytest.mark.parametrize("parts", [1, 5, 64])
def test_parts_of_tables_together_have_every_pair_once(
    monkeypatch: pytest.MonkeyPatch, distance: int, sorting: int, parts: int
) -> None:
    """Each part sees its own hashes alone, as a process would that drops the others while it reads."""
    monkeypatch.setattr(hash_tables, "_SORTING", sorting)
    words = spoilt(600, seed=distance)
    found, sizes = [], []
    for table in reversed(near_tables(len(words), distance)):
        part = table.part_of(words, parts)
        assert ((part >= 0) & (part < parts)).all()
        for number in np.random.default_rng(0).permutation(parts):
            rows = np.flatnonzero(part == number)
            sizes.append(len(rows))
            found.append(rows[table.pairs(distinct_hashes(words[rows]))])
    assert union_of_pairs(found).tolist() == all_pairs(words, distance)
    assert parts == 1 or np.median(sizes) <= 600 / parts * 2


def test_copies_in_parts_are_those_of_the_whole() -> None:
    """Rows of one hash stand for each other: a part names the first of them, as the whole does."""
    generator = np.random.default_rng(1)
    hashes = generator.permutation(np.append(generator.choice(spoilt(60, seed=4), 300), np.zeros(9, dtype=np.uint64)))
    wanted = near_pairs(hashes, distance=4)
    assert len(wanted) > len(hashes) - 9 - 60
    found = []
    for remainder in range(3):
        rows = np.flatnonzero(hashes % np.uint64(3) == remainder)
        found.append(rows[distinct_hashes(hashes[rows]).copies])
    for table in near_tables(len(hashes), 4):
        part = table.part_of(hashes, 7)
        for number in range(7):
            rows = np.flatnonzero(part == number)
            found.append(rows[table.pairs(distinct_hashes(hashes[rows]))])
    np.testing.assert_array_equal(union_of_pairs(found), wanted)


@pytest.mark.parametrize("distance", [1, 2, 5, 8])
def test_the_tables_of_a_large_collection_miss_no_pair(distance: int) -> None:
    """Tables for 400 million hashes have runs too short to be tried by brute force; their pairs are not."""
    generator = np.random.default_rng(distance)
    bits = np.repeat(np.arange(1, distance + 1), 20)
    words = generator.integers(1, 2**64, len(bits), dtype=np.uint64)
    flips = [np.uint64(1) << generator.choice(64, count, replace=False).astype(np.uint64) for count in bits]
    hashes = np.stack([words, words ^ [np.bitwise_or.reduce(flip) for flip in flips]], axis=1).ravel()
    distinct = distinct_hashes(hashes)
    found = []
    for table in near_tables(4 * 10**8, distance):
        found.append(table.pairs(distinct))
        part = table.part_of(hashes, 2**16)
        assert (part[found[-1][:, 0]] == part[found[-1][:, 1]]).all()
    np.testing.assert_array_equal(union_of_pairs(found), np.arange(len(hashes)).reshape(-1, 2))


def test_bad_input() -> None:
    hashes = np.ones(2, dtype=np.uint64)
    (table, *_) = near_tables(2, 3)
    for function in (distinct_hashes, lambda given: table.part_of(given, 2)):
        refused(ShapeError, "hashes has shape", function, hashes[None])
        refused(ConfigError, "dtype int64, allowed: uint64", function, hashes.astype(np.int64))
    for parts in (0, 2**16 + 1):
        refused(ConfigError, f"parts = {parts}", table.part_of, hashes, parts)
    refused(ConfigError, "distance = 9", near_tables, 2, 9)
    refused(ConfigError, "count = -1", near_tables, -1, 3)
    assert near_tables(10**6, 0) == []
