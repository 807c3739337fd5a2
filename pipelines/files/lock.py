"""Hold a folder for one process: by flock on a disk, by an object that is renewed on an object store."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
import uuid
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipelines.console import say
from pipelines.errors import UserError
from pipelines.files.conditional import Conditional
from pipelines.files.storage import is_uri, read_json, refuse_climbing, remove, write_json

BEAT_SECONDS = 20.0  # how often the holder of a lock on an object store renews it
STALE_SECONDS = 120.0  # a lock that is watched for so long without a change belongs to a dead process
READS = 5  # of a lock, at most
SETTLE_SECONDS = 5.0  # after which a lock is read back, where a store does not write on condition
_TAKEN = (
    "was taken by another start, as this one did not renew its lock for minutes; what was committed is kept: wait for "
    "the other, or stop it and run the same command again"
)


@contextmanager
def lock(folder: str) -> Iterator[Callable[[], bool]]:
    """Hold a folder for this process; the lock ends with the block, or with the process however it dies.

    Yields:
        A function: whether the folder was deleted meanwhile; on an object store, whether the lock is gone or another's.

    Raises:
        UserError: another process holds it, or the path leads out of its folder; at the end, or soon where the main
            thread holds it: the lock on an object store was lost.
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
    held = _Remote(folder)
    held.claim()
    main = threading.current_thread() is threading.main_thread()
    ended, lost = threading.Event(), threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            try:
                own = held.renew()
            except (OSError, ValueError):  # the store does not answer: the next beat may reach it
                continue
            if not own:
                lost.set()
                if main and not ended.is_set():
                    interrupt_main()
                return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield lost.is_set
    except UserError:
        raise
    except BaseException as error:
        if lost.is_set():
            raise UserError(f"{folder} {_TAKEN}") from error
        raise
    finally:
        ended.set()
        thread.join()
        if not lost.is_set():
            held.release()
    if lost.is_set():
        raise UserError(f"{folder} {_TAKEN}")


class _Remote:
    """The lock of a folder on an object store, as one process has it or asks for it."""

    def __init__(self, folder: str) -> None:
        self.folder, self.path = folder, f"{folder}/.lock"
        self.me = f"{_who()} {uuid.uuid4().hex}"
        self.store: Conditional | None = None
        with suppress(ValueError):  # no store that can write on condition
            self.store = Conditional(self.path)

    def claim(self) -> None:
        """Write the lock; of two starts in the same moment, one gets it.

        Stores that write on condition decide. With others the lock is read back after a while.

        Raises:
            UserError: another process holds the folder.
        """
        before = None if self.store is None else self.store.version()
        if _outlived(self.folder):
            before = None
        written = None if self.store is None else self.store.write(self._bytes(), before)
        if written is None:
            write_json(self.path, _content(self.me))
            time.sleep(SETTLE_SECONDS)
            written = self._is_mine()
        if not written:
            by = (_held(self.folder) or {}).get("by", "another process")
            raise UserError(f"{self.folder} is in use by {by}; wait for it")

    def renew(self) -> bool:
        """Write the lock again, unless it is another's by now or gone; whether it is still this process's.

        Raises:
            OSError, ValueError: the store does not answer.
        """
        if self.store is None or self.store.written is None:
            own = self._is_mine()
            if own:
                write_json(self.path, _content(self.me))
            return own
        if self.store.write(self._bytes(), self.store.written) is not False:
            return True
        there = self.store.version()  # a renewal whose answer was lost changed it too
        own = self._is_mine()
        self.store.written = (own and there) or self.store.written
        return own

    def release(self) -> None:
        """Remove the lock if it is this process's; where the store does not answer, it expires."""
        with suppress(OSError, ValueError):
            if self._is_mine():
                remove(self.path)

    def _is_mine(self) -> bool:
        return (_held(self.folder) or {}).get("by") == self.me

    def _bytes(self) -> bytes:
        return json.dumps(_content(self.me)).encode()


def _content(me: str) -> dict[str, Any]:
    return {"by": me, "time": time.time()}


def _outlived(folder: str) -> bool:
    """Watch a lock until its holder is known to be dead; whether the lock is gone.

    An old lock is watched for three beats, which none that lives lets pass: the clocks of two machines may differ.

    Raises:
        UserError: it lives.
    """
    held = _held(folder)
    if held is None:
        return True
    say("wait", f"{folder} was in use by {held['by']}: whether that still lives shows within {STALE_SECONDS:.0f} s")
    age = max(0.0, time.time() - held["time"])
    end = time.monotonic() + min(STALE_SECONDS, max(3 * BEAT_SECONDS, STALE_SECONDS - age))
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
