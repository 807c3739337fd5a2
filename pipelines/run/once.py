"""Work that several runs share is done once: the first run gets the result, the others a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Work = TypeVar("Work")


class Once(Generic[Work]):
    """Pieces of work of some runs; pieces with the same identity are done once.

    Args:
        every: all pieces, in order.
        identity: of a piece; equal for two pieces with the same result.
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
        """Copy results to the pieces that are not there yet, by ``copy(done, piece)``."""
        for work in self.every:
            if not self.done(work):
                copy(self.first[self.identity(work)], work)
