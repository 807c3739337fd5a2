"""Tables that find every pair of close 64-bit hashes, each table by itself.

Manku, Jain and Das Sarma, "Detecting near-duplicates for web crawling" (WWW 2007, section 3). A hash is cut into
blocks. Of two hashes that differ in d bits, all but d blocks agree, whichever these are. Each choice of d blocks is a
table: sorted by the other blocks, its runs of equal ones are compared.

Tables need nothing of each other, and neither do ranges of one table: hashes that agree in the other blocks fall into
one part. A pair belongs to one table and one part alone, so parts of tables may run anywhere, in any order:

- `NearTable.part_of` tells the part of each hash, so a process reads the hashes of its part and drops the others;
- `distinct_hashes`, then `NearTable.pairs`, give the pairs of these, as rows of what was read;
- copies of one hash are `DistinctHashes.copies`, of any part that holds all of them, such as the hashes of one
  remainder;
- `union_of_pairs` joins everything. Rows must keep their order in every part.

Letters: N hashes, W distinct ones, P pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import comb

import numpy as np
import numpy.typing as npt

from mi_core.checks import ConfigError, check_range, check_shape
from mi_core.records import BoolArray

Hashes = npt.NDArray[np.uint64]
Pairs = npt.NDArray[np.int64]
Blocks = tuple[tuple[int, int], ...]  # (first bit, width)
MOST_BITS = 8  # the largest distance; the number of tables grows with it
MOST_PARTS = 2**16
_LEADING = 32  # bits by which a table is cut into parts, if as many agree
_AT_ONCE = 2**14  # words that are worked on together; they fit a cache
_SORTING = 3  # what a word costs a table besides its comparisons, in comparisons


@dataclass(frozen=True)
class DistinctHashes:
    """The distinct hashes, without the 0 of flat images."""

    words: Hashes  # (W,) ascending
    first: npt.NDArray[np.int64]  # (W,) the first row of each
    # (P, 2) rows i < j of one hash, each row with the next: 10,000 copies are 9,999 pairs, not 50 million
    copies: Pairs


def distinct_hashes(hashes: Hashes) -> DistinctHashes:
    """The distinct ones of N hashes, from `mi_core.validity.near_duplicates.perceptual_hash`.

    Raises ShapeError or ConfigError: hashes are not (N,) uint64.

    Example:
        >>> distinct = distinct_hashes(np.array([7, 2, 7, 0, 7], dtype=np.uint64))
        >>> distinct.words.tolist(), distinct.first.tolist(), distinct.copies.tolist()
        ([2, 7], [1, 0], [[0, 2], [2, 4]])
    """
    _check_hashes(hashes)
    order = np.argsort(hashes, kind="stable").astype(np.int64, copy=False)
    order = order[np.count_nonzero(hashes == 0) :]
    words = hashes[order]
    repeated = np.zeros(len(words), dtype=np.bool_)
    repeated[1:] = words[1:] == words[:-1]
    again = np.flatnonzero(repeated)
    return DistinctHashes(words[~repeated], order[~repeated], np.stack([order[again - 1], order[again]], axis=1))


@dataclass(frozen=True)
class NearTable:
    """One table: the pairs that agree in some blocks and that no table before has."""

    agreeing: Blocks  # the blocks that agree, in the order of their bits
    free: Blocks  # the blocks that may differ, in as many bits as there are such blocks, in that order

    def part_of(self, hashes: Hashes, parts: int) -> npt.NDArray[np.int64]:
        """The part (N,), from 0 to ``parts`` - 1, of every hash (N,): equal where all agreeing blocks are.

        Parts are equal ranges of the first agreeing bits, so their sizes are as uneven as hashes are.

        Raises as `distinct_hashes`, and ConfigError: parts are not within [1, 65536].

        Example:
            >>> table = near_tables(1000, 1)[1]
            >>> table.agreeing, table.part_of(np.array([5, 2**31, 2**32 - 1, 2**33], dtype=np.uint64), 4).tolist()
            (((0, 32),), [0, 2, 3, 0])
        """
        _check_hashes(hashes)
        check_range("parts", parts, 1, MOST_PARTS)
        leading = min(_LEADING, _width(self.agreeing))
        prefixes = _arranged(hashes, self._order) >> np.uint64(64 - leading)
        return ((prefixes * np.uint64(parts)) >> np.uint64(leading)).astype(np.int64)

    def pairs(self, distinct: DistinctHashes) -> Pairs:
        """The pairs (P, 2) of this table, as rows i < j of the first of each hash, each pair once, in no order.

        The hashes may be those of one part of the table, or all of them.
        """
        found = [np.empty((0, 2), dtype=np.int64)]
        for matches in _matches(np.sort(_arranged(distinct.words, self._order)), _width(self.free), len(self.free)):
            left, right = (_restored(side, self._order) for side in matches)
            own = self._owns(left ^ right)
            if own.any():
                places = [np.searchsorted(distinct.words, side[own]) for side in (left, right)]
                found.append(np.sort(distinct.first[np.stack(places, axis=1)], axis=1))
        return np.concatenate(found)

    def _owns(self, differing: Hashes) -> BoolArray:
        """True if pairs (P,) that differ in these bits, all of free blocks, are in no table before.

        Tables stand in the lexicographic order of their free blocks. The first that has a pair frees the blocks in
        which it differs and the lowest others. So each free block above the lowest agreeing one must differ.
        """
        own = np.ones(len(differing), dtype=np.bool_)
        for start, width in self.free:
            if start > self.agreeing[0][0]:
                own &= (differing >> np.uint64(start)) & np.uint64((1 << width) - 1) != 0
        return own

    @property
    def _order(self) -> Blocks:
        return self.agreeing + self.free


def near_tables(count: int, distance: int) -> list[NearTable]:
    """The tables that together find all pairs of different hashes within ``distance`` bits; none at distance 0.

    The number of blocks follows from the number of hashes, so that runs stay short: at distance 3 there are 4 tables,
    or 10 from 600,000 hashes on; at distance 4 and 400 million hashes there are 35.

    Args:
        count: hashes in all, about; the pairs are the same whatever it is.
        distance: 0 to 8 bits.

    Raises ConfigError where one is out of range.

    Example:
        >>> len(near_tables(1000, 3)), len(near_tables(1_000_000, 3)), len(near_tables(400_000_000, 4))
        (4, 10, 35)
    """
    check_range("count", count, 0)
    check_range("distance", distance, 0, MOST_BITS)
    if not distance:
        return []

    def cost(blocks: int) -> float:
        agreeing = 64 * (blocks - distance) / blocks
        return comb(blocks, distance) * (_SORTING + count / 2 ** (agreeing + 1))

    blocks = min(range(distance + 1, 2 * distance + 3), key=cost)
    edges = [64 * block // blocks for block in range(blocks + 1)]
    cut = [(low, high - low) for low, high in pairwise(edges)]
    return [
        NearTable(tuple(part for at, part in enumerate(cut) if at not in free), tuple(cut[at] for at in free))
        for free in combinations(range(blocks), distance)
    ]


def union_of_pairs(parts: Iterable[Pairs]) -> Pairs:
    """Pairs (P, 2) of several tables and parts together, in the order of i, then j.

    Example:
        >>> union_of_pairs([np.array([[3, 5]]), np.array([[3, 4], [0, 9]])]).tolist()
        [[0, 9], [3, 4], [3, 5]]
    """
    pairs = np.concatenate([np.empty((0, 2), dtype=np.int64), *parts])
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def _check_hashes(hashes: Hashes) -> None:
    check_shape("hashes", hashes, "N")
    if hashes.dtype != np.uint64:
        raise ConfigError(f"hashes have dtype {hashes.dtype}, allowed: uint64")


def _width(blocks: Blocks) -> int:
    return sum(width for _, width in blocks)


def _matches(ordered: Hashes, free: int, distance: int) -> Iterator[tuple[Hashes, Hashes]]:
    """Pairs of sorted words that agree but for the last ``free`` bits, and in these but for ``distance``."""
    for start in range(0, len(ordered) - 1, _AT_ONCE):
        at, step = np.arange(start, min(start + _AT_ONCE, len(ordered) - 1)), 1
        while len(at):
            differing = ordered[at] ^ ordered[at + step]
            run = differing >> np.uint64(free) == 0
            at, differing = at[run], differing[run]
            near = at[np.bitwise_count(differing) <= distance]
            if len(near):
                yield ordered[near], ordered[near + step]
            step += 1
            at = at[at < len(ordered) - step]


def _arranged(words: Hashes, order: Blocks) -> Hashes:
    """The words with their blocks in another order."""
    out = np.zeros_like(words)
    for first in range(0, len(words), _AT_ONCE):
        source, target = words[first : first + _AT_ONCE], out[first : first + _AT_ONCE]
        for start, width in order:
            target <<= np.uint64(width)
            target |= (source >> np.uint64(start)) & np.uint64((1 << width) - 1)
    return out


def _restored(arranged: Hashes, order: Blocks) -> Hashes:
    """The words that `_arranged` gave."""
    out, at = np.zeros_like(arranged), 64
    for start, width in order:
        at -= width
        out |= ((arranged >> np.uint64(at)) & np.uint64((1 << width) - 1)) << np.uint64(start)
    return out
