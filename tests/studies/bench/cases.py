"""The cases that a benchmark is asked for, and the date and versions of its result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mi_core.provenance import now, versions
from pipelines.errors import UserError


def chosen_of(given: Iterable[str], known: Iterable[str]) -> list[str]:
    """The cases that ``--case`` asks for; nothing given: all.

    Raises:
        UserError: a case is not known.
    """
    allowed = list(known)
    chosen = list(given) or allowed
    for name in chosen:
        if name not in allowed:
            raise UserError(f"--case {name}, allowed: {', '.join(allowed)}")
    return chosen


def dated(**result: Any) -> dict[str, Any]:
    """A result with its date and the versions of the packages."""
    return {**result, "created": now(), "versions": versions()}
