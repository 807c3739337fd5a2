"""Attacks, defenses and membership features that other packages bring, as entry points of these groups.

A package names its class in its ``pyproject.toml``::

    [project.entry-points."encoder_audit.attacks"]
    my-attack = "my_package.my_attack:MyAttack"

Once it is installed, on every node, the name stands in the table as our own do: in configs, in `encoder-audit list`, in
reports. The groups are ``encoder_audit.attacks``, ``encoder_audit.defenses`` and ``encoder_audit.measures``.
`mi_core.testing` has the contract that an attack keeps to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from mi_core.checks import ConfigError

PREFIX = "encoder_audit."
_Kind = TypeVar("_Kind")


def plugged_in(
    table: str, own: Mapping[str, type[_Kind]], base: type[Any], *, key: str = "name"
) -> dict[str, type[_Kind]]:
    """The entries that installed packages add to one of our tables, by name.

    Args:
        table: ``attacks``, ``defenses`` or ``measures``.
        own: the entries of this package.
        base: what an entry is a subclass of.
        key: the attribute in which a class states its name.

    Raises:
        ConfigError: a class cannot be loaded, is no subclass of ``base``, states another name than its entry point, or
            has a name that is taken. The message names the package.
    """
    found: dict[str, type[_Kind]] = {}
    for point in _points():
        if point.group != f"{PREFIX}{table}":
            continue
        place = f"the {table[:-1]} {point.name} of the package {package_of(point)}"
        if point.name in own or point.name in found:
            raise ConfigError(f"{place} has a name that is taken; uninstall the package, or let its author rename it")
        try:
            method: Any = point.load()
        except Exception as error:  # whatever code of others raises
            raise ConfigError(f"{place} cannot be loaded ({type(error).__name__}: {error}); uninstall it") from error
        if not (isinstance(method, type) and issubclass(method, base)):
            raise ConfigError(f"{place} is no subclass of {base.__module__}.{base.__name__}; uninstall it")
        if getattr(method, key, None) != point.name:
            stated = getattr(method, key, None)
            raise ConfigError(f"{place} calls itself {stated!r} in its attribute {key}; uninstall it")
        found[point.name] = method
    return found


def names(table: str) -> list[str]:
    """The names that installed packages add to a table, without loading them."""
    return [point.name for point in _points() if point.group == f"{PREFIX}{table}"]


def packages() -> dict[str, str]:
    """Versions of the installed packages that add to our tables, by name."""
    return {package_of(point): "" if point.dist is None else point.dist.version for point in _points()}


def code_files(*own: str) -> Iterator[tuple[str, Path]]:
    """The Python files of some packages and of these: a name that is the same on every machine, and the path."""
    for top in (*own, *dict.fromkeys(point.module.partition(".")[0] for point in _points())):
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
    groups = (f"{PREFIX}{table}" for table in ("attacks", "defenses", "measures"))
    return tuple(sorted((point for group in groups for point in entry_points(group=group)), key=lambda one: one.name))
