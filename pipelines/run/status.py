"""The progress of a run, from its folder alone: while another process runs it, and after its end. Needs no Ray."""

from __future__ import annotations

import time
from typing import Any

from pipelines.console import Piece, duration
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.damage import reading
from pipelines.run.folder import MANIFEST, PROGRESS, RunFolder
from pipelines.run.heartbeat import WRITE_SECONDS, lines
from pipelines.run.machine import Process, identity

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
