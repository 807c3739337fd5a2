"""A DuckDB database for what needs all samples of a run at once: bounded memory, the rest goes to a disk."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

MOST_MEMORY = 2 * 2**30  # bytes; beyond, DuckDB uses the disk
_BASE, _EACH = 512 * 2**20, 200  # bytes that DuckDB and Python take, and bytes a sample


def memory_for(samples: int) -> int:
    """Bytes that a task takes that asks a database about so many samples."""
    return _BASE + min(MOST_MEMORY, _EACH * samples)


@contextmanager
def database(samples: int) -> Iterator[Any]:
    """A connection to a database of a folder of its own, which goes with the block.

    Args:
        samples: about how many it is asked about; they decide its memory.
    """
    import duckdb

    with tempfile.TemporaryDirectory(prefix="encoder-audit-") as folder:
        settings = {
            "memory_limit": f"{(memory_for(samples) - _BASE // 2) // 2**20}MB",
            "temp_directory": folder,
            "threads": 1,
            "preserve_insertion_order": False,
        }
        connection = duckdb.connect(f"{folder}/work.duckdb", config=settings)
        try:
            yield connection
        finally:
            connection.close()


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
