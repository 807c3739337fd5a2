"""The shape of a config that its shorthands rest on: sections, lists of entries, names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from pipelines.config.names import check_name, shortened

_ENTRIES = {
    "attacks": ("attack", "target", "reference"),
    "attribute_inference": ("attribute", "target", "output", "auxiliary", "test"),
    "defenses": ("defense", "of", "without"),
}
"""Sections that are lists: the fields of an entry that hold text, or a list of it."""
_ONE_TEXT = {
    "encoders": ("like", "defends", "start", "load", "objective"),
    "defenses": ("label", "beside", "attribute"),
}
_NEEDED = {"attacks": "attack", "attribute_inference": "attribute", "defenses": "defense"}
_SECTIONS = {"encoders": ("endpoint",), "defenses": ("settings", "outside")}
_TEXTS = ("train_on", "outside")  # of encoders


def check_shape(config: Mapping[str, Any]) -> None:
    """Check the shape that the shorthands of a config rest on; the models check all else.

    Raises:
        ValueError: a section, entry or name has a wrong type; the message names it and the allowed type.
    """
    if isinstance(config.get("name"), str):
        check_name("name", config["name"])
    for name, settings in _section("encoders", config.get("encoders") or {}).items():
        check_name("encoders", name)
        _check_entry(f"encoders.{name}", _section(f"encoders.{name}", settings), "encoders", _TEXTS)
    for listed, texts in _ENTRIES.items():
        entries = config.get(listed) or ()
        if not isinstance(entries, list | tuple):
            raise _wrong(listed, entries, "a list of entries, as [{...}, {...}]")
        for position, entry in enumerate(entries):
            place = f"{listed}.{position}"
            _check_entry(place, _section(place, entry), listed, texts)
            if not isinstance(entry, BaseModel) and _NEEDED[listed] not in entry:
                raise ValueError(f"{place}.{_NEEDED[listed]} is missing")


def _check_entry(place: str, entry: Mapping[str, Any], section: str, texts: Sequence[str]) -> None:
    for field in _ONE_TEXT.get(section, ()):
        if not isinstance(entry.get(field, ""), str | None):
            raise _wrong(f"{place}.{field}", entry[field], "text; put it in quotes")
    for field in _SECTIONS.get(section, ()):
        _section(f"{place}.{field}", entry.get(field) or {})
    for field in texts:
        value = entry.get(field)
        every = value if isinstance(value, list | tuple) else [value]
        if not all(isinstance(one, str | None) for one in every):
            raise _wrong(f"{place}.{field}", value, "text, or a list of it")


def _section(place: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, BaseModel):
        return {}
    if not isinstance(value, Mapping):
        raise _wrong(place, value, "a section of fields with values")
    for key in value:
        if not isinstance(key, str):
            raise _wrong(f"a key of {place}", key, "text; put it in quotes")
    return value


def _wrong(place: str, value: Any, allowed: str) -> ValueError:
    return ValueError(f"{place} = {shortened(value)}: allowed is {allowed}")
