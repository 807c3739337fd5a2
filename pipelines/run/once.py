"""Work that several runs have in common is done once: the first that asks for it gets it, the others a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Work = TypeVar("Work")


class Once(Generic[Work]):
    """Pieces of work of some runs, of which those of one identity are done once.

    Args:
        every: all pieces, in the order in which they are asked for.
        identity: what two pieces share that make the same.
        done: whether a piece is there already.
    """

    def __init__(self, every: Iterable[Work], identity: Callable[[Work], str], done: Callable[[Work], bool]) -> None:
        self.every = list(every)
        self.identity, self.done = identity, done
        self.first: dict[str, Work] = {}
        for work in self.every:
            self.first.setdefault(identity(work), work)

    def todo(self) -> list[Work]:
        """The pieces to do: the first of each identity that is not there."""
        return [work for work in self.first.values() if not self.done(work)]

    def share(self, copy: Callable[[Work, Work], None]) -> None:
        """Copy what is done, by ``copy(done, piece)``, to the pieces that are not there yet."""
        for work in self.every:
            if not self.done(work):
                copy(self.first[self.identity(work)], work)
