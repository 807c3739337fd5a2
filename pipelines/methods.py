"""Settings of methods: validated against the parameter dataclasses that stand beside the methods in `mi_core`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass as pydantic_dataclass

T = TypeVar("T")


@cache
def _adapter(parameters: type[Any]) -> TypeAdapter[Any]:
    validated: Any = pydantic_dataclass(parameters, config=ConfigDict(extra="forbid"), frozen=True)
    return TypeAdapter(validated)


def build(parameters: type[T], values: Mapping[str, Any]) -> T:
    """A parameter dataclass from plain values.

    Raises:
        ValueError: an unknown name, listing the known ones; or a value of a wrong type or range.
    """
    known = [field.name for field in fields(parameters)]  # type: ignore[arg-type]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ValueError(f"unknown setting {unknown[0]!r}, allowed: {', '.join(known)}")
    validated = _adapter(cast(Any, parameters)).validate_python(dict(values))
    return parameters(**{name: getattr(validated, name) for name in known})


def complete(parameters: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values with all defaults filled in."""
    filled: dict[str, Any] = asdict(build(parameters, values))
    return filled
