"""A run's heartbeat: lines of progress by the clock, however little gets finished, and the same for `status`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

from mi_core.provenance import now
from pipelines.console import Piece, duration, is_quiet, say, under_way
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
    if waited >= LINE_SECONDS and is_quiet(LINE_SECONDS):
        for line in lines(under_way()) or [f"under way for {duration(waited)}"]:
            say(stage, line)


def lines(pieces: Sequence[Piece]) -> list[str]:
    """A line for each of the first pieces of work, and the number of the others."""
    told = [piece.line() for piece in pieces[:SHOWN]]
    return told + ([f"and {len(pieces) - SHOWN} more"] if len(pieces) > SHOWN else [])


SILENT_SECONDS = 6 * WRITE_SECONDS  # a run that is silent for longer may be dead
DONE, RUNNING, STOPPED, FAILED = "done", "running", "stopped", "failed"
KILLED, SILENT, UNKNOWN = "killed", "silent", "unknown"
EXIT_CODES = {STOPPED: 3, FAILED: 3, KILLED: 3, SILENT: 4}
"""Of `status`, by the state of a run: 3 ended before its end, 4 gives no sign of life; others 0."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """How a run stands.

    Args:
        run: its folder; name: in its config.
        state: `DONE`, `RUNNING`, `STOPPED`, `FAILED`, `KILLED`, `SILENT` or `UNKNOWN`; why: it failed.
        stage: the last one, of these stages, and its seconds so far; silent_seconds: since the last sign of life.
        pieces: of work under way.
        report: its page; empty: there is none.
        spent: seconds by stage that is done.
    """

    run: str
    name: str
    state: str = UNKNOWN
    why: str = ""
    stage: str = ""
    stages: tuple[str, ...] = ()
    stage_seconds: float = 0.0
    silent_seconds: float = 0.0
    pieces: tuple[Piece, ...] = ()
    report: str = ""
    spent: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def at(cls, folder: RunFolder) -> Status:
        """That of the run in a folder. Raises ValueError, KeyError: a file is damaged."""
        manifest, path = folder.manifest, folder.path
        told = {"run": path, "name": manifest["name"], "spent": manifest.get("seconds", {})}
        progress: dict[str, Any] = storage.read_json_or(f"{path}/{PROGRESS}", {})
        if not progress:
            return cls(**told)
        silent, state, report = max(0.0, time.time() - progress["beat"]), progress["state"], f"{path}/report.html"
        if state == DONE:
            storage.read_json_or(f"{path}/report.json", {})  # raises where it is damaged
        if state == RUNNING and progress["machine"] == identity() and not Process(*progress["process"]).alive():
            state = KILLED
        elif state == RUNNING and silent > SILENT_SECONDS:
            state = SILENT
        return cls(
            **told,
            **{name: progress[name] for name in ("why", "stage", "stage_seconds")},
            state=state,
            stages=tuple(progress["stages"]),
            silent_seconds=0.0 if state == DONE else round(silent, 1),
            pieces=tuple(Piece(**piece) for piece in progress["pieces"]) if progress["state"] == RUNNING else (),
            report=report if state == DONE and storage.exists(report) else "",
        )

    @property
    def headline(self) -> str:
        """The state in words."""
        ago, again = duration(self.silent_seconds), "the same command continues"
        return {
            DONE: "done" + (f"; report: {self.report}" if self.report else f" up to {''.join(self.stages[-1:])}"),
            RUNNING: f"running, as of {ago} ago",
            STOPPED: f"stopped {ago} ago; {again}",
            FAILED: f"failed ({self.why}) {ago} ago; {again}",
            KILLED: f"killed at most {ago} ago; {again}",
            SILENT: f"no sign of life for {ago}: killed, or out of reach; if killed, {again}",
            UNKNOWN: "unknown: no progress was written yet",
        }[self.state]

    def __str__(self) -> str:
        told = [f"run    {self.run} ({self.name})", f"state  {self.headline}"]
        if self.state not in (DONE, UNKNOWN):
            place = "starting Ray"
            if self.stage in self.stages:
                place = f"{self.stages.index(self.stage) + 1} of {len(self.stages)}: {self.stage}"
            told.append(f"stage  {place}, {duration(self.stage_seconds)}")
            told += [f"       {line}" for line in lines(self.pieces)]
        spent = [f"{stage} {duration(seconds)}" for stage, seconds in self.spent.items()]
        return "\n".join([*told, *(["spent  " + ", ".join(spent)] if spent else [])])


def status(run: str) -> Status:
    """How a run stands.

    Raises:
        UserError: there is no run, or a file of it is damaged.
    """
    folder = RunFolder(storage.absolute(run))
    with reading(f"{folder.path}/{MANIFEST}"):
        if not folder.manifest:
            raise UserError(f"{run} holds no run; give the --out of one")
    with reading(f"{folder.path}/{PROGRESS}"):
        return Status.at(folder)
