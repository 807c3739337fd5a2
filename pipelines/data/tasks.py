"""How work on shards is done: as Ray tasks in a run, one after the other in this process elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

AT_ONCE = 200_000  # samples whose shards one task takes, if it only reads what a scan kept of them
Entry = TypeVar("Entry")


def one_by_one(
    function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], *, title: str, memory: int = 0
) -> list[Any]:
    """Call a function in this process."""
    del title, memory
    return [function(*given) for given in arguments]


def parts(entries: Sequence[Entry], size: Callable[[Entry], int]) -> Iterator[list[Entry]]:
    """Consecutive entries in lists whose sizes add up to `AT_ONCE` or little more."""
    part: list[Entry] = []
    held = 0
    for entry in entries:
        part.append(entry)
        held += size(entry)
        if held >= AT_ONCE:
            yield part
            part, held = [], 0
    if part:
        yield part
