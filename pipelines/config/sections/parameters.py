"""Settings of methods: validated against the parameter dataclasses that stand beside the methods in `mi_core`."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from functools import cache
from itertools import product
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from pipelines.config.mistakes import first_mistake

_ARGUMENT = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*(?:\n {8}.*)*)", re.M)  # of a docstring's section Args
MOST = 10_000  # entries that one with lists may stand for
T = TypeVar("T")


@cache
def _adapter(parameters: type[Any]) -> TypeAdapter[Any]:
    validated: Any = pydantic_dataclass(parameters, config=ConfigDict(extra="forbid"), frozen=True)
    return TypeAdapter(validated)


def build(parameters: type[T], values: Mapping[str, Any]) -> T:
    """A parameter dataclass from plain values.

    Raises:
        ValueError: an unknown name, or a value of a wrong type or range; the message lists the allowed ones.
    """
    known = [field.name for field in fields(parameters)]  # type: ignore[arg-type]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ValueError(f"unknown setting {unknown[0]!r}, allowed: {', '.join(known)}")
    try:
        validated = _adapter(cast(Any, parameters)).validate_python(dict(values))
    except ValidationError as error:
        raise ValueError(first_mistake(error)) from error
    return parameters(**{name: getattr(validated, name) for name in known})


def complete(parameters: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values with all defaults filled in."""
    return dict(asdict(build(parameters, values)))


def parameter_fields(parameters: type[Any]) -> dict[str, Any]:
    """The fields of a parameter dataclass as `pydantic.create_model` takes them."""
    told = documented(parameters)
    return {
        field.name: (
            field.type,
            Field(default=... if field.default is MISSING else field.default, description=told.get(field.name)),
        )
        for field in fields(parameters)
    }


def documented(parameters: type[Any]) -> dict[str, str]:
    """The words of the docstrings of a parameter dataclass and its bases on each parameter, in one line each."""
    parts = [inspect.cleandoc(vars(part).get("__doc__") or "") for part in reversed(parameters.__mro__)]
    entries = [entry for part in parts for entry in _ARGUMENT.findall(part.partition("Args:\n")[2])]
    return {name: _in_one_line(text) for names, text in entries for name in names.split(", ")}


def _in_one_line(text: str) -> str:
    return " ".join(text.replace("``", "`").split()).removesuffix(".")


def schema(parameters: type[Any]) -> dict[str, Any]:
    """The JSON Schema of a parameter dataclass, with the descriptions of its docstrings."""
    found: dict[str, Any] = _adapter(cast(Any, parameters)).json_schema()
    found["description"] = _in_one_line(inspect.cleandoc(parameters.__doc__ or "").partition("Args:\n")[0])
    for name, text in documented(parameters).items():
        if name in found["properties"]:
            found["properties"][name]["description"] = text
    return found


def combinations(entries: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Entries one by one: one with lists under some names stands for all combinations of their values.

    Raises:
        ValueError: they are too many.
    """
    spelled = []
    for entry in entries:
        listed = [name for name in names if isinstance(entry, dict) and isinstance(entry.get(name), list | tuple)]
        if math.prod(len(entry[name]) for name in listed) > MOST:
            raise ValueError(f"{', '.join(listed)}: their combinations are more than {MOST:,}; give fewer values")
        for values in product(*(entry[name] for name in listed)):
            spelled.append({**entry, **dict(zip(listed, values, strict=True))} if listed else entry)
    return spelled


def told_apart(chosen: BaseModel, alike: Sequence[BaseModel], without: Sequence[str] = ()) -> str:
    """The settings in which an entry of a config differs from similar ones, in words; empty if there are none."""
    others = [one.model_dump(mode="json") for one in alike]
    return ", ".join(
        f"{name} = {value}"
        for name, value in chosen.model_dump(mode="json").items()
        if name not in without and any(other[name] != value for other in others)
    )
