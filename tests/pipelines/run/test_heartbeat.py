"""A run tells how far it is by the clock, and `status` reads the same from the folder, also of a run that died."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipelines import console
from pipelines.cli.app import app
from pipelines.errors import UserError
from pipelines.run import heartbeat
from pipelines.run.folder import RunFolder
from pipelines.run.heartbeat import PROGRESS, Heartbeat, status

STAGES = ("data", "pretrain", "report")


def run_folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(str(tmp_path / "run"))
    folder.update_manifest(name="small", seconds={"data": 75.0})
    return folder


def wait_for(text: str, folder: RunFolder) -> str:
    end = time.monotonic() + 30
    while text not in (told := str(status(folder.path))):
        assert time.monotonic() < end, told
        time.sleep(0.02)
    return told


def test_a_silent_step_is_told_of_by_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(heartbeat, "LINE_SECONDS", 0.05)
    monkeypatch.setattr(heartbeat, "WRITE_SECONDS", 0.05)
    folder = run_folder(tmp_path)
    with heartbeat.heartbeat(folder, STAGES) as pulse:
        pulse.enter("data")
        with console.step("drawing the roles"):
            assert "stage  1 of 3: data" in wait_for("drawing the roles: under way", folder)
        pulse.enter("pretrain")
        with console.bars("epochs") as bars:
            first, second = (bars.add_task(name, total=400, note="") for name in ("target", "waiting"))
            bars.begin(first, 100)
            bars.update(first, completed=200)
            told = wait_for("target: 200 of 400 epochs (50.0%), ", folder)
            shown, end = capsys.readouterr().err, time.monotonic() + 20
            while "encoders  target" not in shown and time.monotonic() < end:
                time.sleep(0.02)
                shown += capsys.readouterr().err
        assert "state  running" in told
        assert "epochs/s, about" in told
        assert "waiting" not in told
        assert second in [task.id for task in bars.tasks]
    assert "state  done up to report" in str(status(folder.path))
    assert "spent  data 1 min 15 s" in str(status(folder.path))
    assert "drawing the roles: under way" in shown
    assert "encoders  target: 200 of 400 epochs" in shown, "a stage that may only load encoders is not called training"


def test_an_end_by_a_fault_or_an_interrupt_is_kept(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    with pytest.raises(UserError), heartbeat.heartbeat(folder, STAGES) as pulse:
        pulse.enter("pretrain")
        raise UserError("no such weights")
    assert "failed (no such weights)" in str(status(folder.path))
    assert "stage  2 of 3: pretrain" in str(status(folder.path))
    with pytest.raises(KeyboardInterrupt), heartbeat.heartbeat(folder, STAGES):
        raise KeyboardInterrupt
    assert "state  stopped" in str(status(folder.path))
    assert "the same command continues" in str(status(folder.path))


def test_a_run_that_was_killed_or_is_out_of_sight_is_told_from_one_that_lives(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    code = (
        "import sys, time; from pipelines.run.folder import RunFolder; from pipelines.run.heartbeat import heartbeat\n"
        "with heartbeat(RunFolder(sys.argv[1]), ['data']) as pulse:\n    pulse.enter('data'); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, folder.path])
    try:
        wait_for("stage  1 of 1: data", folder)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert "state  killed" in str(status(folder.path))
    path = Path(folder.path) / PROGRESS
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"machine": "another", "beat": time.time() - 300}))
    assert "no sign of life for 5 min" in str(status(folder.path))
    for age, code, state in ((300, 4, "silent"), (0, 0, "running")):
        path.write_text(json.dumps(content | {"machine": "another", "beat": time.time() - age}))
        done = CliRunner().invoke(app, ["status", folder.path, "--json"])
        told = json.loads(done.output)
        assert (done.exit_code, told["state"], told["stage"], told["name"]) == (code, state, "data", "small")
    path.write_text(json.dumps(content | {"state": "failed", "why": "no such weights"}))
    assert CliRunner().invoke(app, ["status", folder.path]).exit_code == 3


def test_a_folder_without_a_run_and_one_of_before(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        status(str(tmp_path))
    assert "no progress was written yet" in str(status(run_folder(tmp_path).path))


def test_a_full_disk_or_a_store_that_refuses_does_not_end_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (str(tmp_path / "file" / "below"), "nosuch://store/run"):
        Heartbeat(RunFolder(place), STAGES).enter("data")


def test_status_loads_nothing_heavy(tmp_path: Path) -> None:
    code = "import sys, pipelines.cli.app; print([m for m in ('ray', 'torch') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
