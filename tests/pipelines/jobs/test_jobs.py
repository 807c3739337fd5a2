"""Jobs on a real head with dashboard and token: they run, are stopped, and go on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.conftest import small_config

ROOT = Path(__file__).parents[3]


class Head(NamedTuple):
    """A running head: its dashboard, and an environment whose token it takes."""

    address: str
    environment: Mapping[str, str]


class Done(NamedTuple):
    """A command that ended."""

    code: int
    out: str
    err: str


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """A head with dashboard and token on the loopback interface; what it started is ended by session."""
    home = tmp_path_factory.mktemp("head")
    (home / "token").write_text("f" * 64)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(home / "token"),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONWARNINGS": "ignore",
    }
    port, dashboard = free_port(), free_port()
    command = [
        *("ray", "start", "--head", "--block", "--num-cpus", "2", "--node-ip-address", "127.0.0.1"),
        *("--port", str(port), "--dashboard-host", "127.0.0.1", "--dashboard-port", str(dashboard)),
        *("--dashboard-agent-listen-port", str(free_port())),  # by default one per host, whoever else runs Ray there
        *("--object-store-memory", str(200 * 2**20), "--disable-usage-stats"),
    ]
    log = (home / "log").open("wb")
    process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{dashboard}"
        end = time.monotonic() + 180
        while call(environment, "ray", "job", "list", "--address", address).code:
            assert process.poll() is None, (home / "log").read_text()
            assert time.monotonic() < end
            time.sleep(1)
        yield Head(address, environment)
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if os.getsid(int(entry.name)) == process.pid:
                        os.kill(int(entry.name), signal.SIGKILL)


def call(environment: Mapping[str, str], *command: str) -> Done:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False, cwd=ROOT)
    return Done(done.returncode, done.stdout, done.stderr)


def audit_job(head: Head, config: Path, out: Path, *options: str) -> Done:
    command = ("submit", str(config), "--out", str(out), "--address", head.address)
    return call(head.environment, sys.executable, "-m", "pipelines.cli", *command, *options)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "small.yaml"
    raw = small_config()
    raw["encoders"]["target"] |= {"epochs": 1000, "save_every": 20}
    path.write_text(yaml.safe_dump(raw))
    return path


def job_of(text: str) -> str:
    return text.split()[1]


def ray_job(head: Head, what: str, job: str) -> str:
    done = call(head.environment, "ray", "job", what, "--address", head.address, job)
    assert done.code == 0, done.err
    return done.out + done.err


@pytest.fixture(scope="module")
def whole(head: Head, config: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    """A job that ran undisturbed, and its run folder."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    return audit_job(head, config, out), out


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to end what it starts")
class TestJobs:
    """Jobs on one head."""

    def test_a_job_ends_with_a_report_and_its_log_is_shown(self, head: Head, whole: tuple[Done, Path]) -> None:
        done, out = whole
        assert done.code == 0, done.out + done.err
        assert json.loads((out / "report.json").read_text())["name"] == "small"
        assert f"report: {out}/report.html" in done.out
        job = job_of(done.out)
        assert "succeeded" in ray_job(head, "status", job)
        assert f"report: {out}/report.html" in ray_job(head, "logs", job)

    def test_a_job_that_is_stopped_goes_on_where_it_was(
        self, head: Head, config: Path, whole: tuple[Done, Path], tmp_path: Path
    ) -> None:
        out = tmp_path / "run"
        first = audit_job(head, config, out, "--no-wait")
        assert first.code == 0, first.err
        job = job_of(first.out)
        other = audit_job(head, config, out, "seeds=[1]")
        assert other.code == 2
        assert f"being written by job {job}" in other.err
        assert audit_job(head, config, out, "--no-wait").out.startswith(f"job {job} runs already")
        end = time.monotonic() + 300
        while not list(out.rglob("state/*.pt")):
            assert time.monotonic() < end, ray_job(head, "logs", job)
            time.sleep(0.05)
        ray_job(head, "stop", job)
        assert "stopped" in ray_job(head, "status", job)
        assert not (out / "report.json").exists()
        assert not (out / "seed-0/encoders/target/encoder.json").exists()
        again = audit_job(head, config, out)
        assert again.code == 0, again.out + again.err
        mine, reference = (
            json.loads((folder / "report.json").read_text())["encoders"]["target"]["fingerprint"]
            for folder in (out, whole[1])
        )
        assert mine == reference

    def test_wrong_input_is_the_commands_exit_code(self, head: Head, config: Path, tmp_path: Path) -> None:
        done = audit_job(head, config, tmp_path / "run", "data.roles.target-member.count=100000")
        assert done.code == 2, done.out + done.err
        assert "encoder-audit: " in done.out
        assert "Traceback" not in done.out + done.err

    def test_a_client_without_the_token_is_told_so(self, head: Head, config: Path, tmp_path: Path) -> None:
        for token in ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
            bare = {name: value for name, value in head.environment.items() if not name.startswith("RAY_AUTH")}
            done = audit_job(Head(head.address, bare | token), config, tmp_path / "run")
            assert done.code == 2, done.out + done.err
            assert "RAY_AUTH_MODE=token" in done.err
            assert len(done.err.strip().splitlines()) == 1
