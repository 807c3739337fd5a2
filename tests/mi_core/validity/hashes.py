"""Hashes with planted near-copies, and their pairs by brute force."""

from __future__ import annotations

import numpy as np


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
