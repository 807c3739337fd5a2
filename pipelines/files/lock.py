"""Hold a folder for one process: by flock on a disk, by an object that is renewed on an object store."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipelines.console import say
from pipelines.errors import UserError
from pipelines.files.conditional import Conditional
from pipelines.files.storage import is_uri, read_json, refuse_climbing, remove, write_json

BEAT_SECONDS = 20.0  # how often the holder of a lock on an object store renews it
STALE_SECONDS = 120.0  # a lock not renewed for so long belongs to a dead process
READS = 5  # of a lock, at most
SETTLE_SECONDS = 5.0  # after which a lock is read back, where a store does not write on condition


@contextmanager
def lock(folder: str) -> Iterator[Callable[[], bool]]:
    """Hold a folder for this process; the lock ends with the block, or with the process however it dies.

    Yields:
        A function: whether the folder was deleted meanwhile; on an object store always False.

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
    _claim(folder, me)
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            write_json(path, _content(me))

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield lambda: False
    finally:
        ended.set()
        thread.join()
        remove(path)


def _claim(folder: str, me: str) -> None:
    """Write the lock of a folder on an object store; of two starts in the same moment, one gets it.

    Stores that write on condition decide. With others the lock is read back after a while.

    Raises:
        UserError: another process holds the folder.
    """
    store = _conditional(f"{folder}/.lock")
    before = None if store is None else store.version()
    if _outlived(folder):
        before = None
    written = None if store is None else store.write(json.dumps(_content(me)).encode(), before)
    if written is None:
        write_json(f"{folder}/.lock", _content(me))
        time.sleep(SETTLE_SECONDS)
        written = (_held(folder) or {}).get("by") == me
    if not written:
        raise UserError(f"{folder} is in use by {(_held(folder) or {}).get('by', 'another process')}; wait for it")


def _content(me: str) -> dict[str, Any]:
    return {"by": me, "time": time.time()}


def _conditional(path: str) -> Conditional | None:
    try:
        return Conditional(path)
    except ValueError:
        return None


def _outlived(folder: str) -> bool:
    """Wait until the holder of a lock is known to be dead; whether the lock is gone.

    Raises:
        UserError: it lives.
    """
    held = _held(folder)
    if held is None:
        return True
    end = time.monotonic() + STALE_SECONDS - max(0.0, time.time() - held["time"])
    if time.monotonic() < end:
        say("wait", f"{folder} was in use by {held['by']}: whether that still lives shows within {STALE_SECONDS:.0f} s")
    while time.monotonic() < end:
        time.sleep(BEAT_SECONDS / 10)
        now = _held(folder)
        if now is None:
            return True
        if now != held:
            raise UserError(f"{folder} is in use by {held['by']}; wait for it")
    return False


def _held(folder: str) -> dict[str, Any] | None:
    """The content of a folder's lock; None: there is none."""
    for _ in range(READS):
        try:
            return dict(read_json(f"{folder}/.lock"))
        except FileNotFoundError:
            return None
        except ValueError:  # it was replaced by a longer one while it was read
            continue
    raise UserError(f"{folder}/.lock cannot be read; take it away if no run is at work there")


def _who() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
