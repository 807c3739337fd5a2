"""This machine: CPUs within the limits of a process, and processes known by pid and start time.

Processes of a local Ray that a killed run has left: the next start in the same folder ends them, and no others.

A run writes down the pid and start time of every process of its Ray while it lives. A process is ended if it has both,
is one of Ray's by its command line, and belongs to a run whose own process is gone.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import psutil

from pipelines.console import count_of, say
from pipelines.files import storage

END_SECONDS = 5.0  # for killed processes to go
_SAME = 0.5  # seconds between the starts of two processes of one number, at least
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def cpus() -> int:
    """CPUs that this process may use: those of the machine, its affinity and its control groups; one at least."""
    affinity = getattr(os, "sched_getaffinity", None)
    allowed = os.cpu_count() or 1 if affinity is None else len(affinity(0))
    own = _PROC / "self" / "cgroup"
    groups = own.read_text() if own.exists() else ""
    return max(1, min([allowed, *(int(quota) for quota in quotas(groups, _CGROUPS))]))


def quotas(groups: str, root: Path) -> Iterator[float]:
    """CPUs that control groups allow, of version 1 and 2, each with the groups around it.

    Args:
        groups: ``/proc/self/cgroup``.
        root: where control groups are mounted.
    """
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        mounts = [root / name for name in ("cpu", "cpu,cpuacct") if "cpu" in controllers.split(",")] or [root]
        inner = Path(path.lstrip("/"))
        for mount in mounts if not controllers or "cpu" in controllers.split(",") else ():
            for place in (mount / inner, *(mount / parent for parent in inner.parents)):
                yield from _quota(place)


def _quota(place: Path) -> Iterator[float]:
    with suppress(OSError, ValueError):  # "max" is no limit
        quota, period = (place / "cpu.max").read_text().split()
        yield int(quota) / int(period)
    with suppress(OSError, ValueError):
        limit = int((place / "cpu.cfs_quota_us").read_text())
        if limit > 0:
            yield limit / int((place / "cpu.cfs_period_us").read_text())


def identity() -> str:
    """This boot of this machine, and the space its pids are counted in: the same means the same pids."""
    with suppress(OSError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {(_PROC / 'self/ns/pid').readlink()}"
    return socket.gethostname()


@dataclass(frozen=True)
class Process:
    """A process; ``started``: seconds since the boot. No two processes of one boot share both numbers."""

    pid: int
    started: float

    @classmethod
    def from_psutil(cls, found: psutil.Process) -> Process:
        """The process that psutil found; the clock of the machine may be set meanwhile."""
        return cls(found.pid, found.create_time() - psutil.boot_time())

    def command(self) -> str:
        """Its command line, or the title that it gave itself; empty once it has ended."""
        with suppress(psutil.Error):
            return " ".join(psutil.Process(self.pid).cmdline())
        return ""

    def handle(self) -> psutil.Process | None:
        """Through which it is ended, whatever its number comes to mean meanwhile; None: it has ended."""
        with suppress(psutil.Error):
            found = psutil.Process(self.pid)
            same = abs(Process.from_psutil(found).started - self.started) < _SAME
            return found if same and found.status() != psutil.STATUS_ZOMBIE else None
        return None

    def alive(self) -> bool:
        """Tell whether it has not ended."""
        return self.handle() is not None


def end_all(processes: Iterable[Process]) -> int:
    """Kill those that are alive and this user's, and wait some seconds at most; returns the number of killed ones."""
    ended = []
    for one in processes:
        with suppress(psutil.Error):
            if (handle := one.handle()) is not None and handle.uids().real == os.getuid():
                handle.kill()
                ended.append(handle)
    psutil.wait_procs(ended, END_SECONDS)
    return len(ended)


def this_process() -> Process:
    """The process that asks."""
    return Process.from_psutil(psutil.Process())


def descendants(pid: int) -> list[Process]:
    """The children of a process, their children and so on."""
    found = []
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                found.append(Process.from_psutil(child))
    return found


RECORD = ".ray.json"


@contextmanager
def watched(folder: str) -> Iterator[None]:
    """End the leftovers of an earlier run of a folder; clear the record when this run and its Ray end."""
    end_leftovers(folder)
    try:
        yield
    finally:
        storage.remove(f"{folder}/{RECORD}")


def note(folder: str) -> None:
    """Write down the processes of this process's local Ray, if it has one."""
    session = _session()
    mine = [] if session is None else [one for one in descendants(os.getpid()) if _belongs_to_ray(one, session)]
    if mine:
        record = {
            "machine": identity(),
            "driver": astuple(this_process()),
            "session": session,
            "processes": [astuple(one) for one in mine],
        }
        storage.write_json(f"{folder}/{RECORD}", record)


def end_leftovers(folder: str) -> int:
    """End the processes on record whose run is gone; returns their number."""
    record: dict[str, Any] = storage.read_json_or(f"{folder}/{RECORD}", {})
    if record.get("machine") != identity() or Process(*record["driver"]).alive():
        return 0
    left = [one for one in (Process(*pair) for pair in record["processes"]) if _belongs_to_ray(one, record["session"])]
    ended = end_all(left)
    if ended:
        say("ray", f"ended {count_of(ended, 'process', 'processes')} that a killed run of this folder had left")
    return ended


def _session() -> str | None:
    """The session folder of the Ray that this process is connected to; never imports Ray, which may yet be set up."""
    with suppress(AttributeError, KeyError):
        return str(sys.modules["ray"]._private.worker._global_node.get_session_dir_path())
    return None


def _belongs_to_ray(process: Process, session: str) -> bool:
    """Tell whether a process is of Ray's session by its command line; agents and workers give themselves titles."""
    command = process.command()
    return process.alive() and (session in command or command.startswith("ray::"))


class Terminated(KeyboardInterrupt):
    """SIGTERM during a command."""


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM during a run; the command line library would end with its own code and word."""


@contextmanager
def interruptible(advice: str = "run the same command again to continue") -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into `Interrupted` with one line."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        what = "ended by SIGTERM" if isinstance(interrupt, Terminated) else "interrupted"
        raise Interrupted(f"{what}; {advice}") from interrupt


def heed_sigterm() -> None:
    """Raise `Terminated` in the main thread at SIGTERM from now on."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)


@contextmanager
def own_sigterm() -> Iterator[None]:
    """Keep the handler of SIGTERM that is set now: Ray sets its own, one that exits and one that dumps a stack."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as ended:
        if ended.code == signal.SIGTERM:
            raise Terminated from ended
        raise
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: Any) -> None:
    raise Terminated
