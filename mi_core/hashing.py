"""One hash for identities: of samples, roles and random streams."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from mi_core.checks import ConfigError
from mi_core.records import BoolArray

FIRST, PART = "first", "part"
"""Purposes of hashes of pixels: by one the first images of a role are taken, by the other a part of it is drawn."""


def digest64(*parts: str | int) -> int:
    """An unsigned 64-bit hash of a tuple of texts and integers; no two different tuples share their encoding.

    Example:
        >>> digest64("a", "bc") == digest64("ab", "c")
        False
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(_encoded(part))
    return int.from_bytes(digest.digest(), "little")


def digests64(parts: Sequence[str | int], names: Iterable[str]) -> npt.NDArray[np.uint64]:
    """`digest64` of the same first parts and each of N names: (N,).

    Example:
        >>> digests64((7, "a"), ["b", "c"]).tolist() == [digest64(7, "a", "b"), digest64(7, "a", "c")]
        True
    """
    return _digests(parts, names, 1)[:, 0]


def digests128(parts: Sequence[str | int], names: Iterable[str]) -> npt.NDArray[np.uint64]:
    """As `digests64`, of 128 bits, which tell billions of names apart: (N, 2)."""
    return _digests(parts, names, 2)


def half_purpose(index: int, nonce: str) -> str:
    """The purpose of hashes of pixels by which halves 2k and 2k + 1 are drawn; without the nonce nobody knows it."""
    return f"half {index // 2} {nonce}"


def half_of(ranks: npt.NDArray[np.uint64], index: int, name: str) -> BoolArray:
    """A mask (N,) of the samples in the half with the lower ranks, for an odd ``index`` with the higher ones.

    Args:
        ranks: (N,) equal for samples that stay together; they are cut next to the middle.
        index: of the half; halves 2k and 2k + 1 make up the whole.
        name: of the samples, for the error.

    Raises:
        ConfigError: all samples belong together.

    Example:
        >>> ranks = np.array([2, 1, 3, 2, 2], np.uint64)
        >>> half_of(ranks, 0, "x").tolist(), half_of(ranks[:3], 1, "x").tolist()
        ([True, True, False, True, True], [False, False, True])
    """
    order = np.argsort(ranks, kind="stable")
    between = np.flatnonzero(np.diff(ranks[order])) + 1
    if not len(between) and len(ranks) > 1:
        told = f"all {len(ranks)} images of {name} belong to one group of data.group_by"
        raise ConfigError(f"{told} and cannot be halved")
    middle = int(between[np.abs(between - (len(ranks) + 1) // 2).argmin()]) if len(between) else len(ranks)
    chosen = np.zeros(len(ranks), dtype=bool)
    chosen[order[middle:] if index % 2 else order[:middle]] = True
    return chosen


def sample_digests(pixels: Iterable[bytes], ids: Iterable[str]) -> npt.NDArray[np.uint32]:
    """The SHA-256 of the pixels' hash and the id of every of N samples: (N, 8), the lowest word first."""
    return as_words(hashlib.sha256(shown + name.encode()).digest() for shown, name in zip(pixels, ids, strict=True))


def as_words(digests: Iterable[bytes]) -> npt.NDArray[np.uint32]:
    """N digests of 32 bytes as (N, 8) words."""
    return np.frombuffer(b"".join(digests), dtype="<u4").reshape(-1, 8)


def sum_of_digests(words: npt.NDArray[np.uint32]) -> bytes:
    """The identity of a set of samples: the sum of their digests (N, 8) modulo 2 ** 256, whatever order and division.

    Example:
        >>> digests = sample_digests([b"x", b"y", b"z"], ["a", "b", "c"])
        >>> part = sum_of_digests(digests[:0:-1])
        >>> sum_of_digests(np.concatenate([digests[:1], as_words([part])])) == sum_of_digests(digests)
        True
    """
    totals = words.sum(axis=0, dtype=np.uint64).tolist()  # exact for 2 ** 32 samples
    whole: int = sum(total << (32 * place) for place, total in enumerate(totals))
    return (whole % 2**256).to_bytes(32, "little")


def _digests(parts: Sequence[str | int], names: Iterable[str], words: int) -> npt.NDArray[np.uint64]:
    begun = hashlib.blake2b(digest_size=8 * words)
    for part in parts:
        begun.update(_encoded(part))
    digests = []
    for name in names:
        digest = begun.copy()
        digest.update(_encoded(name))
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64, copy=False).reshape(-1, words)


def _encoded(part: str | int) -> bytes:
    encoded = (b"i%d" % part) if isinstance(part, int) else b"s" + part.encode()
    return len(encoded).to_bytes(8, "little") + encoded


def printable(name: str) -> str:
    """A name whose bytes outside UTF-8 are escaped, so that it can be hashed, written and shown."""
    return name.encode("utf-8", "backslashreplace").decode()
