"""A run's heartbeat: lines of progress by the clock, however little gets finished, and the same for `status`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple
from typing import Any

from mi_core.provenance import now
from pipelines.console import Piece, are_bars_drawn, duration, quiet_for, say, under_way
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.damage import reading
from pipelines.run.folder import MANIFEST, PROGRESS, RunFolder
from pipelines.run.machine import Process, identity, note, this_process

LINE_SECONDS = 30.0  # longest silence
WRITE_SECONDS = 10.0  # between two states of PROGRESS
LABELS = {"pretrain": "encoders"}  # a stage that may load encoders and train none
SHOWN = 4  # pieces that have a line each


class Heartbeat:
    """The progress of a run, for readers of the log and for `status`; ``stages``: that will be run, in order."""

    def __init__(self, folder: RunFolder, stages: Sequence[str]) -> None:
        self.folder, self.stages = folder, list(stages)
        self.stage, self.began, self.started = "ray", time.time(), now()
        self.over = threading.Event()

    def enter(self, stage: str) -> None:
        """Begin a stage."""
        self.stage, self.began = stage, time.time()
        self.write("running")

    def write(self, state: str, why: str = "") -> None:
        """Write the state of the run; faults of the storage are ignored here, as writing results raises them."""
        with suppress(OSError, UserError):
            storage.write_json(f"{self.folder.path}/{PROGRESS}", self._content(state, why))
            note(self.folder.path)

    def _content(self, state: str, why: str) -> dict[str, Any]:
        return {
            "state": state,
            "why": why,
            "stage": self.stage,
            "stages": self.stages,
            "stage_seconds": round(time.time() - self.began, 1),
            "started": self.started,
            "beat": time.time(),
            "machine": identity(),
            "process": astuple(this_process()),
            "pieces": [asdict(piece) for piece in under_way()],
        }

    def beat(self) -> None:
        """Run until the end of the run, in a thread."""
        began = written = time.monotonic()
        while not self.over.wait(min(1.0, LINE_SECONDS / 4)):
            _tell(LABELS.get(self.stage, self.stage), began)
            if time.monotonic() - written >= WRITE_SECONDS:
                self.write("running")
                written = time.monotonic()


@contextmanager
def heartbeat(folder: RunFolder, stages: Sequence[str]) -> Iterator[Heartbeat]:
    """A heartbeat for the duration of the block; it writes down how the block ended."""
    pulse = Heartbeat(folder, stages)
    thread = threading.Thread(target=pulse.beat, daemon=True)
    pulse.write("running")
    thread.start()
    state, why = "stopped", ""
    try:
        yield pulse
        state = "done"
    except Exception as error:
        state, why = "failed", " ".join(str(error).split())[:500]
        raise
    finally:
        pulse.over.set()
        thread.join()
        pulse.write(state, why)


@contextmanager
def progress_lines(stage: str) -> Iterator[None]:
    """Lines of progress by the clock for the duration of the block, for commands without a run."""
    over, began = threading.Event(), time.monotonic()

    def tell() -> None:
        while not over.wait(min(1.0, LINE_SECONDS / 4)):
            _tell(stage, began)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _tell(stage: str, began: float) -> None:
    """Say what is under way after a long silence, unless a bar shows it."""
    waited = time.monotonic() - began
    if min(quiet_for(), waited) >= LINE_SECONDS and not are_bars_drawn():
        for line in lines(under_way()) or [f"under way for {duration(waited)}"]:
            say(stage, line)


def lines(pieces: Sequence[Piece]) -> list[str]:
    """A line for each of the first pieces of work, and the number of the others."""
    told = [piece.line() for piece in pieces[:SHOWN]]
    return told + ([f"and {len(pieces) - SHOWN} more"] if len(pieces) > SHOWN else [])


SILENT_SECONDS = 6 * WRITE_SECONDS  # a run that is silent for longer may be dead


def status(run: str) -> str:
    """Stage, share done, rate and time left of a run, in lines.

    Raises:
        UserError: there is no run, or a file of it is damaged.
    """
    folder = RunFolder(storage.absolute(run))
    with reading(f"{folder.path}/{MANIFEST}"):
        manifest = folder.manifest
        if not manifest:
            raise UserError(f"{run} holds no run; give the --out of one")
        told = [f"run    {folder.path} ({manifest['name']})"]
        spent = [f"{stage} {duration(seconds)}" for stage, seconds in manifest.get("seconds", {}).items()]
    with reading(f"{folder.path}/{PROGRESS}"):
        progress: dict[str, Any] = storage.read_json_or(f"{folder.path}/{PROGRESS}", {})
        told += _now(progress, folder) if progress else ["state  unknown: no progress was written yet"]
    told += ["spent  " + ", ".join(spent)] if spent else []
    return "\n".join(told)


def state(folder: RunFolder) -> str:
    """How the run's last start ended, or whether it still runs, in one line."""
    progress: dict[str, Any] = storage.read_json_or(f"{folder.path}/{PROGRESS}", {})
    return _now(progress, folder)[0].removeprefix("state  ") if progress else "no progress was written"


def _now(progress: dict[str, Any], folder: RunFolder) -> list[str]:
    """The state of the run's last start, and its stage."""
    state, stage, stages = progress["state"], progress["stage"], progress["stages"]
    if state == "done":
        report = f"{folder.path}/report.html"
        storage.read_json_or(f"{folder.path}/report.json", {})  # raises where it is damaged
        return ["state  done" + (f"; report: {report}" if storage.exists(report) else f" up to {stages[-1]}")]
    silent = max(0.0, time.time() - progress["beat"])
    place = f"{stages.index(stage) + 1} of {len(stages)}: {stage}" if stage in stages else "starting Ray"
    where = f"stage  {place}, {duration(progress['stage_seconds'])}"
    again = "the same command continues"
    if state != "running":
        word = "stopped" if state == "stopped" else f"failed ({progress['why']})"
        return [f"state  {word} {duration(silent)} ago; {again}", where]
    pieces = [Piece(**piece) for piece in progress["pieces"]]
    shown = [where, *(f"       {line}" for line in lines(pieces))]
    if progress["machine"] == identity() and not Process(*progress["process"]).alive():
        return [f"state  killed at most {duration(silent)} ago; {again}", *shown]
    if silent > SILENT_SECONDS:
        return [f"state  no sign of life for {duration(silent)}: killed, or out of reach; if killed, {again}", *shown]
    return [f"state  running, as of {duration(silent)} ago", *shown]
