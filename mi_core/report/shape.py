"""What keeps a value from having the shape that a JSON Schema tells, for schemas of this package.

It knows the few keywords that `KEYWORDS` lists; a schema with another one is refused, so that no rule is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

KEYWORDS = frozenset(
    {
        *("$schema", "$defs", "$ref", "title", "description"),
        *("type", "const", "enum", "pattern", "required", "properties", "additionalProperties"),
        *("items", "minItems", "maxItems"),
    }
)
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def fault_of_shape(value: Any, schema: Mapping[str, Any]) -> str:
    """The first fault of a value in words, with the dotted name of its place; empty: it has the shape.

    Args:
        value: as ``json.loads`` gives it.
        schema: a JSON Schema with the keywords of `KEYWORDS`; ``$ref`` leads to its ``$defs``.

    Raises:
        ValueError: the schema has another keyword.

    Example:
        >>> schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
        >>> fault_of_shape({"n": 3}, schema), fault_of_shape({"n": "3"}, schema), fault_of_shape({}, schema)
        ('', 'n is no integer', 'n is missing')
    """
    return next(_faults(value, schema, schema.get("$defs", {}), ""), "")


def _faults(value: Any, schema: Mapping[str, Any], known: Mapping[str, Any], place: str) -> Iterator[str]:
    if unknown := schema.keys() - KEYWORDS:
        raise ValueError(f"a schema has the keyword {min(unknown)}, which is not checked here")
    name = place or "the whole"
    if "$ref" in schema:
        yield from _faults(value, known[schema["$ref"].rpartition("/")[2]], known, place)
    kind = schema.get("type")
    if kind is not None and not _is_a(kind, value):
        yield f"{name} is no {kind}"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{name} is not {schema['const']}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{name} is none of {', '.join(schema['enum'])}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{name} is not as {schema['pattern']} asks"
    if isinstance(value, list) and len(value) < schema.get("minItems", 0):
        yield f"{name} has fewer than {schema['minItems']} entries"
    if isinstance(value, list) and len(value) > schema.get("maxItems", len(value)):
        yield f"{name} has more than {schema['maxItems']} entries"
    yield from _inside(value, schema, known, place)


def _is_a(kind: str, value: Any) -> bool:
    """Whether a value is of a type of JSON; true and false are no numbers."""
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _inside(value: Any, schema: Mapping[str, Any], known: Mapping[str, Any], place: str) -> Iterator[str]:
    """The faults of the entries of an object or an array."""
    if isinstance(value, list) and "items" in schema:
        for number, entry in enumerate(value):
            yield from _faults(entry, schema["items"], known, _below(place, number))
    if not isinstance(value, dict):
        return
    yield from (f"{_below(place, name)} is missing" for name in schema.get("required", ()) if name not in value)
    own, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, entry in value.items():
        if name in own:
            yield from _faults(entry, own[name], known, _below(place, name))
        elif others is False:
            yield f"{_below(place, name)} is not known"
        elif others is not True:
            yield from _faults(entry, others, known, _below(place, name))


def _below(place: str, name: str | int) -> str:
    return f"{place}.{name}" if place else str(name)
