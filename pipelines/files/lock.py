"""Hold a folder for one process: by flock on a disk, by an object that is renewed on an object store."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.console import say
from pipelines.errors import UserError
from pipelines.files.storage import exists, is_uri, read_json, refuse_climbing, remove, write_json

BEAT_SECONDS = 20.0  # how often the holder of a lock on an object store renews it
STALE_SECONDS = 120.0  # a lock not renewed for so long belongs to a dead process


@contextmanager
def lock(folder: str) -> Iterator[Callable[[], bool]]:
    """Hold a folder for this process; the lock ends with the block, or with the process however it dies.

    Yields:
        What says whether the folder was deleted meanwhile; of an object store it never does.

    Raises:
        UserError: another process holds it, or the path leads out of its folder.
    """
    refuse_climbing(folder)
    with _remote_lock(folder) if is_uri(folder) else _local_lock(folder) as deleted:
        yield deleted


@contextmanager
def _local_lock(folder: str) -> Iterator[Callable[[], bool]]:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        handle = (Path(folder) / ".lock").open("a+")
    except OSError as error:
        raise UserError(f"{folder}: cannot write there ({error.strerror}); choose another --out") from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.seek(0)
            raise UserError(f"{folder} is in use by {handle.read() or 'another process'}; wait for it") from error
        handle.truncate(0)
        handle.write(_who())
        handle.flush()
        yield lambda: os.fstat(handle.fileno()).st_nlink == 0
        handle.truncate(0)


@contextmanager
def _remote_lock(folder: str) -> Iterator[Callable[[], bool]]:
    path = f"{folder}/.lock"
    me = f"{_who()} {uuid.uuid4().hex}"
    if exists(path):
        _outlive(path, folder)
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            write_json(path, {"by": me, "time": time.time()})

    write_json(path, {"by": me, "time": time.time()})
    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield lambda: False
    finally:
        ended.set()
        thread.join()
        remove(path)


def _outlive(path: str, folder: str) -> None:
    """Return once the holder of a lock is known to be dead; raise as soon as it shows that it lives."""
    held = read_json(path)
    end = time.monotonic() + STALE_SECONDS - max(0.0, time.time() - held["time"])
    if time.monotonic() < end:
        say("wait", f"{folder} was in use by {held['by']}: whether that still lives shows within {STALE_SECONDS:.0f} s")
    while time.monotonic() < end:
        time.sleep(BEAT_SECONDS / 10)
        if not exists(path):
            return
        if read_json(path) != held:
            raise UserError(f"{folder} is in use by {held['by']}; wait for it")


def _who() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
