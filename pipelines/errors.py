"""The error that ends a command with exit code 2."""

from __future__ import annotations


class UserError(ValueError):
    """What the user gave is wrong; the message is one line that names the place and the remedy."""
