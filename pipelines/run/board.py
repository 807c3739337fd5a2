"""One small Ray actor where workers note progress and faults, and learn what comes next and when to stop."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

REFRESH_SECONDS = 0.5  # between two looks at the board, and between two notes of a task


class Note(NamedTuple):
    """How far a task is: units done, a short text, and units in all, 0 where the reader knows that."""

    done: float
    text: str = ""
    total: float = 0


class Board:
    """Progress by task name, and the tasks that each lane takes in turn."""

    def __init__(self) -> None:
        self.wipe()

    def wipe(self) -> None:
        """Forget everything: another stage begins."""
        self.entries: dict[str, Note] = {}
        self.faults: dict[str, str] = {}
        self.working: set[str] = set()
        self.finished: list[str] = []
        self.turns: dict[str, list[str | None]] = {}
        self.stopping = False

    def give(self, lane: str, name: str | None) -> None:
        """Append a task to those of a lane; None: there are no more."""
        self.turns.setdefault(lane, []).append(name)

    def turn(self, lane: str, number: int) -> tuple[bool, str | None]:
        """The task of a lane with this number, from 0, and whether it is known yet."""
        turns = self.turns.get(lane, [])
        return (True, turns[number]) if number < len(turns) else (False, None)

    def finish(self, name: str) -> None:
        """Record that the work of a task is done."""
        self.finished.append(name)

    def done(self) -> list[str]:
        """Tasks that finished since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def note(self, name: str, note: Note) -> bool:
        """Record the progress of a task; whether it has to stop."""
        self.entries[name] = note
        self.working.add(name)
        return self.stopping

    def leave(self, name: str) -> None:
        """Record that a task has nothing more to save."""
        self.working.discard(name)

    def stop(self) -> list[str]:
        """Tell every task to stop at its next note; returns those at work."""
        self.stopping = True
        return sorted(self.working)

    def accuse(self, name: str, fault: str) -> None:
        """Record that a task ended with a fault of the user."""
        self.faults[name] = fault
        self.leave(name)

    def all_faults(self) -> dict[str, str]:
        """The faults of all tasks that ended with one."""
        return self.faults

    def read(self) -> dict[str, Note]:
        """All notes so far."""
        return self.entries


class Reporter:
    """The worker's side of the board; it never waits.

    It sends one note per half second at most, and none before the last was answered. ``stop``: whether an answer told
    the task to stop.
    """

    def __init__(self, board: Any, name: str) -> None:
        self.board = board
        self.name = name
        self.text = ""
        self.sent = 0.0
        self.answer: Any = None
        self.stop = False

    def __call__(self, done: float, text: str | None = None, total: float = 0) -> None:
        """Note ``done`` units of ``total``, unless one was sent a moment ago; without a text the last one stays."""
        self.text = self.text if text is None else text
        if time.monotonic() - self.sent >= REFRESH_SECONDS and self._answered():
            self.sent = time.monotonic()
            self.answer = self.board.note.remote(self.name, Note(done, self.text, total))

    def leave(self) -> None:
        """Tell that there is nothing more to save."""
        import ray

        ray.get(self.board.leave.remote(self.name))

    def _answered(self) -> bool:
        """Tell whether the last note was answered; a new one before that would lose what the board says."""
        import ray

        ready = [] if self.answer is None else ray.wait([self.answer], timeout=0)[0]
        self.stop = self.stop or any(ray.get(ready))
        return self.answer is None or bool(ready)
