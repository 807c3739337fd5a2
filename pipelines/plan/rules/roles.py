"""The images of a run: those that are audited, and those that an attack is fitted on or compares them with."""

from __future__ import annotations

from pipelines.config.roles import (
    CANDIDATE_ROLES,
    KNOWN_ROLES,
    POPULATION_ROLE,
    SHADOW_ROLES,
    TARGET_ROLES,
    nonmembers_beside,
)
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import AUDITED, KNOWN, NONMEMBERS, AttackConfig
from pipelines.plan.rules.encoders import member_roles, shadows_of


def audited_roles(config: RunConfig) -> tuple[str, str]:
    """The two roles that attacks tell apart: possible members first."""
    candidates = set(CANDIDATE_ROLES) <= set(config.data.roles)
    return CANDIDATE_ROLES if candidates else TARGET_ROLES


def is_membership_unknown(config: RunConfig) -> bool:
    """Tell whether candidates are audited: nobody knows which are members, so only the AUC means something."""
    return audited_roles(config) == CANDIDATE_ROLES


def reference_roles(config: RunConfig, attack: AttackConfig) -> tuple[str, ...]:
    """Roles that an attack is fitted on: those of its shadow with the non-members beside them, or known samples."""
    fixed = {KNOWN: KNOWN_ROLES, NONMEMBERS: KNOWN_ROLES[1:]}
    if attack.reference in fixed:
        return fixed[attack.reference]
    if attack.reference not in config.encoders:
        return audited_roles(config)
    trained = member_roles(config, attack.reference)
    return tuple(role for members in trained for role in (members, nonmembers_beside(members))) or SHADOW_ROLES


def population_roles(attack: AttackConfig) -> tuple[str, ...]:
    """The role whose images, seen by no encoder, an attack compares samples with; none if it compares with none."""
    return (POPULATION_ROLE,) if attack.method().populated else ()


def roles_fitted_on_target(config: RunConfig, attack: AttackConfig) -> tuple[str, ...]:
    """Roles of the target that an attack is fitted on and not judged on; none where it has shadows."""
    return () if shadows_of(config, attack) or attack.reference == AUDITED else reference_roles(config, attack)
