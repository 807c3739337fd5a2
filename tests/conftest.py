"""Fixtures shared by all tests: one local Ray per test run, and small runs that many tests look at."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from pipelines.config.run_config import RunConfig

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRITON_INTERPRET", str(int(not Path("/dev/nvidiactl").exists())))  # kernels run on the CPU
os.environ.setdefault("RAY_worker_niceness", "0")  # tests with Ray are the longest chain
# an example that takes longer on a busy machine is no failure
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")


ROOT = Path(__file__).parents[1]

gc.disable()  # while thousands of tests are imported, which stay


def pytest_collection_finish() -> None:
    """What was imported stays: no collection of garbage looks at it again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files of tests stay whole; those with the mark `ray` go to one process, which has the one local Ray."""
    from xdist.scheduler import LoadScopeScheduling

    class OneRay(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return "ray" if _is_marked(path) else path

    return OneRay(config, log)


@cache
def _is_marked(path: str) -> bool:
    """Whether a file has the mark: read, since the process of the scheduler imports no test."""
    return "pytest.mark.ray" in (ROOT / path).read_text()


@pytest.fixture(scope="session", autouse=True)
def compute_in_float32() -> Iterator[None]:
    """Runs and audits that a test's own process starts compute in float32, so that numbers are those of any CPU."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("mi_core.querying.precision_trial", "pipelines.audit.run"):
            patch.setattr(f"{module}.has_bfloat16", lambda: False)
        yield


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that take `local_ray` have the mark; slow ones need none, as they run in one process."""
    marked = item.get_closest_marker("ray") or item.get_closest_marker("slow")
    if "local_ray" in getattr(item, "fixturenames", ()) and not marked:
        pytest.fail("takes local_ray: give its file `pytestmark = pytest.mark.ray`", pytrace=False)


def small_config(**sections: Any) -> dict[str, Any]:
    """A whole run on a few digits, as plain values: seconds of work, every stage real."""
    roles = ("target-member", "target-nonmember", "shadow-member", "shadow-nonmember")
    config: dict[str, Any] = {
        "name": "small",
        "seeds": [0],
        "data": {
            "sources": {"digits": {"kind": "digits"}},
            "image_size": 8,
            "channels": 1,
            "roles": {
                **{role: {"from": "digits", "count": 60} for role in roles},
                "known-member": {"from": "target-member", "count": 12},
                "known-nonmember": {"from": "target-nonmember", "count": 12},
            },
        },
        "encoders": {
            "target": {
                "backbone": "conv4",
                "train_on": "target-member",
                "epochs": 3,
                "checkpoints": [1],
                "batch_size": 30,
                "parameters": {"temperature": 0.2, "projection_hidden": 64, "projection_width": 32},
                "optimizer": {"learning_rate": 0.005},
                "augmentation": {"crop_scale": [0.75, 1.0], "flip": 0, "jitter_probability": 0, "grayscale": 0},
            },
            "shadow": {"like": "target", "train_on": "shadow-member"},
        },
        "queries": {"views": 4, "chunk": 32},
        "attacks": [{"attack": "encodermi-t"}, {"attack": "lpla", "reference": "known"}],
        "utility": {"k": 5},
        "resources": {"encoder_actors": 1, "actor_cpus": 0.5},
    }
    return config | sections


def config_with(**sections: Any) -> RunConfig:
    """The same as a config, with other sections."""
    from pipelines.plan.load import parse

    return parse(small_config(**sections), "small.yaml")


def report_of(folder: Path) -> dict[str, Any]:
    """The report of a run, as its folder has it."""
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


START_SECONDS = 300  # what a process may take to start Ray and work, on a busy machine


# ``python -m``, heeding Ctrl-C even where the shell that started the tests ignores it for what runs in the background
_MODULE = (
    "import runpy, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "del sys.argv[0]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


@contextmanager
def background(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """``python -m ...`` in a process group of its own, with a Ray of its own; nothing of it is left afterwards."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-c", _MODULE, *arguments]
    process = subprocess.Popen(command, start_new_session=True, env=environment, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def wait_until(condition: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    """Wait for something that a running process brings about; fail when it ends or takes too long."""
    end = time.monotonic() + START_SECONDS
    while not condition():
        assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
        assert time.monotonic() < end
        time.sleep(0.01)


def own_processes(name: str) -> set[int]:
    """Processes that this one started, or those started, by a part of their command line; nobody else's."""
    from pipelines.run.machine import descendants

    return {process.pid for process in descendants(os.getpid()) if name in process.command()}


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """One local Ray for all tests of a process: small object store, two CPUs, always shut down."""
    from pipelines.run.ray_session import LOCAL, QUIET, start_or_give_up

    for name, value in {**QUIET, **LOCAL}.items():
        os.environ.setdefault(name, value)
    import ray

    def start() -> None:
        ray.init(
            address="local",
            num_cpus=2,
            object_store_memory=200 * 2**20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )

    start_or_give_up(start, ray.shutdown)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def trained_run(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with roles and trained encoders; copy it before going on."""
    from pipelines.audit import run as audit
    from pipelines.plan.load import parse

    folder = tmp_path_factory.mktemp("runs") / "trained"
    audit.run(parse(small_config(), "small.yaml"), str(folder), last="pretrain")
    return folder


@pytest.fixture(scope="session")
def finished_run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, finished; look, do not touch."""
    import shutil

    from pipelines.audit import run as audit
    from pipelines.plan.load import parse

    folder = tmp_path_factory.mktemp("runs") / "finished"
    shutil.copytree(trained_run, folder)
    audit.run(parse(small_config(), "small.yaml"), str(folder))
    return folder


S3_REQUESTS: list[str] = []  # seen by the local S3 server: method and path
S3_BUSY: list[None] = []  # the server answers as many requests with 503, as S3 does to those who ask too often


def one_at_a_time(app: Callable[..., Iterable[bytes]]) -> Callable[..., list[bytes]]:
    """moto looks whether an object is there and writes it in two steps; S3 does so in one."""
    lock = threading.Lock()

    def serve(environ: dict[str, Any], respond: object) -> list[bytes]:
        with lock:
            S3_REQUESTS.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
            if S3_BUSY:
                S3_BUSY.pop()
                respond("503 Slow Down", [("Content-Type", "application/xml")])  # type: ignore[operator]
                return [b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"]
            return list(app(environ, respond))

    return serve


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of a real S3 server on this host, with an empty bucket called ``bucket``."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    server._server.app = one_at_a_time(server._server.app)  # type: ignore[attr-defined]
    _, port = server.get_host_and_port()
    endpoint = f"http://127.0.0.1:{port}"
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys).create_bucket(Bucket="bucket")
    yield endpoint
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The bucket as users write it; server and keys stand in the environment."""
    settings = {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return "s3://bucket"
