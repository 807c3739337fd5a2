"""Which fields of a config name files, and which shards a pattern names."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Any

from pipelines import storage
from pipelines.errors import UserError
from pipelines.names import shortened

FILE_FIELDS = frozenset({"path", "root", "table", "weights", "text_weights"})
"""Fields of a config that name files or folders, wherever they stand, in sweeps and searches too."""


def spelled_out(value: Any, name: str = "") -> Any:
    """Plain values of a config with every path of files made absolute; ``name`` is the field that holds the value."""
    if isinstance(value, dict):
        return {key: spelled_out(inner, str(key).rpartition(".")[2]) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [spelled_out(inner, name) for inner in value]
    return storage.absolute(value) if isinstance(value, str) and value and name in FILE_FIELDS else value


TARS = (".tar", *(f".tar.{packed}" for packed in ("gz", "bz2", "zst", "lz4", "xz")), ".tgz", ".tbz2", ".tzst", ".txz")
_MANY = 16  # named shards from which on their folder is listed instead


def tars_of(folder: str) -> list[str]:
    """Paths of the tars in a folder itself, compressed ones too."""
    return [path for path in storage.list_files(folder, recursive=False) if path.endswith(TARS)]


def expand(pattern: str) -> list[str]:
    """Paths of the shards that a pattern names: ``{000..009}`` ranges and ``{a,b}`` lists, then globs; URIs alike.

    Raises:
        UserError: nothing matches, or a named file is not there.
    """
    found: list[str] = []
    named = expand_braces(pattern)
    listed = _listed(named) if len(named) > _MANY else set()
    for path in named:
        if storage.absolute(path) in listed:
            found.append(storage.absolute(path))
        elif re.search(r"[*?\[]", path):
            matches = _glob(path)
            if not matches:
                raise UserError(f"{path} matches no file; give tars, for example data/train-{{000000..000009}}.tar")
            found += matches
        elif storage.is_folder(path):
            matches = tars_of(path)
            if not matches:
                raise UserError(f"{path} holds no .tar file")
            found += matches
        elif storage.exists(path):
            found.append(storage.absolute(path))
        else:
            raise UserError(f"{path} does not exist; give tars, for example data/train-{{000000..000009}}.tar")
    return list(dict.fromkeys(found))


def covered(patterns: Iterable[str], paths: Iterable[str]) -> list[str]:
    """Those of some paths, there or not, that a folder or a glob among the patterns stands for."""
    every = {storage.absolute(one) for pattern in patterns for one in expand_braces(pattern)}
    globs = [one for one in every if re.search(r"[*?\[]", one)]
    return [path for path in paths if path.rpartition("/")[0] in every or any(_matches(one, path) for one in globs)]


def _matches(pattern: str, path: str) -> bool:
    return path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern)


def _listed(paths: Sequence[str]) -> set[str]:
    """The files in the folders of some paths: one question per folder, where one per file would take an object store
    minutes."""
    folders = dict.fromkeys(storage.absolute(path).rpartition("/")[0] for path in paths)
    return {file for folder in folders for file in storage.list_files(folder, recursive=False)}


def expand_braces(pattern: str) -> list[str]:
    """Every text that ``{000..009}`` and ``{a,b}`` in a pattern stand for, in order.

    Raises:
        UserError: as `check_braces`, which raises ValueError.

    Example:
        >>> expand_braces("x-{08..10}.{a,b}")
        ['x-08.a', 'x-08.b', 'x-09.a', 'x-09.b', 'x-10.a', 'x-10.b']
    """
    try:
        check_braces(pattern)
    except ValueError as error:
        raise UserError(str(error)) from error
    named = [""]
    for text, inside in zip(_BRACES.split(pattern)[::2], [*_BRACES.findall(pattern), None], strict=True):
        choices = [""] if inside is None else _choices(inside)
        named = [before + text + choice for before in named for choice in choices]
    return named


_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})")
_MOST = 1_000_000  # files that one pattern may name


def check_braces(pattern: str) -> None:
    """Look at the braces of a pattern without spelling them out.

    Raises:
        ValueError: a range counts down, or the braces stand for more files than there can be.
    """
    count = 1
    for inside in _BRACES.findall(pattern):
        numbers = _RANGE.fullmatch(inside)
        size = int(numbers[2]) - int(numbers[1]) + 1 if numbers else inside.count(",") + 1
        if size < 1 and numbers:
            raise ValueError(f"path = {shortened(pattern)} counts down; write {{{numbers[2]}..{numbers[1]}}}")
        count *= size
        if count > _MOST:
            raise ValueError(
                f"path = {shortened(pattern)} names more than {_MOST:,} files; give a folder, or a glob with *"
            )


def _choices(inside: str) -> list[str]:
    numbers = _RANGE.fullmatch(inside)
    if not numbers:
        return inside.split(",")
    width = len(numbers[1]) if numbers[1].startswith("0") or len(numbers[1]) == len(numbers[2]) else 0
    return [f"{number:0{width}d}" for number in range(int(numbers[1]), int(numbers[2]) + 1)]


def _glob(pattern: str) -> list[str]:
    pattern = storage.absolute(pattern)
    folder = pattern[: re.search(r"[*?\[]", pattern).start()].rpartition("/")[0]  # type: ignore[union-attr]
    return [path for path in storage.list_files(folder) if _matches(pattern, path)]
