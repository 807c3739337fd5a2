"""Entries that other packages add to our tables, as entry points of these groups.

A package names its class, or its row of a table, in its ``pyproject.toml``::

    [project.entry-points."encoder_audit.attacks"]
    my-attack = "my_package.my_attack:MyAttack"

Once it is installed, on every node, the name stands in the table as our own do: in configs, in `encoder-audit list`, in
reports. The groups are ``encoder_audit.`` and one of `TABLES`. `mi_core.testing` has the contract that an attack keeps
to.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

PREFIX = "encoder_audit."
TABLES = ("attacks", "defenses", "measures", "encoders", "sources")
_Entry = TypeVar("_Entry")


def plugged_in(
    table: str, own: Mapping[str, _Entry], base: type[Any], *, key: str | None = "name"
) -> dict[str, _Entry]:
    """The entries that installed packages add to one of our tables, by name.

    Args:
        table: one of `TABLES`.
        own: the entries of this package.
        base: what an entry is a subclass of, or an instance of.
        key: the attribute in which a class states its name; None: entries are instances, which state none.

    An entry is left out, and its fault stands in `BROKEN`, if it cannot be loaded, is not of ``base``, lacks what every
    subclass defines, states another name than its entry point, or has a name that is taken.
    """
    found: dict[str, _Entry] = {}
    for point in _points():
        if point.group != f"{PREFIX}{table}":
            continue
        place = f"the {table[:-1]} {point.name} of the package {package_of(point)}"
        if point.name in own or point.name in found:
            fault = "has a name that is taken; uninstall the package, or let its author rename it"
        else:
            entry, fault = _loaded(point, base, key)
        if fault:
            BROKEN[table, point.name] = f"{place} {fault}"
        else:
            found[point.name] = entry
    return found


BROKEN: dict[tuple[str, str], str] = {}
"""The faults of entries that cannot be used, by table and name."""


def fault_named(name: Any) -> str:
    """The fault of a broken entry, in whatever table; empty: no broken entry has that name."""
    return next((fault for (_, broken), fault in BROKEN.items() if broken == name), "")


def _loaded(point: EntryPoint, base: type[Any], key: str | None) -> tuple[Any, str]:
    """An entry and its fault, in words that follow its name; an empty text: it has none."""
    try:
        entry: Any = point.load()
    except Exception as error:  # noqa: BLE001 - whatever code of others raises
        begun = getattr(getattr(sys.modules.get(point.module), "__spec__", None), "_initializing", False)
        remedy = f"import {base.__module__} before {point.module}" if begun else "uninstall it"
        return None, f"cannot be loaded ({type(error).__name__}: {error}); {remedy}"
    if key is None:
        fault = "" if isinstance(entry, base) else f"is no {base.__module__}.{base.__name__}"
    elif not (fault := class_fault(entry, base)) and getattr(entry, key) != point.name:
        fault = f"calls itself {getattr(entry, key)!r} in its attribute {key}"
    return entry, f"{fault}; uninstall it" if fault else ""


def class_fault(entry: Any, base: type[Any]) -> str:
    """Why code of others is no complete subclass of ``base``, in words that follow its name; empty: it is one."""
    if not (isinstance(entry, type) and issubclass(entry, base)):
        return f"is no subclass of {base.__module__}.{base.__name__}"
    stated = (name for name in base.__annotations__ if not hasattr(entry, name))
    lacks = [*stated, *sorted(getattr(entry, "__abstractmethods__", ()))]
    return f"lacks {', '.join(lacks)}" if lacks else ""


def names(table: str) -> list[str]:
    """The names that installed packages add to a table, without loading them."""
    return [point.name for point in _points() if point.group == f"{PREFIX}{table}"]


def packages() -> dict[str, str]:
    """Versions of the installed packages that add to our tables, by name."""
    return {package_of(point): "" if point.dist is None else point.dist.version for point in _points()}


def modules() -> list[str]:
    """The modules that entry points name."""
    return [point.module for point in _points()]


def code_sha256(modules: Iterable[str]) -> str:
    """SHA-256 of the Python files of the packages that some modules belong to: 64 hex digits."""
    whole = hashlib.sha256()
    for name, path in _code_files(dict.fromkeys(module.partition(".")[0] for module in modules)):
        data = path.read_bytes()
        whole.update(f"{name}\0{len(data)}\0".encode() + data)
    return whole.hexdigest()


def _code_files(packages: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """The Python files of some packages: a name that is the same on every machine, and the path."""
    for top in packages:
        spec = find_spec(top)
        if spec is None:
            continue
        for folder in map(Path, spec.submodule_search_locations or ()):
            yield from ((f"{top}/{path.relative_to(folder).as_posix()}", path) for path in sorted(folder.rglob("*.py")))
        if not spec.submodule_search_locations and spec.origin:
            yield f"{top}.py", Path(spec.origin)


def package_of(point: EntryPoint) -> str:
    """The name of the package that an entry point belongs to."""
    return point.value.partition(":")[0] if point.dist is None else point.dist.name


@cache
def _points() -> tuple[EntryPoint, ...]:
    groups = (f"{PREFIX}{table}" for table in TABLES)
    return tuple(sorted((point for group in groups for point in entry_points(group=group)), key=lambda one: one.name))
