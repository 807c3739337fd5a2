"""Expand patterns to the paths of shards: tars, or Parquet files."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from mi_core.hashing import digests64
from pipelines.config.paths import expand_braces
from pipelines.data.read.samples import Portion
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.stores import connected

_PACKED = (*(f".tar.{packed}" for packed in ("gz", "bz2", "zst", "lz4", "xz")), ".tgz", ".tbz2", ".tzst", ".txz")
_MANY = 16  # named shards from which on their folder is listed instead


@dataclass(frozen=True)
class Shards:
    """Files of one kind.

    Args:
        endings: of their names; the first is the usual one.
        advice: of messages: what to give.
    """

    endings: tuple[str, ...]
    advice: str

    def paths_in(self, folder: str) -> list[str]:
        """Paths of the files directly in a folder."""
        return [path for path in storage.list_files(folder, recursive=False) if path.endswith(self.endings)]


TARS = Shards((".tar", *_PACKED), "give tars, for example data/train-{000000..000009}.tar")
PARQUET = Shards((".parquet",), "give Parquet files, for example data/train-*.parquet")


def expand(pattern: str, kind: Shards = TARS) -> list[str]:
    """Expand ``{000..009}`` ranges, ``{a,b}`` lists and globs of a path or URI to the files that they name.

    A letter in brackets stands for itself, so ``x[{]1,2}[*].tar`` names ``x{1,2}*.tar``. What matches nothing, or names
    no range or list, stands for itself, as in a shell.

    Raises:
        UserError: nothing matches, a named file is not there, or a store does not answer.
    """
    try:
        with connected():
            return list(dict.fromkeys(_expanded(pattern, kind)))
    except OSError as error:
        raise UserError(f"{pattern} cannot be listed: {' '.join(str(error).split())}") from error


def _expanded(pattern: str, kind: Shards) -> list[str]:
    paths: list[str] = []
    named = expand_braces(pattern)
    listed = storage.existing(map(storage.absolute, named)) if len(named) > _MANY else set()
    for path in named:
        if storage.absolute(path) in listed:
            paths.append(storage.absolute(path))
        elif _is_glob(path) and (matches := _glob(path)):
            paths += matches
        elif storage.is_folder(path):
            matches = kind.paths_in(path)
            if not matches:
                raise UserError(f"{path} holds no {kind.endings[0]} file")
            paths += matches
        elif storage.exists(path):
            paths.append(storage.absolute(path))
        else:
            what = "matches no file" if _is_glob(path) else "does not exist"
            literal = "; an address is read as it stands: %20 is no blank" if re.search("%[0-9A-Fa-f]{2}", path) else ""
            raise UserError(f"{path} {what}; {kind.advice}{literal}")
    return paths


def _is_glob(path: str) -> bool:
    return re.search(r"[*?\[]", path) is not None


def names_of(paths: Sequence[str], ending: str) -> list[str]:
    """A name for each file, fit for a file name: its own without an ending, numbered if two are alike."""
    names = [PurePosixPath(path).name.removesuffix(ending) for path in paths]
    if len(set(names)) == len(names):
        return names
    return [f"{index:06d}-{name}" for index, name in enumerate(names)]


def covered(patterns: Iterable[str], paths: Iterable[str]) -> list[str]:
    """Keep the paths, existing or not, that a folder or glob among the patterns covers."""
    every = {storage.absolute(one) for pattern in patterns for one in expand_braces(pattern)}
    globs = [one for one in every if _is_glob(one)]
    return [path for path in paths if path.rpartition("/")[0] in every or any(_matches(one, path) for one in globs)]


def _matches(pattern: str, path: str) -> bool:
    return path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern)


def _glob(pattern: str) -> list[str]:
    pattern = storage.absolute(pattern)
    folder = pattern[: re.search(r"[*?\[]", pattern).start()].rpartition("/")[0]  # type: ignore[union-attr]
    return [path for path in storage.list_files(folder) if _matches(pattern, path)]


def sampled(items: Sequence[Portion], source: str, wanted: float | None) -> list[Portion]:
    """Some items of a source, in their order; a larger number keeps those of a smaller one.

    Args:
        items: of the source.
        source: its name.
        wanted: how many: a number, or a fraction below 1; None: all.

    Example:
        >>> items = [Portion(f"{number:03d}") for number in range(10)]
        >>> few, more = (sampled(items, "mine", wanted) for wanted in (3, 0.5))
        >>> len(few), len(more), set(few) < set(more)
        (3, 5, True)
    """
    if wanted is None:
        return list(items)
    count = math.ceil(wanted * len(items)) if wanted < 1 else int(wanted)
    order = np.argsort(digests64(("shards", source), [item.name for item in items]), kind="stable")
    return [items[row] for row in sorted(order[:count].tolist())]
