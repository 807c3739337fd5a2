"""What the user sees while stages run: one line per finished step and a bar for everything longer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

console = Console(stderr=True, highlight=False)


def say(stage: str, message: str) -> None:
    """Print one line of a stage's progress to stderr."""
    console.print(f"[bold]{stage:>9}[/bold]  {message}", soft_wrap=True)


@contextmanager
def bars(unit: str) -> Iterator[Progress]:
    """Progress bars that vanish when done; nothing is drawn when stderr is no terminal."""
    progress = Progress(
        TextColumn("          {task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn(unit + "{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with progress:
        yield progress


def count_of(number: int, one: str, several: str) -> str:
    """A number with its word.

    Example:
        >>> count_of(1, "query", "queries"), count_of(3, "query", "queries")
        ('1 query', '3 queries')
    """
    return f"{number:,} {one if number == 1 else several}"
