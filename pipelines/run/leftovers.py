"""Processes of a local Ray that a killed run has left: the next start in the same folder ends them, and no others.

A run writes down the pid and start time of every process of its Ray while it lives. A process is ended if it has both,
is one of Ray's by its command line, and belongs to a run whose own process is gone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple
from typing import Any

from pipelines.console import count_of, say
from pipelines.files import storage
from pipelines.run.machine import Process, descendants, end_all, identity, this_process

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
    mine = [] if session is None else [one for one in descendants(os.getpid()) if _of_ray(one, session)]
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
    left = [one for one in (Process(*pair) for pair in record["processes"]) if _of_ray(one, record["session"])]
    ended = end_all(left)
    if ended:
        say("ray", f"ended {count_of(ended, 'process', 'processes')} that a killed run of this folder had left")
    return ended


def _session() -> str | None:
    """The session folder of the Ray that this process is connected to; never imports Ray, which may yet be set up."""
    with suppress(AttributeError, KeyError):
        return str(sys.modules["ray"]._private.worker._global_node.get_session_dir_path())
    return None


def _of_ray(process: Process, session: str) -> bool:
    """Tell whether a process is of Ray's session by its command line; agents and workers give themselves titles."""
    command = process.command()
    return process.alive() and (session in command or command.startswith("ray::"))
