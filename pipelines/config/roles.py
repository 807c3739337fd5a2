"""The roles that samples play, by their names: a name says whether its samples are members of an encoder."""

from __future__ import annotations

from collections.abc import Sequence

TARGET_ROLES = ("target-member", "target-nonmember")
CANDIDATE_ROLES = ("candidate", "control")  # of an encoder whose training data is not known
SHADOW_ROLES = ("shadow-member", "shadow-nonmember")
KNOWN_ROLES = ("known-member", "known-nonmember")
POPULATION_ROLE = KNOWN_ROLES[1]  # of attacks that compare with images that no encoder saw
ANCHOR_ROLE = "anchor"
CALIBRATION_ROLE = "calibration-member"  # known members that no attack is fitted on: they tell its true-positive rate
CANARY_ROLE = "canary"  # samples that a fair coin each puts into the training set or leaves out
CANARY_IN, CANARY_OUT = COINS = ("canary-in", "canary-out")  # how the coins fell
BANK_ROLE, TEST_ROLE = "downstream-train", "downstream-test"


def are_members(role: str) -> bool:
    """Tell whether the name of a role says that its samples are members."""
    return role.endswith("-member")


def are_nonmembers(role: str) -> bool:
    """Tell whether the name of a role says that its samples are no members."""
    return role.endswith("nonmember")


def nonmembers_beside(role: str) -> str:
    """The role of the non-members that go with members: ``x-nonmember`` for ``x-member``."""
    return role.removesuffix("-member") + "-nonmember"


def without_canaries(roles: Sequence[str]) -> tuple[str, ...]:
    """Some roles without those of canaries; where there is no other, as they are.

    Example:
        >>> without_canaries(["target-member", "canary-in"]), without_canaries(["canary-in"])
        (('target-member',), ('canary-in',))
    """
    return tuple(role for role in roles if role not in (CANARY_ROLE, *COINS)) or tuple(roles)
