"""Paths in a config: the fields that hold them, and the names that braces in them stand for."""

from __future__ import annotations

import re
from typing import Any

from pipelines.errors import UserError
from pipelines.files import storage

FILE_FIELDS = frozenset({"path", "root", "table", "weights", "text_weights", "keys"})
"""Fields of a config that name files or folders, wherever they stand, in sweeps and searches too."""


def spelled_out(value: Any, name: str = "") -> Any:
    """Plain values of a config with every path of files made absolute; ``name`` is the field that holds the value."""
    if isinstance(value, dict):
        return {key: spelled_out(inner, str(key).rpartition(".")[2]) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [spelled_out(inner, name) for inner in value]
    return storage.absolute(value) if isinstance(value, str) and value and name in FILE_FIELDS else value


def expand_braces(pattern: str) -> list[str]:
    """Every text that ``{000..009}`` and ``{a,b}`` in a pattern stand for, in order; ``[{]`` begins none.

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
        choices, numbers = [""] if inside is None else inside.split(","), _RANGE.fullmatch(inside or "")
        if numbers:
            width = len(numbers[1]) if numbers[1].startswith("0") or len(numbers[1]) == len(numbers[2]) else 0
            choices = [f"{number:0{width}d}" for number in range(int(numbers[1]), int(numbers[2]) + 1)]
        named = [before + text + choice for before in named for choice in choices]
    return named


_BRACES = re.compile(r"(?<!\[)\{([^{}]*,[^{}]*|[0-9]{1,18}\.\.[0-9]{1,18})\}")  # others stand for themselves
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


LONGEST = 120
SHOWN = 80
RULE = f"letters, digits and . _ + = -, beginning with a letter or digit, at most {LONGEST} bytes"
_NAME = re.compile(r"[^\W_][\w.+=-]*")


def is_name(text: str) -> bool:
    """Tell whether a text can name a file or folder: never ``..``, never a path, never hidden.

    Example:
        >>> [is_name(text) for text in ("target+noise-0.5", "../../x", "..", "a/b", "")]
        [True, False, False, False, False]
    """
    return _NAME.fullmatch(text) is not None and len(text.encode()) <= LONGEST


def check_name(place: str, text: str) -> str:
    """The name itself.

    Raises:
        ValueError: it can name no file; the message tells where it stands and what is allowed.
    """
    if not is_name(text):
        raise ValueError(f"{place} = {shortened(text)}: allowed are {RULE}; choose another name")
    return text


def shortened(value: object) -> str:
    """A value as it is shown in a message: quoted if it is text, in the middle cut off if it is long.

    Example:
        >>> shortened("a" * 200)
        "'aaaaaaaaaaaaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaaaaaaaaaaaaaa'"
    """
    shown = "null" if value is None else repr(value)
    return shown if len(shown) <= SHOWN else f"{shown[:29]}...{shown[-30:]}"
