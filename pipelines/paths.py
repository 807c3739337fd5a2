"""Which shards a pattern names."""

from __future__ import annotations

import re

from pipelines import storage
from pipelines.errors import UserError


def expand(pattern: str) -> list[str]:
    """Paths of the shards that a pattern names: ``{000..009}`` ranges and ``{a,b}`` lists, then globs; URIs alike.

    Raises:
        UserError: nothing matches, or a named file is not there.
    """
    found: list[str] = []
    for path in expand_braces(pattern):
        if re.search(r"[*?\[]", path):
            matches = _glob(path)
            if not matches:
                raise UserError(f"{path} matches no file; give tars, for example data/train-{{000000..000009}}.tar")
            found += matches
        elif storage.is_folder(path):
            matches = [name for name in storage.list_files(path, recursive=False) if name.endswith(".tar")]
            if not matches:
                raise UserError(f"{path} holds no .tar file")
            found += matches
        elif storage.exists(path):
            found.append(storage.absolute(path))
        else:
            raise UserError(f"{path} does not exist; give tars, for example data/train-{{000000..000009}}.tar")
    return list(dict.fromkeys(found))


def expand_braces(pattern: str) -> list[str]:
    """Every text that ``{000..009}`` and ``{a,b}`` in a pattern stand for, in order.

    Example:
        >>> expand_braces("x-{08..10}.{a,b}")
        ['x-08.a', 'x-08.b', 'x-09.a', 'x-09.b', 'x-10.a', 'x-10.b']
    """
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        width = len(numbers[1]) if numbers[1].startswith("0") or len(numbers[1]) == len(numbers[2]) else 0
        choices = [f"{number:0{width}d}" for number in range(first, last + 1)]
    else:
        choices = match[1].split(",")
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [before + choice + rest for choice in choices for rest in expand_braces(after)]


def _glob(pattern: str) -> list[str]:
    import fnmatch

    pattern = storage.absolute(pattern)
    folder = pattern[: re.search(r"[*?\[]", pattern).start()].rpartition("/")[0]  # type: ignore[union-attr]
    depth = pattern.count("/")
    return [
        path for path in storage.list_files(folder) if path.count("/") == depth and fnmatch.fnmatchcase(path, pattern)
    ]
