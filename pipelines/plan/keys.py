"""The key of an item: a digest of its own fields and of the keys of its inputs. Equal keys mean equal results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, field, fields, is_dataclass
from functools import cached_property
from typing import Any, TypeVar

from pydantic import BaseModel

from mi_core.features.measure import Measure, as_json
from pipelines.files.digest import digest

VERSION = 4
"""Of what items mean: raise it where the same fields give other results."""

Kind = TypeVar("Kind", bound="Item")


def unkeyed(**settings: Any) -> Any:
    """A field that changes no result, so that it is no part of the key."""
    return field(metadata={"keyed": False}, compare=False, **settings)


class Item:
    """A frozen dataclass whose result lies under its key."""

    @cached_property
    def key(self) -> str:
        """64 hex digits. Fields that have their default are left out, so that a new field moves no key."""
        return key_of(type(self).__name__, self.fields)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that the key is a digest of, as plain values; inputs by their keys."""
        return {
            part.name: keyed(value)
            for part in fields(self)  # type: ignore[arg-type]
            if part.metadata.get("keyed", True) and (value := getattr(self, part.name)) != default_of(part)
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Item) and type(self) is type(other) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def key_of(kind: str, parts: Mapping[str, Any]) -> str:
    """The key of an item of some kind with some fields, as `Item.fields` gives them."""
    return digest(VERSION, kind, parts)


def items_in(whole: Item, kind: type[Kind]) -> list[Kind]:
    """The items of a kind that an item is made of, itself included, each once, inputs first."""
    found: dict[str, Kind] = {}
    seen: set[int] = set()

    def visit(value: Any) -> None:
        if isinstance(value, tuple):
            for part in value:
                visit(part)
        elif isinstance(value, Item) and id(value) not in seen:
            seen.add(id(value))
            for part in fields(value):  # type: ignore[arg-type]
                visit(getattr(value, part.name))
            if isinstance(value, kind):
                found.setdefault(value.key, value)

    visit(whole)
    return list(found.values())


def default_of(part: Any) -> Any:
    """The default of a field; `MISSING` where it has none."""
    return part.default if part.default_factory is MISSING else part.default_factory()


def keyed(value: Any) -> Any:
    """A value as the plain values that its key is a digest of."""
    if isinstance(value, Item):
        return value.key
    if isinstance(value, Measure):
        return as_json(value)
    if hasattr(value, "identity"):  # an encoder from elsewhere, some of whose settings change no answer
        return value.identity()
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, tuple | list):
        return [keyed(one) for one in value]
    return value
