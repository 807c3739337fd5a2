"""Dataclasses as the plain values of JSON and back, by their fields alone.

A field stands under its own name, or under the ``key`` of its metadata; one whose metadata say ``flat`` puts its
entries beside those of the others. What is None or equal to its default is absent. A class with an ``as_json`` and a
``from_json`` of its own is written by these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Part = TypeVar("Part")


def part_as_json(part: Any) -> Any:
    """A part of a report as dictionaries, lists and numbers; the fields stand in their order.

    Example:
        >>> from mi_core.records import Estimate
        >>> part_as_json({"auc": Estimate(0.5, 0.4, 0.6, 9)})
        {'auc': {'value': 0.5, 'ci95': [0.4, 0.6], 'n': 9}}
    """
    if hasattr(part, "as_json"):
        return part.as_json()
    if isinstance(part, Mapping):
        return {name: part_as_json(inner) for name, inner in part.items()}
    if isinstance(part, list | tuple):
        return [part_as_json(inner) for inner in part]
    if not dataclasses.is_dataclass(part):
        return part
    entry: dict[str, Any] = {}
    for field in _fields(part.__class__):
        value = getattr(part, field.name)
        if value is not None and value != field.default:
            told = part_as_json(value)
            entry |= told if field.flat else {field.key: told}
    return entry


def part_from_json(kind: type[Part], entry: Any, path: str = "") -> Part:
    """The part that `part_as_json` wrote; entries that the class does not know are left out.

    Args:
        kind: a dataclass, or a type of its fields.
        entry: plain values, whatever they are.
        path: of the entry, for messages.

    Raises:
        TypeError: a value is not of the type of its field, or one that must be given is absent; the message names it.
        KeyError, ValueError: as the ``from_json`` of a class.

    Example:
        >>> part_from_json(tuple[float, float], [0.4, 0.6])
        (0.4, 0.6)
    """
    return cast(Part, _read(kind, entry, path))


def given_values(part: Any) -> Any:
    """Plain values without what is None: in a report it is absent."""
    if isinstance(part, Mapping):
        return {name: given_values(value) for name, value in part.items() if value is not None}
    if isinstance(part, list | tuple):
        return [given_values(value) for value in part if value is not None]
    return part


class _Field(NamedTuple):
    """A field as it stands in JSON; its default is None where the type says that it may be absent."""

    name: str
    key: str
    kind: Any
    flat: bool
    default: Any


@cache
def _fields(kind: type) -> tuple[_Field, ...]:
    hints = get_type_hints(kind)
    described = []
    for field in dataclasses.fields(kind):
        default = None if NoneType in get_args(hints[field.name]) else dataclasses.MISSING
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        elif field.default is not dataclasses.MISSING:
            default = field.default
        name = field.metadata.get("key", field.name)
        described.append(_Field(field.name, name, hints[field.name], "flat" in field.metadata, default))
    return tuple(described)


def _read(kind: Any, entry: Any, path: str) -> Any:
    if kind is Any:
        return entry
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        (given,) = (option for option in inner if option is not NoneType)
        return _read(given, entry, path)
    if origin is tuple:
        values = _of_type(list, entry, path)
        kinds = inner[:1] * len(values) if inner[-1] is ... else inner
        if len(kinds) != len(values):
            raise TypeError(f"{path} has {len(values)} entries, expected {len(kinds)}")
        pairs = zip(kinds, values, strict=True)
        return tuple(_read(of_value, value, f"{path}.{row}") for row, (of_value, value) in enumerate(pairs))
    if origin is not None:  # a mapping by names
        named = _of_type(dict, entry, path)
        return {name: _read(inner[1], value, f"{path}.{name}") for name, value in named.items()}
    if kind in (float, int, str, bool):
        return _of_type(kind, entry, path)
    values, entry = {}, _of_type(dict, entry, path)
    if hasattr(kind, "from_json"):
        return kind.from_json(entry)
    for field in _fields(kind):
        where = f"{path}.{field.key}" if path else field.key
        if field.flat:
            values[field.name] = _read(field.kind, entry, path)
        elif field.key in entry:
            values[field.name] = _read(field.kind, entry[field.key], where)
        elif field.default is dataclasses.MISSING:
            raise TypeError(f"{where} is missing")
        else:
            values[field.name] = field.default
    return kind(**values)


def _of_type(kind: type, entry: Any, path: str) -> Any:
    allowed = isinstance(entry, (int, float) if kind is float else kind)
    if not allowed or (isinstance(entry, bool) and kind is not bool):
        raise TypeError(f"{path or 'the whole'} is {entry!r:.60}, expected {kind.__name__}")
    return entry
