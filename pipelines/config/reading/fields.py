"""Fields of a config by their dotted names: setting one, and telling which ones differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from typing import Any

from mi_core.attacks import ATTACKS
from pipelines.config.paths import shortened
from pipelines.config.run_config import check_shape
from pipelines.config.sections import attacks
from pipelines.config.sections.defenses import DefenseConfig, each_defense
from pipelines.errors import UserError


def with_changes(values: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values with some fields set anew; they are changed in place."""
    for field, new in changes.items():
        set_field(values, field, deepcopy(new))
    return values


def set_field(values: dict[str, Any], name: str, new: Any) -> None:
    """Set a field by its dotted name; a number picks from a list, ``*`` everything in it that has the field.

    Raises:
        UserError: the name leads through a value, or to no element of a list.
    """
    for listed, (spell, _) in _LISTS.items():
        if name.startswith(f"{listed}."):
            try:
                check_shape({listed: values.get(listed)})
                values[listed] = spell(values.get(listed) or ())
            except ValueError as error:
                raise UserError(str(error)) from error
    head, star, field = name.partition(".*.")
    if star:
        takes = _LISTS[head][1] if head in _LISTS else None
        takers = [number for number, entry in enumerate(values.get(head) or ()) if takes and takes(entry, field)]
        if not takers:
            raise UserError(f"{name}: nothing in {head} has the field {field!r}")
        for number in takers:
            set_field(values, f"{head}.{number}.{field}", new)
        return
    place: Any = values
    *parents, last = name.split(".")
    for depth, parent in enumerate(parents):
        place = place.setdefault(parent, {}) if isinstance(place, dict) else _element(place, parent, name)
        if not isinstance(place, dict | list):
            raise UserError(f"{name}: {'.'.join(parents[: depth + 1])} is a value, not a section")
    if isinstance(place, list):
        _element(place, last, name)
        place[int(last)] = new
    else:
        place[last] = new


def _takes(attack: Mapping[str, Any], field: str) -> bool:
    name, coded = str(attack.get("attack")), "code" in attack
    model = attacks.CodeAttackConfig if coded else attacks.ATTACK_CONFIGS.get(name)
    if model is None:
        return False
    method = attacks.trusted_class(attack) if coded else ATTACKS[name]
    known = {*model.model_fields, *(parameter.name for parameter in fields(method.Parameters))}
    unfit = {
        "shadows": attacks.SHADOWS not in method.reference,
        "before": not method.updated,
        "reference_count": method.reference == {attacks.SHADOWS},
    }
    if field.partition(".")[0] not in known or unfit.get(field):
        return False
    own = {key: value for key, value in attack.items() if key in known and key != "views"}
    return field != "views" or model(**own).draws_views


_LISTS: dict[str, tuple[Callable[[Sequence[Any]], list[Any]], Callable[[Mapping[str, Any], str], bool]]] = {
    "attacks": (attacks.each_attack, _takes),
    "attribute_inference": (
        attacks.each_inference,
        lambda _, field: field in attacks.AttributeInferenceConfig.model_fields,
    ),
    "defenses": (each_defense, lambda _, field: field.partition(".")[0] in DefenseConfig.model_fields),
}
"""Sections that are lists: how they are spelled out, and whether an entry has a field."""


def _element(place: Sequence[Any], index: str, name: str) -> Any:
    if not re.fullmatch("[0-9]{1,9}", index) or int(index) >= len(place):
        raise UserError(f"{name}: {shortened(index)} is no position in a list of {len(place)}")
    return place[int(index)]


def differing(before: Any, after: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and new value of every leaf that differs; of a section that loses keys, the whole of it."""
    if isinstance(before, dict) and isinstance(after, dict) and (not prefix or before.keys() <= after.keys()):
        for key, value in after.items():
            yield from differing(before.get(key), value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from differing(old, new, f"{prefix}.{number}")
    elif before != after:
        yield prefix, after
