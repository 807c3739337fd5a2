"""A Merkle tree: one digest of many leaves, of which any can be shown to be in it without the others.

Leaves and inner nodes are hashed with prefixes of their own, so that none can stand for the other (RFC 6962, section
2.1). A level of odd length passes its last node on as it is. Letters: N leaves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from mi_core.checks import ConfigError

_LEAF, _NODE = b"\0", b"\1"


def leaf_digest(content: bytes) -> bytes:
    """The digest of one leaf, 32 bytes."""
    return hashlib.sha256(_LEAF + content).digest()


def root_of(leaves: Sequence[bytes]) -> bytes:
    """The root over N digests of leaves, 32 bytes.

    Raises:
        ConfigError: there is no leaf.
    """
    level = list(leaves)
    if not level:
        raise ConfigError("a Merkle tree needs at least one leaf")
    while len(level) > 1:
        level = _above(level)
    return level[0]


def proof_of(leaves: Sequence[bytes], opened: Sequence[int]) -> list[bytes]:
    """The nodes that `root_from` needs beside the opened leaves: 32 bytes each, level by level, from left to right.

    Args:
        leaves: all N digests.
        opened: numbers of leaves, each once, ascending.

    Raises:
        ConfigError: a number is out of range, or they do not ascend.
    """
    _check(opened, len(leaves))
    level, known, nodes = list(leaves), list(opened), []
    while len(level) > 1:
        held = set(known)
        nodes += [level[beside] for one in known if (beside := one ^ 1) < len(level) and beside not in held]
        level, known = _above(level), sorted({one // 2 for one in known})
    return nodes


def root_from(count: int, opened: Mapping[int, bytes], proof: Sequence[bytes]) -> bytes:
    """The root that opened leaves and a proof lead to.

    Args:
        count: N, the number of all leaves.
        opened: digests of leaves by their numbers; at least one.
        proof: of exactly these, from `proof_of`.

    Raises:
        ConfigError: a number is out of range, or the proof has too few or too many nodes.
    """
    _check(sorted(opened), count)
    if not opened:
        raise ConfigError("a Merkle proof is of at least one leaf")
    level, left = dict(opened), list(reversed(proof))
    while count > 1:
        above = {}
        for number in sorted(level):
            if number // 2 in above:
                continue
            beside = number ^ 1
            if beside >= count:
                above[number // 2] = level[number]
                continue
            if beside not in level:
                if not left:
                    raise ConfigError("the Merkle proof has too few nodes")
                level[beside] = left.pop()
            above[number // 2] = _node(level[number & ~1], level[number | 1])
        level, count = above, (count + 1) // 2
    if left:
        raise ConfigError(f"the Merkle proof has {len(left)} nodes too many")
    return level[0]


def _above(level: Sequence[bytes]) -> list[bytes]:
    pairs = [_node(level[place], level[place + 1]) for place in range(0, len(level) - 1, 2)]
    return pairs + ([level[-1]] if len(level) % 2 else [])


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()


def _check(opened: Sequence[int], count: int) -> None:
    previous = -1
    for number in opened:
        if not previous < number < count:
            raise ConfigError(f"leaf {number} is not among {count}, or stands twice or out of order")
        previous = number
