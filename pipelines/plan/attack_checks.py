"""Checks of the attacks of a run: each has what it needs, and is judged on samples that it was not fitted on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mi_core.checks import check_choice
from pipelines.config.roles import ANCHOR_ROLE, are_members, are_nonmembers
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import AUDITED, SAMPLES, SHADOW, SHADOWS, AttackConfig
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import EndpointConfig, sealed
from pipelines.errors import UserError
from pipelines.plan.rules import ThreatModel, population_roles


def check_attack(threat: ThreatModel, place: str, attack: AttackConfig) -> None:
    """Raise ValueError if an attack lacks what it needs, or would be judged on samples that it was fitted on."""
    check_choice(f"{place}.target", attack.target, threat.encoders)
    _check_reference(threat, f"{place}.reference", attack)
    _check_apart(threat, place, attack)
    if attack.before is not None:
        _check_before(threat, place, attack, attack.before)
    asked = _queried(threat, attack) if attack.bank_size else ()
    remote = [name for name in asked if isinstance(threat.encoders[name], EndpointConfig)]
    if remote:
        raise ValueError(
            f"{place}: every worker asks for {attack.bank_size} images of {ANCHOR_ROLE}, and {remote[0]} is behind an "
            "API, where each costs; leave neighbours out"
        )
    beside = (*((ANCHOR_ROLE,) if _reads_anchors(attack) else ()), *population_roles(attack))
    check_roles(place, (*threat.audited_roles, *threat.reference_roles(attack), *beside), threat.config.data)
    _check_counts(threat, place, attack)
    queries = threat.config.queries
    if attack.draws_views and (attack.views or queries.views) < 2:
        raise ValueError(
            f"queries.views = {queries.views}, but {attack.attack} compares pairs of views and needs "
            "at least 2; set 10 (paper)"
        )
    if attack.views is not None and attack.views > queries.views:
        raise ValueError(f"{place}.views = {attack.views} exceeds queries.views = {queries.views}; raise it")


def _check_before(threat: ThreatModel, place: str, attack: AttackConfig, before: str) -> None:
    """Raise ValueError if the earlier version of a target is the target itself, or saw the images of the update."""
    check_choice(f"{place}.before", before, threat.encoders)
    if before == attack.target:
        raise ValueError(f"{place}.before = {before!r} is the target; name an earlier version of it")
    seen = [role for role in threat.audited_roles if role in threat.members_of(before)]
    if seen:
        raise ValueError(
            f"{place}.before = {before!r} was trained on {seen[0]} too, so the update does not tell it; name a version "
            "that saw none of the audited images"
        )


def _reads_anchors(attack: AttackConfig) -> bool:
    """Tell whether an attack compares samples with images of the role ``anchor``."""
    return attack.method().anchored or attack.bank_size > 0


def _queried(threat: ThreatModel, attack: AttackConfig) -> dict[str, None]:
    """The encoders that an attack asks, each once."""
    earlier = () if attack.before is None else (attack.before,)
    return dict.fromkeys((attack.target, *earlier, *threat.shadows_of(attack), *threat.references_of(attack)))


def _by_halves(threat: ThreatModel, attack: AttackConfig) -> bool:
    """Tell whether an attack is fitted on encoders that were each trained on a half of the audited images."""
    return bool(threat.shadows_of(attack)) and attack.reference not in threat.encoders


def _check_reference(threat: ThreatModel, place: str, attack: AttackConfig) -> None:
    """Raise ValueError if an attack cannot be fitted on its reference."""
    shadows, given = threat.shadows_of(attack), f"{place} = {attack.reference!r}"
    halves = _by_halves(threat, attack)
    if not shadows:
        check_choice(place, attack.reference, {*threat.encoders, *threat.shadow_families, *SAMPLES})
    elif (SHADOWS if halves else SHADOW) not in attack.method().reference:
        needed = "one shadow encoder, or known samples" if halves else "several encoders with halves: N"
        raise ValueError(f"{given}, but {attack.attack} needs {needed}")
    if attack.shadows is not None and not halves:
        raise ValueError(f"{place} = {attack.reference!r} is not made by halves; leave shadows out")
    if attack.shadows is not None and attack.shadows > len(shadows):
        raise ValueError(f"{given} has {len(shadows)} encoders, not shadows = {attack.shadows}; raise its halves")
    if halves and len(shadows) < attack.method().least_shadows:
        least, limit = attack.method().least_shadows, "its halves" if attack.shadows is None else "shadows"
        raise ValueError(
            f"{given} with shadows = {len(shadows)}, but {attack.attack} needs at least {least}; raise {limit}"
        )
    if halves and any(set(threat.encoders[name].train_on) != set(threat.audited_roles) for name in shadows):
        raise ValueError(f"{given}: train its encoders on {list(threat.audited_roles)}")
    unfit = [role for name in shadows for role in threat.member_roles(name) if not halves and not are_members(role)]
    if unfit:
        raise ValueError(f"{given} was trained on {unfit[0]!r}: call it x-member, and give x-nonmember")
    if why := sealed(threat.encoders.get(threat.crafter_of(attack) or "")):
        raise ValueError(
            f"{given} {why}, but {attack.attack} crafts images by the gradients of its weights; use a shadow that is "
            "trained here"
        )


def _check_counts(threat: ThreatModel, place: str, attack: AttackConfig) -> None:
    """Raise ValueError if roles have fewer samples than an attack takes of them."""
    asked: dict[str, int | None] = dict.fromkeys(threat.reference_roles(attack), attack.reference_count)
    if attack.reference_count is not None and _by_halves(threat, attack):
        raise ValueError(f"{place}.reference_count has no meaning for encoders made by halves")
    if attack.reference_count is not None and attack.reference == AUDITED:
        raise ValueError(f"{place}.reference_count has no meaning for reference = {AUDITED!r}; leave it out")
    if _reads_anchors(attack):
        asked[ANCHOR_ROLE] = attack.bank_size or getattr(attack.parameters(), "anchors", None)
    for role, count in asked.items():
        have = threat.roles[role].count if role in threat.roles else None
        if count is not None and have is not None and count > have:
            raise ValueError(f"{place} asks for {count} samples of {role}, which has {have}")
    _check_nonmembers(threat, place, attack, {name: role.count for name, role in threat.roles.items()})


def _check_nonmembers(threat: ThreatModel, place: str, attack: AttackConfig, sizes: Mapping[str, int | None]) -> None:
    """Raise ValueError if an attack knows too few non-members; a role whose size is None may have any."""
    if attack.reference == AUDITED or (_by_halves(threat, attack) and not population_roles(attack)):
        return  # it knows none
    roles = population_roles(attack) or threat.reference_roles(attack)
    known = [sizes[role] for role in roles if are_nonmembers(role)]
    most = attack.reference_count or math.inf
    there = sum(math.inf if count is None else min(count, most) for count in known)
    needed = attack.method()(attack.parameters()).needed_nonmembers
    if there < needed:
        raise ValueError(
            f"{place}: {attack.attack} needs {needed} known non-members with its fpr, not {there:g}; "
            "give more of them, or raise its fpr"
        )


def check_drawn(config: RunConfig, counts: Mapping[str, int]) -> None:
    """Raise UserError if drawn roles have too few non-members for the attacks; ``counts``: samples by role."""
    for position, attack in enumerate(config.attacks):
        try:
            _check_nonmembers(ThreatModel(config), f"attacks.{position}", attack, counts)
        except ValueError as error:
            raise UserError(str(error)) from error


def _check_apart(threat: ThreatModel, place: str, attack: AttackConfig) -> None:
    """Raise ValueError if an attack is judged on samples that it is fitted on or anchored at."""
    if attack.reference in threat.encoders:
        judged = [role for role in threat.reference_roles(attack) if _inside_audited(threat, role)]
        if attack.reference == attack.target or judged:
            raise ValueError(
                f"{place}.reference = {attack.reference!r} is fitted on "
                f"{judged[0] if judged else threat.audited_roles[0]!r}, on which the attack is judged; "
                "train it on other images, or use reference: known"
            )
    for role in population_roles(attack):
        if _inside_audited(threat, role):
            raise ValueError(
                f"data.roles.{role} is a part of {threat.roles[role].source_name}, which the shadows of "
                f"{attack.attack} are trained on; draw it from a source"
            )
    if _reads_anchors(attack) and ANCHOR_ROLE in threat.roles and _inside_audited(threat, ANCHOR_ROLE):
        raise ValueError(f"data.roles.{ANCHOR_ROLE} is a part of what attacks are judged on; draw it from a source")
    if attack.bank_size and ANCHOR_ROLE in threat.roles:
        _check_bank_apart(threat, attack)


def _check_bank_apart(threat: ThreatModel, attack: AttackConfig) -> None:
    """Raise ValueError if images of a bank are also those of a fit or of a training: they would meet themselves."""
    trained = {role for name in _queried(threat, attack) for role in threat.members_of(name)}
    for used in (*threat.reference_roles(attack), *sorted(trained)):
        roles = threat.roles
        if used in roles and (ANCHOR_ROLE in (used, roles[used].source_name) or roles[ANCHOR_ROLE].source_name == used):
            raise ValueError(
                f"data.roles.{ANCHOR_ROLE} shares images with {used}, which {attack.attack} learns from or an encoder "
                "is trained on; draw it from a source"
            )


def _inside_audited(threat: ThreatModel, name: str) -> bool:
    role = threat.roles.get(name)
    return name in threat.audited_roles or (role is not None and role.source_name in threat.audited_roles)


def check_roles(place: str, roles: Sequence[str], data: DataConfig) -> None:
    """Raise ValueError if a role is missing."""
    missing = [role for role in roles if role not in data.roles]
    if missing:
        raise ValueError(f"{place} needs the role {missing[0]!r}; data.roles has {', '.join(data.roles)}")
