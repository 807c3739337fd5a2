"""Jobs: what travels, what is refused, and a real head that runs, is stopped, and goes on."""

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

from pipelines import submit
from pipelines.config_file import load, parse
from pipelines.errors import UserError
from tests.conftest import small_config

ROOT = Path(__file__).parents[2]


def with_paths() -> dict:  # type: ignore[type-arg]
    """A config that names files in every place where one can."""
    config = small_config()
    config["data"]["sources"]["tars"] = {"kind": "shards", "path": ["shards/a.tar", "s3://bucket/b.tar"]}
    config["data"]["sources"]["more"] = {"kind": "torchvision:CIFAR10", "options": {"root": "downloads"}}
    config["data"]["attributes"] = {"kind": {"from": "key", "table": "list.txt", "values": ["a", "b"]}}
    config["data"]["near_duplicates"] = {"encoder": {"load": "checkpoint:resnet18", "weights": "neutral.pt"}}
    config["encoders"]["stranger"] = {"load": "checkpoint:resnet18", "weights": "~/stranger.pt"}
    return config


def test_paths_are_spelled_out_and_the_rest_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    config = parse(with_paths(), "small.yaml")
    sent = submit.travelling(config)
    assert dict(submit.places(sent)) == {
        "data.sources.tars.path.0": f"{tmp_path}/shards/a.tar",
        "data.sources.tars.path.1": "s3://bucket/b.tar",
        "data.sources.more.options.root": f"{tmp_path}/downloads",
        "data.attributes.kind.table": f"{tmp_path}/list.txt",
        "data.near_duplicates.encoder.weights": f"{tmp_path}/neutral.pt",
        "encoders.stranger.weights": "/home/me/stranger.pt",
    }
    assert submit.travelling(sent) == sent
    assert sent.attacks == config.attacks
    assert sent.data.roles == config.data.roles


def test_every_field_of_a_config_that_names_files_is_found() -> None:
    """Fields that say so in their description carry the mark."""
    from pydantic import BaseModel

    from pipelines.config import RunConfig
    from pipelines.config_file import _models_in
    from pipelines.paths import NAMES_FILES

    seen: set[type[BaseModel]] = set()
    waiting: list[type[BaseModel]] = [RunConfig]
    unmarked = []
    while waiting:
        model = waiting.pop()
        if model in seen:
            continue
        seen.add(model)
        for name, info in model.model_fields.items():
            waiting += _models_in(info.annotation)
            says = any(word in (info.description or "") for word in ("a path", "folder;", "file with"))
            if says != (info.json_schema_extra == NAMES_FILES) and name != "options":
                unmarked.append(f"{model.__name__}.{name}")
    assert unmarked == []
    assert len(seen) > 20


def test_code_and_config_travel_and_nothing_else(tmp_path: Path) -> None:
    config = submit.travelling(parse(small_config(), "small.yaml"))
    mine = tmp_path / "mine"
    (mine / ".aws").mkdir(parents=True)
    (mine / ".aws" / "credentials").write_text("secret")
    (mine / ".env").write_text("secret")
    (mine / "model.py").write_text("def encode(images): return images")
    with submit.staged(config, [str(mine)]) as stage:
        found = {path.relative_to(stage) for path in stage.rglob("*") if path.is_file()}
        assert {path.parts[0] for path in found} == {"mi_core", "pipelines", "mine", "run.yaml"}
        assert {path for path in found if path.parts[0] == "mine"} == {Path("mine/model.py")}
        assert {path.suffix for path in found} <= {".py", ".yaml", ".typed", ".j2", ".json", ".md"}
        assert load(str(stage / "run.yaml")) == config
        for package in ("mi_core", "pipelines"):
            assert {path for path in found if path.parts[0] == package and path.suffix == ".py"} == {
                path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py")
            }
    assert not stage.exists()


def test_what_cannot_be_included(tmp_path: Path) -> None:
    config = parse(small_config(), "small.yaml")
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "data.bin").write_bytes(bytes(submit.MOST_BYTES))
    with pytest.raises(UserError, match=r"--include .*nothing: is not there"), submit.staged(config, ["nothing"]):
        pass
    given = [str(tmp_path / "pipelines")]
    with pytest.raises(UserError, match="its name is taken"), submit.staged(config, given):
        pass
    given = [str(tmp_path / "data.bin")]
    with pytest.raises(UserError, match=r"2\d MiB would travel"), submit.staged(config, given):
        pass


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (None, "--address is missing"),
        ("10.0.0.1:6379", r"write http://HOST:8265"),
        ("ray://10.0.0.1:10001", r"write http://HOST:8265"),
        ("http://127.0.0.1:1", "no Ray cluster answers"),
    ],
)
def test_addresses_that_are_none(address: str | None, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=message):
        submit.dashboard(address)


def test_a_server_that_is_no_dashboard_is_one_line(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")
    with pytest.raises(UserError, match="no Ray dashboard answers at"):
        submit.connect(submit.dashboard(s3_server))


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
        report = json.loads((out / "report.json").read_text())
        assert report["name"] == "small"
        assert f"report: {out}/report.html" in done.out
        job = job_of(done.out)
        assert "succeeded" in ray_job(head, "status", job)
        assert f"report: {out}/report.html" in ray_job(head, "logs", job)

    def test_a_second_submission_does_nothing_again(self, head: Head, config: Path, whole: tuple[Done, Path]) -> None:
        done, out = whole
        before = (out / "seed-0/encoders/target/encoder.json").stat().st_mtime_ns
        again = audit_job(head, config, out)
        assert again.code == 0, again.out + again.err
        assert "2 of 2 encoders done before" in again.out
        assert job_of(again.out) != job_of(done.out)
        assert (out / "seed-0/encoders/target/encoder.json").stat().st_mtime_ns == before

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
        joined = audit_job(head, config, out, "--no-wait")
        assert joined.out.startswith(f"job {job} runs already")
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
