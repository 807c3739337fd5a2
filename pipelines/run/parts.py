"""Work on a folder in parts: a few in this process, many as Ray tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from pipelines.console import bars
from pipelines.files.lock import lock
from pipelines.run.heartbeat import progress_lines
from pipelines.run.interrupts import interruptible
from pipelines.run.leftovers import note, watched
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
