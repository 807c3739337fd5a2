"""Let the calls of an encoder actor overlap: one commits while the next one asks, and decodes before that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Lock


class Turns:
    """Who may do what in an actor.

    ``asking`` is held by the one call that uses the encoders, ``committing`` by the one that writes files.
    """

    def __init__(self) -> None:
        self.asking, self.committing = Lock(), Lock()
        self.changed = Condition()
        self.beside = 0
        self.taken = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Work beside other calls. A worker that dies in the meantime leaves markers of all of them."""
        with self.changed:
            self.changed.wait_for(lambda: not self.taken)
            self.beside += 1
        try:
            yield
        finally:
            with self.changed:
                self.beside -= 1
                self.changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Work while no other call does, so that a death has one cause."""
        with self.changed:
            self.changed.wait_for(lambda: not self.taken and not self.beside)
            self.taken = True
        try:
            yield
        finally:
            with self.changed:
                self.taken = False
                self.changed.notify_all()
