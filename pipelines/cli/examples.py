"""The example with which the help of a command ends."""

from __future__ import annotations

PREFIX = "Example: "


def example(arguments: str) -> str:
    """The last line of a command's help.

    Args:
        arguments: what follows ``encoder-audit``; without square brackets, which rich reads as styles.
    """
    return f"{PREFIX}encoder-audit {arguments}"
