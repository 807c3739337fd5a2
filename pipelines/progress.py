"""One small Ray actor on which workers note how far they are, or why they gave up, for the driver to show."""

from __future__ import annotations

import time
from typing import Any

import ray

REPORT_SECONDS = 0.5


@ray.remote(num_cpus=0)
class Board:
    """Progress by task name: units done and a short note."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[int, str]] = {}
        self.faults: dict[str, str] = {}

    def note(self, name: str, done: int, note: str) -> None:
        """Record how far a task is."""
        self.entries[name] = (done, note)

    def accuse(self, name: str, fault: str) -> None:
        """Record that a task ended because of what the user gave."""
        self.faults[name] = fault

    def fault(self, name: str) -> str | None:
        """What a task ended for, if it did."""
        return self.faults.get(name)

    def read(self) -> dict[str, tuple[int, str]]:
        """All notes so far."""
        return self.entries


class Reporter:
    """A worker's side of the board: sends at most one note per half second, never waits."""

    def __init__(self, board: Any, name: str) -> None:
        self.board = board
        self.name = name
        self.sent = 0.0

    def __call__(self, done: int, note: str = "") -> None:
        """Note ``done`` units, unless one was sent a moment ago."""
        if time.monotonic() - self.sent >= REPORT_SECONDS:
            self.sent = time.monotonic()
            self.board.note.remote(self.name, done, note)
