"""Texts that can be no path."""

from __future__ import annotations

from pipelines.errors import UserError

LONGEST = 4096  # characters of a path
LONGEST_NAME = 255  # bytes of a name in it, on a disk


def check_place(path: str) -> None:
    """Raise UserError if no path or address can be so: it holds a NUL, is too long or not UTF-8."""
    if "\0" in path or len(path) > LONGEST:
        raise UserError(f"{path[:60]!r}... can be no path: it holds a NUL, or more than {LONGEST:,} characters")
    if (shown := path.encode("utf-8", "backslashreplace").decode()) != path:
        raise UserError(f"{shown}: its name is not UTF-8; rename it")


def check_names(path: str) -> None:
    """Raise UserError if a name in a path is longer than a disk takes; patterns are no names."""
    for name in path.split("/"):
        if len(name.encode()) > LONGEST_NAME and not set("{*?[") & set(name):
            raise UserError(f"{name[:60]}... can be no name: it has more than {LONGEST_NAME} bytes")
