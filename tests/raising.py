"""A call that ends in an error, in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def refused(
    error: type[Exception] | tuple[type[Exception], ...],
    words: str,
    call: Callable[..., object],
    /,
    *arguments: Any,
    **settings: Any,
) -> None:
    """The call raises this error, in whose message the pattern is found."""
    with pytest.raises(error, match=words):
        call(*arguments, **settings)
