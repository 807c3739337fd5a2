"""Work on a folder in parts: a few in this process, many as Ray tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, Protocol, TypeVar

from pipelines.console import bars
from pipelines.files.lock import lock
from pipelines.run.heartbeat import progress_lines
from pipelines.run.machine import interruptible, note, watched
from pipelines.run.ray_session import mapped, ray_cluster

HERE = 4  # parts up to which a cluster would take longer to start than the work takes
_OBJECT_STORE_MB = 300


class TaskMap(Protocol):
    """Calls a function on many arguments; results in order.

    Args:
        function: of a task.
        arguments: of each task.
        title: of the bar.
        memory: bytes that a task takes; 0: it is not known to take much.
    """

    def __call__(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], *, title: str, memory: int = 0
    ) -> list[Any]:
        """The results of the tasks, in order."""


@contextmanager
def on_parts(folder: str, address: str | None, stage: str = "lot") -> Iterator[TaskMap]:
    """Hold a folder, and work on parts; Ray starts when there are many for the first time.

    ``stage``: the name before lines of progress.

    Raises:
        UserError: another process holds the folder, or no cluster answers at the address.
        Interrupted: Ctrl-C or SIGTERM.
    """

    with interruptible(), lock(folder), watched(folder), progress_lines(stage), ExitStack() as stack:
        is_running = False

        def each(
            function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], *, title: str, memory: int = 0
        ) -> list[Any]:
            nonlocal is_running
            if address is None and len(arguments) <= HERE:
                with bars("parts") as progress:
                    return [function(*one) for one in progress.track(arguments, description=title)]
            if not is_running:
                stack.enter_context(ray_cluster(address, object_store_mb=_OBJECT_STORE_MB))
                note(folder)
                is_running = True
            return mapped(function, arguments, "parts", title, memory=memory)

        yield each


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
