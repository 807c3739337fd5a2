"""Mistakes in a config, each in one line: the field, the value, the allowed values."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from mi_core.plugins import fault_named
from pipelines.config.paths import shortened

Location = Sequence[int | str]
_TAGGED = ("encoders", "attacks")  # sections whose entries are of several models: pydantic names the model next
_KINDS = {
    "int": "a whole number",
    **dict.fromkeys(("float", "decimal"), "a number"),
    "finite": "a finite number",
    "string": "text",
    "bool": "true or false",
    **dict.fromkeys(("list", "tuple", "set", "iterable"), "a list"),
    **dict.fromkeys(("dict", "mapping", "model", "dataclass"), "a section of fields with values"),
}
"""The allowed type, by the first word of pydantic's name for it."""
_LIMITS = {
    "greater_than": "a number above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "too_short": "{min_length} or more entries",
    "too_long": "at most {max_length} entries",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "text that fits {pattern}",
    "literal_error": "{expected}",
}
"""The allowed values where the type is right."""


def first_mistake(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """The first mistake in one line, in words for users.

    Args:
        error: of a model of a config, or of a method's parameters.
        model: that raised it; its fields are listed where a key is unknown.
    """
    every = error.errors()
    first = every[0]
    kind, context, parts = first["type"], first.get("ctx", {}), _parts(first["loc"])
    place = ".".join(str(part) for part in parts)
    if broken := fault_named(str(context.get("tag", first["input"])).strip("'")):
        return f"{place}: {broken}"
    if kind in ("extra_forbidden", "unexpected_keyword_argument", "invalid_key"):
        return _unknown(place, parts, [] if model is None else _fields_at(model, first["loc"][:-1]))
    if kind.startswith("missing"):
        return f"{place} is missing"
    if kind in ("value_error", "assertion_error"):
        text = str(context["error"])
        return text if not place or text.startswith(place) else f"{place}: {text}"
    if kind == "union_tag_invalid":
        return f"{place}: {shortened(context['tag'])} is an unknown attack; allowed: {_bare(context['expected_tags'])}"
    if kind == "union_tag_not_found":
        return f"{place}.attack is missing"
    here = [one for one in every if _parts(one["loc"]) == parts and one["input"] == first["input"]]
    allowed = dict.fromkeys(_allowed(one["type"], one.get("ctx", {})) for one in here)
    quotes = "; put it in quotes" if "text" in allowed and isinstance(first["input"], int | float) else ""
    return f"{place}{_shown(first['input'])}: allowed is {' or '.join(allowed)}{quotes}"


def _parts(location: Location) -> list[int | str]:
    """A place as users write it: without the model of an entry, and without one of several types of a field."""
    parts = [part for number, part in enumerate(location) if number != 2 or location[0] not in _TAGGED]
    while parts and isinstance(last := parts[-1], str):
        if last.removeprefix("constrained-") not in ("str", "int", "float", "bool") and "[" not in last:
            break
        parts.pop()
    return parts


def _unknown(place: str, parts: Sequence[int | str], allowed: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(parts[-1]), allowed, 1) if parts else []
    hint = f"did you mean {near[0]}? " if near else ""
    return f"unknown key {place or repr(place)}" + (
        f"; {hint}allowed: {', '.join(allowed)}" if allowed else "; take it out"
    )


def _fields_at(model: type[BaseModel], location: Location) -> list[str]:
    """Fields that stand at a place."""
    models = [model]
    for part in location:
        named = [one for one in models if one.__name__ == part]
        annotations = [one.model_fields[part].annotation for one in models if part in one.model_fields]
        models = named or [inner for annotation in annotations for inner in models_in(annotation)] or models
    fields = {field.alias or name for one in models for name, field in one.model_fields.items()}
    return sorted(fields | {"path"} if tuple(location) == ("data",) else fields)


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Models that an annotation such as dict[str, Model] or Model | None mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in models_in(inner)]


def _shown(value: object) -> str:
    try:
        json.dumps(value)
    except (TypeError, ValueError):  # an object that was made of the value, which no user wrote
        return ""
    return f" = {shortened(value)}"


def _allowed(kind: str, context: Mapping[str, Any]) -> str:
    if kind in _LIMITS:
        limits = {name: f"{value:g}" if isinstance(value, float) else value for name, value in context.items()}
        return _bare(_LIMITS[kind].format(**limits)) if kind == "literal_error" else _LIMITS[kind].format(**limits)
    return _KINDS.get(kind.split("_", maxsplit=1)[0], "another value")


def _bare(quoted: str) -> str:
    return quoted.replace("'", "")
