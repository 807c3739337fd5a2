"""Expand patterns to the paths of shards."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

from pipelines.config.paths import expand_braces
from pipelines.errors import UserError
from pipelines.files import storage

TARS = (".tar", *(f".tar.{packed}" for packed in ("gz", "bz2", "zst", "lz4", "xz")), ".tgz", ".tbz2", ".tzst", ".txz")
_MANY = 16  # named shards from which on their folder is listed instead


def tars_of(folder: str) -> list[str]:
    """Paths of the tars directly in a folder, compressed or not."""
    return [path for path in storage.list_files(folder, recursive=False) if path.endswith(TARS)]


def expand(pattern: str) -> list[str]:
    """Expand ``{000..009}`` ranges, ``{a,b}`` lists and globs of a path or URI to the shards that they name.

    Raises:
        UserError: nothing matches, or a named file is not there.
    """
    paths: list[str] = []
    named = expand_braces(pattern)
    listed = storage.existing(map(storage.absolute, named)) if len(named) > _MANY else set()
    for path in named:
        if storage.absolute(path) in listed:
            paths.append(storage.absolute(path))
        elif re.search(r"[*?\[]", path):
            matches = _glob(path)
            if not matches:
                raise UserError(f"{path} matches no file; give tars, for example data/train-{{000000..000009}}.tar")
            paths += matches
        elif storage.is_folder(path):
            matches = tars_of(path)
            if not matches:
                raise UserError(f"{path} holds no .tar file")
            paths += matches
        elif storage.exists(path):
            paths.append(storage.absolute(path))
        else:
            raise UserError(f"{path} does not exist; give tars, for example data/train-{{000000..000009}}.tar")
    return list(dict.fromkeys(paths))


def covered(patterns: Iterable[str], paths: Iterable[str]) -> list[str]:
    """Keep the paths, existing or not, that a folder or glob among the patterns covers."""
    every = {storage.absolute(one) for pattern in patterns for one in expand_braces(pattern)}
    globs = [one for one in every if re.search(r"[*?\[]", one)]
    return [path for path in paths if path.rpartition("/")[0] in every or any(_matches(one, path) for one in globs)]


def _matches(pattern: str, path: str) -> bool:
    return path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern)


def _glob(pattern: str) -> list[str]:
    pattern = storage.absolute(pattern)
    folder = pattern[: re.search(r"[*?\[]", pattern).start()].rpartition("/")[0]  # type: ignore[union-attr]
    return [path for path in storage.list_files(folder) if _matches(pattern, path)]
