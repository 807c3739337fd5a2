"""One small Ray actor on which workers note how far they are, or why they gave up, and learn that they are to stop."""

from __future__ import annotations

import time
from typing import Any

REPORT_SECONDS = 0.5


class Board:
    """Progress by task name: units done and a short note."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[float, str]] = {}
        self.faults: dict[str, str] = {}
        self.working: set[str] = set()
        self.stopping = False

    def note(self, name: str, done: float, note: str) -> bool:
        """Record how far a task is; whether it is to stop."""
        self.entries[name] = (done, note)
        self.working.add(name)
        return self.stopping

    def leave(self, name: str) -> None:
        """Record that a task has nothing more to save."""
        self.working.discard(name)

    def stop(self) -> list[str]:
        """Tell every task that notes something to stop; returns those that work."""
        self.stopping = True
        return sorted(self.working)

    def accuse(self, name: str, fault: str) -> None:
        """Record that a task ended because of what the user gave."""
        self.faults[name] = fault
        self.leave(name)

    def fault(self, name: str) -> str | None:
        """What a task ended for, if it did."""
        return self.faults.get(name)

    def read(self) -> dict[str, tuple[float, str]]:
        """All notes so far."""
        return self.entries


class Reporter:
    """A worker's side of the board: at most one note per half second, and after the last was answered; never waits.

    ``stop``: whether the task is to stop, as the last note was answered.
    """

    def __init__(self, board: Any, name: str) -> None:
        self.board = board
        self.name = name
        self.text = ""
        self.sent = 0.0
        self.answer: Any = None
        self.stop = False

    def __call__(self, done: float, note: str | None = None) -> None:
        """Note ``done`` units, unless one was sent a moment ago; without a note the last one stays."""
        self.text = self.text if note is None else note
        if time.monotonic() - self.sent >= REPORT_SECONDS and self._answered():
            self.sent = time.monotonic()
            self.answer = self.board.note.remote(self.name, done, self.text)

    def leave(self) -> None:
        """Tell that there is nothing more to save."""
        import ray

        ray.get(self.board.leave.remote(self.name))

    def _answered(self) -> bool:
        """Whether the last note was answered; a new one before that would lose what the board says."""
        import ray

        ready = [] if self.answer is None else ray.wait([self.answer], timeout=0)[0]
        self.stop = self.stop or any(ray.get(ready))
        return self.answer is None or bool(ready)
