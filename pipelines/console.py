"""What the user sees while stages run: one line per finished step and a bar for everything longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

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
LINE_SECONDS = 30.0  # between lines of progress where there is no terminal


def say(stage: str, message: str) -> None:
    """Print one line of a stage's progress to stderr."""
    console.print(f"[bold]{stage:>9}[/bold]  {message}", soft_wrap=True)


@contextmanager
def silence() -> Iterator[None]:
    """Print nothing while the block runs: for stages that somebody else tells of."""
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before


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


@contextmanager
def meter(stage: str, title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Progress of one long step: a bar with rate and time left; without a terminal a line now and then.

    Yields:
        What to call with the number of units done so far.
    """
    started = said = monotonic()
    with bars(unit) as progress:
        task = progress.add_task(title, total=total, note="")

        def done(units: int) -> None:
            nonlocal said
            now = monotonic()
            rate = units / max(1e-9, now - started)
            progress.update(task, completed=units, note=f"  {_per_second(rate)} {unit}/s")
            if not console.is_terminal and now - said >= LINE_SECONDS and units < total:
                said = now
                say(stage, f"{title}: {progress_line(units, total, rate, unit)}")

        yield done


def progress_line(units: int, total: int, rate: float, unit: str) -> str:
    """How far a step is, and how long it still takes at a rate per second.

    Example:
        >>> progress_line(1000, 361_000, 100.0, "images")
        '1,000 of 361,000 images (0.3%), 100 images/s, about 1 h 00 min left'
    """
    line = f"{units:,} of {total:,} {unit} ({units / total:.1%}), {_per_second(rate)} {unit}/s"
    if not rate:
        return line
    minutes, seconds = divmod(round((total - units) / rate), 60)
    left = f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {seconds:02d} s"
    return f"{line}, about {left} left"


def _per_second(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 or not rate else f"{rate:.2g}"


def count_of(number: int, one: str, several: str) -> str:
    """A number with its word.

    Example:
        >>> count_of(1, "query", "queries"), count_of(3, "query", "queries")
        ('1 query', '3 queries')
    """
    return f"{number:,} {one if number == 1 else several}"
