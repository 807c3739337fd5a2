"""A local Ray: who can reach it, what ends with it, and what happens when it does not start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.errors import Unavailable
from pipelines.run.machine import Process, descendants, end_all
from pipelines.run.ray_session import start_or_give_up

LISTENS = "0A"
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}

STARTED = """
import json, os, sys, time
from pathlib import Path
from pipelines.cli.app import guarded
from pipelines.run.machine import interruptible
from pipelines.run.machine import descendants
from pipelines.run.ray_session import ray_cluster

def run():
    with interruptible(), ray_cluster(None, object_store_mb=100):
        import ray
        @ray.remote(num_cpus=1, max_retries=0)
        def die():
            os.kill(os.getpid(), 9)
        try:
            ray.get(die.remote())
        except ray.exceptions.WorkerCrashedError:
            pass
        time.sleep(1)
        pids = [os.getpid(), *(one.pid for one in descendants(os.getpid()))]
        sockets = {link for pid in pids for link in links(pid)}
        told = {"pids": pids, "sockets": sorted(sockets), "tables": tables(), "auth": os.environ["RAY_AUTH_MODE"]}
        Path(sys.argv[1]).write_text(json.dumps(told))
        time.sleep(600)

def links(pid):
    for entry in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            if (name := os.readlink(entry)).startswith("socket:["):
                yield name[8:-1]
        except OSError:
            pass

def tables():
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [[row[1].split(":")[0], row[3], row[9]] for row in rows]

guarded(run)
"""


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc")
def test_only_this_machine_reaches_a_local_ray_and_sigterm_ends_it_with_one_line(tmp_path: Path) -> None:
    """Without a home folder, with a worker that dies: no line of Ray's own, no socket that others reach."""
    names = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    told = tmp_path / "told"
    process = subprocess.Popen(
        [sys.executable, "-c", STARTED, str(told)],
        env=environment | {"HOME": str(tmp_path / "nothing")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not told.exists() or not told.read_text():
            try:
                process.wait(timeout=0.1)
                pytest.fail(process.communicate()[1])
            except subprocess.TimeoutExpired:
                continue
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    found = json.loads(told.read_text())
    mine = [row for row in found["tables"] if row[1] == LISTENS and row[2] in found["sockets"]]
    assert len(mine) >= 5  # of the head, the raylet, its agents and a worker
    assert {row[0] for row in mine} <= LOOPBACK
    assert found["auth"] == "token"
    assert process.returncode == 1
    assert out == ""
    assert err.splitlines()[1:] == ["encoder-audit: ended by SIGTERM; run the same command again to continue"]
    assert "starting Ray on" in err
    assert not (tmp_path / "nothing").exists()


def test_ray_is_started_twice_and_then_given_up() -> None:
    began: list[Process] = []

    def start() -> None:
        subprocess.Popen(["sleep", "600"])
        began.extend(one for one in descendants(os.getpid()) if one.command().startswith("sleep 600"))
        if len(began) <= fails:
            raise TimeoutError("The current node timed out during startup.\nThis could happen")

    fails = 1
    start_or_give_up(start, lambda: None)
    assert [one.alive() for one in began] == [False, True]
    end_all([began.pop()])
    fails = 9
    with pytest.raises(Unavailable, match=r"in 2 attempts \(The current node timed out during startup. This could"):
        start_or_give_up(start, lambda: None)
    assert not any(one.alive() for one in began)
