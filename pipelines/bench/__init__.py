"""Benchmarks: one module per command, each with `run` and `table`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pipelines.errors import UserError
from pipelines.files import storage


def save(result: dict[str, Any], path: str) -> None:
    """Write the result of a benchmark as JSON."""
    storage.write_atomic(storage.target(path), (json.dumps(result, indent=2) + "\n").encode())


def chosen_of(given: Iterable[str], known: Iterable[str], option: str) -> list[str]:
    """What an option asks for; nothing given: all.

    Raises:
        UserError: something is not known.
    """
    allowed = list(known)
    chosen = list(given) or allowed
    for name in chosen:
        if name not in allowed:
            raise UserError(f"{option} {name}, allowed: {', '.join(allowed)}")
    return chosen
