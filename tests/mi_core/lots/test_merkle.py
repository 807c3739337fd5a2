"""Merkle trees: what opened leaves prove, and what they do not."""

from __future__ import annotations

import hashlib
from itertools import combinations

import pytest

from mi_core.checks import ConfigError
from mi_core.lots.merkle import leaf_digest, proof_of, root_from, root_of
from tests.raising import refused

LEAVES = [leaf_digest(f"leaf {number}".encode()) for number in range(13)]


def recursive_root(leaves: list[bytes]) -> bytes:
    """The tree of RFC 6962, section 2.1: split at the largest power of two below the length."""
    if len(leaves) == 1:
        return leaves[0]
    middle = 1
    while 2 * middle < len(leaves):
        middle *= 2
    return hashlib.sha256(b"\1" + recursive_root(leaves[:middle]) + recursive_root(leaves[middle:])).digest()


@pytest.mark.parametrize("count", range(1, 14))
def test_the_root_is_that_of_the_standard(count: int) -> None:
    assert root_of(LEAVES[:count]) == recursive_root(LEAVES[:count])


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_any_opened_leaves_lead_to_the_root(count: int) -> None:
    leaves = LEAVES[:count]
    for some in range(1, count + 1):
        for opened in combinations(range(count), some):
            proof = proof_of(leaves, opened)
            assert root_from(count, {number: leaves[number] for number in opened}, proof) == root_of(leaves)


def test_all_leaves_need_no_proof() -> None:
    assert proof_of(LEAVES, range(13)) == []
    assert len(proof_of(LEAVES, [5])) == 4


def test_another_leaf_or_another_place_leads_elsewhere() -> None:
    proof = proof_of(LEAVES, [3, 7])
    assert root_from(13, {3: LEAVES[3], 7: LEAVES[7]}, proof) == root_of(LEAVES)
    assert root_from(13, {3: LEAVES[7], 7: LEAVES[3]}, proof) != root_of(LEAVES)
    assert root_from(13, {3: LEAVES[3], 7: LEAVES[8]}, proof) != root_of(LEAVES)
    assert root_from(13, {2: LEAVES[3], 7: LEAVES[7]}, proof) != root_of(LEAVES)


def test_a_node_cannot_stand_for_a_leaf() -> None:
    inner = hashlib.sha256(b"\1" + LEAVES[0] + LEAVES[1]).digest()
    assert leaf_digest(LEAVES[0] + LEAVES[1]) != inner


def test_impossible_openings_are_refused() -> None:
    proof = proof_of(LEAVES, [3])
    for opened, faulty, words in (
        ({13: LEAVES[3]}, proof, "leaf 13 is not among 13"),
        ({3: LEAVES[3]}, proof[:-1], "too few"),
        ({3: LEAVES[3]}, [*proof, LEAVES[0]], "1 nodes too many"),
        ({}, proof, "at least one leaf"),
    ):
        refused(ConfigError, words, root_from, 13, opened, faulty)
    refused(ConfigError, "stands twice or out of order", proof_of, LEAVES, [3, 3])
    refused(ConfigError, "at least one leaf", root_of, [])
