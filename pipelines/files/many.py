"""Many files at a time: a store answers slowly, but many requests at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipelines.files import storage
from pipelines.files.conditional import Conditional


def streamed(function: Callable[[str], Any], paths: Sequence[str]) -> Iterator[Any]:
    """A function of many paths by threads, one result after another in order: few are ahead of the one taken."""
    waiting = deque[Future[Any]]()
    with ThreadPoolExecutor(storage.THREADS) as pool:
        for path in paths:
            waiting.append(pool.submit(function, path))
            if len(waiting) > storage.THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def remove_files(paths: Sequence[str]) -> None:
    """Remove files; those that are not there do not matter. Object stores see one request for a thousand.

    Raises:
        UserError: a path leads out of its folder.
    """
    by_folder: dict[str, list[str]] = {}
    for path in paths:
        storage.refuse_climbing(path)
        folder, _, name = path.rpartition("/")
        by_folder.setdefault(folder, []).append(name)
    for folder, names in by_folder.items():
        with suppress(ValueError):  # no store that removes on request
            if storage.is_uri(folder):
                one = Conditional(f"{folder}/{names[0]}")
                above = one.name.removesuffix(names[0])
                if one.remove([f"{above}{name}" for name in names]):
                    continue
        for name in names:
            if storage.is_uri(folder):
                storage.remove(f"{folder}/{name}")
            else:
                Path(storage.absolute(f"{folder}/{name}")).unlink(missing_ok=True)
