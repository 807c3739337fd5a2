"""Lines and bars for the user while stages run: one line per finished step and a bar for everything longer.

The logger ``encoder_audit`` gets the same lines, with the stage as ``record.stage``.
"""

from __future__ import annotations

import json
import logging
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from rich import progress as rich_progress
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text


class _Plain(Console):
    """A console to which no text sends signs of control, such as escapes in a hostile name: each is replaced."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(without_control(segment.text), segment.style)


def without_control(text: str) -> str:
    """A text without signs of control but ends of lines and tabs.

    Example:
        >>> without_control("red\x1b[31m")
        'red�[31m'
    """
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" or unicodedata.category(letter) == "Zs" else "\ufffd"
        for letter in text
    )


output = _Plain(markup=False)
"""The console of results; names and paths of users stand as they are, brackets included."""
console = _Plain(stderr=True, highlight=False, markup=False)
"""The console of progress; likewise."""
_open: list[Bars] = []  # steps under way, the innermost last
_said = [monotonic()]  # when the last line was printed
_silent = [False]
LOGGER = logging.getLogger("encoder_audit")
LOGGER.setLevel(logging.INFO)
LOGGER.addHandler(logging.NullHandler())


def say(stage: str, message: str) -> None:
    """Print one line of a stage's progress to stderr."""
    _said[0] = monotonic()
    if not _silent[0]:
        LOGGER.info(message, extra={"stage": stage})
        console.print(Text.assemble((f"{stage:>9}", "bold"), f"  {message}"), soft_wrap=True)


def complain(message: str) -> None:
    """Print the one line that a command ends with when it fails."""
    LOGGER.error(message, extra={"stage": "end"})
    if not console.quiet:
        print(without_control(f"encoder-audit: {message}"), file=sys.stderr)  # noqa: T201


class _Json(logging.Formatter):
    """A line of JSON for each line: time in UTC, level, stage, message."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "stage": getattr(record, "stage", "")}
        return json.dumps(line | {"message": record.getMessage()})


def log_as_json() -> None:
    """From now on, write lines of JSON to stderr in place of lines for people; no bars are drawn."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json())
    LOGGER.addHandler(handler)
    LOGGER.propagate = False
    console.quiet = True


@dataclass(frozen=True)
class Piece:
    """A piece of work under way: ``done`` of ``total`` units, ``rate`` per second so far; total 0: nothing to count."""

    title: str
    done: float
    total: float
    unit: str
    rate: float

    def line(self) -> str:
        """How far it is, with rate and time left where they are known.

        Example:
            >>> Piece("querying", 1000, 361_000, "images", 100.0).line()
            'querying: 1,000 of 361,000 images (0.3%), 100 images/s, about 1 h 00 min left'
        """
        if not self.total:
            return f"{self.title}: under way"
        line = f"{self.title}: {int(self.done):,} of {int(self.total):,} {self.unit} ({self.done / self.total:.1%})"
        if self.rate <= 0:
            return line
        left = duration((self.total - self.done) / self.rate)
        return f"{line}, {_per_second(self.rate)} {self.unit}/s, about {left} left"


class Bars(rich_progress.Progress):
    """Bars whose rates are means since each began; `pieces` tells of them where they are not drawn."""

    def __init__(self, unit: str, *columns: Any, **settings: Any) -> None:
        super().__init__(*columns, **settings)
        self.unit = unit
        self.begun: dict[rich_progress.TaskID, tuple[float, float]] = {}

    def add_task(self, description: str, *arguments: Any, **fields: Any) -> rich_progress.TaskID:
        """A bar; ``unit`` and ``note`` may be left out."""
        return super().add_task(description, *arguments, **{"unit": self.unit, "note": ""} | fields)

    def begin(self, task: rich_progress.TaskID, done: float = 0) -> None:
        """Count the rate of a bar from now, and from what was done before."""
        self.begun[task] = (done, monotonic())
        self.update(task, completed=done)

    def pieces(self) -> list[Piece]:
        """Every bar that has begun and is not full."""
        now, found = monotonic(), []
        for task in self.tasks:
            if task.id in self.begun and not task.finished:
                before, started = self.begun[task.id]
                rate = (task.completed - before) / max(1e-9, now - started)
                found.append(Piece(task.description, task.completed, task.total or 0, task.fields["unit"], rate))
        return found


def under_way() -> list[Piece]:
    """The pieces of the innermost step that can be told of."""
    return next((found for shown in reversed(_open) if (found := shown.pieces())), [])


def is_quiet(seconds: float) -> bool:
    """Tell whether for so long there was no line, and no bar on a terminal shows what is under way."""
    return monotonic() - _said[0] >= seconds and all(shown.disable for shown in _open)


@contextmanager
def silence() -> Iterator[None]:
    """Print nothing while the block runs: for stages that somebody else tells of."""
    before, _silent[0], quiet, console.quiet = _silent[0], True, console.quiet, True
    try:
        yield
    finally:
        _silent[0], console.quiet = before, quiet


@contextmanager
def bars(unit: str, *, draw: bool = True) -> Iterator[Bars]:
    """Progress bars that vanish when done; nothing is drawn when stderr is no terminal."""
    progress = Bars(
        unit,
        rich_progress.TextColumn("          {task.description}", markup=False),
        rich_progress.BarColumn(bar_width=28),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TextColumn("{task.fields[unit]}{task.fields[note]}", markup=False),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (draw and console.is_terminal and not console.quiet),
    )
    _open.append(progress)
    try:
        with progress:
            yield progress
    finally:
        _open.remove(progress)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Name a long step that has nothing to count."""
    with bars("", draw=False) as progress:
        progress.begin(progress.add_task(title, total=None))
        yield


@contextmanager
def meter(title: str, total: int, unit: str, before: int = 0) -> Iterator[Callable[[int], None]]:
    """Progress of one long step, of which some units were done before: a bar with rate and time left.

    Yields:
        What to call with the number of units done so far.
    """
    started = monotonic()
    with bars(unit) as progress:
        task = progress.add_task(title, total=total)
        progress.begin(task, before)

        def done(units: int) -> None:
            rate = (units - before) / max(1e-9, monotonic() - started)
            progress.update(task, completed=units, note=f"  {_per_second(rate)} {unit}/s")

        yield done


def duration(seconds: float) -> str:
    """A time as people say it.

    Example:
        >>> duration(75), duration(7300)
        ('1 min 15 s', '2 h 01 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"


def _per_second(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 or not rate else f"{rate:.2g}"


def count_of(number: int, one: str, several: str) -> str:
    """A number with its word.

    Example:
        >>> count_of(1, "query", "queries"), count_of(3, "query", "queries")
        ('1 query', '3 queries')
    """
    return f"{number:,} {one if number == 1 else several}"
