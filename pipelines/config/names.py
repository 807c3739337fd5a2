"""Names that users give and that become names of files and folders."""

from __future__ import annotations

import re

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
