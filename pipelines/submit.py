"""The same run through Ray's Jobs API: this package's code and the resolved config travel, no data and no secret.

What travels is listed file by file, never a folder with what happens to lie in it. Data, weights and the run folder
are read and written by the cluster where the config says; keys come from the environment of its nodes, because Ray
shows the runtime environment of a job to everybody who sees the dashboard. Needs ``ray[default]``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

import mi_core
import pipelines
from pipelines import storage
from pipelines.artifacts import digest
from pipelines.config import RunConfig
from pipelines.config_file import parse
from pipelines.errors import UserError
from pipelines.fields import set_field
from pipelines.paths import places
from pipelines.ray_runtime import probe

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

CONFIG_NAME = "run.yaml"
MOST_BYTES = 20 * 2**20  # of what travels; a data set that slipped in is larger
_DASHBOARD = "RAY_API_SERVER_ADDRESS"  # Ray lets it win over the address that a client is given
_RECONNECTS = 20
START_SECONDS = 90.0  # how long a cluster that has just started may take until it accepts jobs
_TALKATIVE = (
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
    "ray._private.runtime_env.packaging",
)
_LEFT_OUT = ("__pycache__",)


@dataclass(frozen=True)
class Submission:
    """A job on a cluster.

    Args:
        id: Ray's submission id.
        address: of the dashboard.
        started: whether it was submitted now; False: it ran already.
    """

    id: str
    address: str
    started: bool

    def command(self, what: str) -> str:
        """Ray's own command for this job: ``status``, ``logs`` or ``stop``."""
        return f"ray job {what} --address {self.address} {self.id}"


def dashboard(address: str | None) -> str:
    """The dashboard's address, given or from the environment.

    Raises:
        UserError: there is none, it is no http address, or nothing answers there.
    """
    found = address or os.environ.get(_DASHBOARD) or os.environ.get("RAY_ADDRESS")
    if not found:
        raise UserError("--address is missing; give the dashboard of the cluster, such as http://HOST:8265")
    matched = re.fullmatch(r"(https?)://([^/:]+|\[[^]/]+\])(?::(\d+))?/?", found)
    if not matched:
        raise UserError(f"--address {found}: jobs go to the dashboard of a cluster; write http://HOST:8265")
    scheme, host, port = matched.groups()
    probe(f"{host}:{port or (443 if scheme == 'https' else 80)}")
    return found.rstrip("/")


def travelling(config: RunConfig) -> RunConfig:
    """The config with every path of files spelled out, since a job starts in a folder of its own."""
    values = config.model_dump(mode="json", by_alias=True)
    for field, path in places(config):
        set_field(values, field, storage.absolute(path))
    return parse(values, config.name)


@contextmanager
def staged(config: RunConfig, include: Sequence[str] = ()) -> Iterator[Path]:
    """A folder with what travels: the code of this package, the config, and the files that a user names.

    Raises:
        UserError: a named file is not there, takes the place of another, or it is too much altogether.
    """
    with tempfile.TemporaryDirectory(prefix="encoder-audit-") as folder:
        stage = Path(folder)
        for package in (mi_core, pipelines):
            _copy(Path(package.__path__[0]), stage / package.__name__)
        text = yaml.safe_dump(config.model_dump(mode="json", by_alias=True), sort_keys=False)
        (stage / CONFIG_NAME).write_text(text)
        for given in include:
            source, target = Path(given).absolute(), stage / Path(given).absolute().name
            if not source.exists() or target.exists():
                raise UserError(f"--include {given}: {'its name is taken' if source.exists() else 'is not there'}")
            _copy(source, target)
        size = sum(path.stat().st_size for path in stage.rglob("*") if path.is_file())
        if size > MOST_BYTES:
            raise UserError(
                f"{size / 2**20:.0f} MiB would travel with the job, at most {MOST_BYTES // 2**20} may; put data and "
                "weights where all nodes read them, and --include code alone"
            )
        yield stage


def _copy(source: Path, target: Path) -> None:
    """Copy a file or a folder, without caches and hidden files, which is where keys lie."""
    if source.is_file():
        shutil.copyfile(source, target)
        return
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(".*", *_LEFT_OUT))


def submit(
    config: RunConfig, out: str, address: str, *, options: Sequence[str] = (), include: Sequence[str] = ()
) -> Submission:
    """Submit a run; one that runs already in the same folder with the same config is joined.

    Args:
        config: the whole run, paths spelled out (`travelling`).
        out: run folder, a path or URI that means the same on every node.
        address: of the dashboard.
        options: further options of ``encoder-audit audit``.
        include: further files and folders of code.

    Raises:
        UserError: the cluster refuses, or runs something else in that folder.
    """
    client = connect(address)
    stem = f"{re.sub(r'[^a-z0-9-]+', '-', config.name.lower())[:40]}-{digest(out)[:8]}"
    entry = ["python", "-m", "pipelines.audit", CONFIG_NAME, "--out", out, *options]
    asked = digest({"config": config.model_dump(mode="json", by_alias=True), "entry": entry})
    earlier = [job for job in client.list_jobs() if (job.submission_id or "").rpartition("-")[0] == stem]
    for job in earlier:
        if not job.status.is_terminal():
            found = Submission(job.submission_id, address, started=False)
            if (job.metadata or {}).get("run") == asked:
                return found
            raise UserError(
                f"{out} is being written by job {found.id}, which was given another config; wait for it, or "
                f"stop it: {found.command('stop')}"
            )
    number = 1 + max((int(job.submission_id.rpartition("-")[2]) for job in earlier), default=0)
    with staged(config, include) as folder:
        made = _when_ready(
            lambda: client.submit_job(
                entrypoint=shlex.join(entry),
                submission_id=f"{stem}-{number}",
                runtime_env={"working_dir": str(folder)},
                metadata={"run": asked, "out": out},
            )
        )
    return Submission(made, address, started=True)


def _when_ready(ask: Callable[[], str]) -> str:
    """What a cluster answers; one that has just started and takes no jobs yet is asked again for a while."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            return ask()
        except RuntimeError as error:
            if "No available agent" not in str(error) or time.monotonic() > end:
                raise UserError(f"the cluster refuses the job: {' '.join(str(error).split())}") from error
        time.sleep(2)


def connect(address: str) -> JobSubmissionClient:
    """A client of the Jobs API.

    Raises:
        UserError: nothing like that answers, or the cluster wants a token.
    """
    os.environ[_DASHBOARD] = address
    import requests
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        return JobSubmissionClient(address)
    except AuthenticationError as error:
        raise UserError(
            f"the cluster at {address} wants a token that is not the one given; set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN_PATH to the file with its token"
        ) from error
    except (ConnectionError, RuntimeError, requests.RequestException) as error:
        raise UserError(f"no Ray dashboard answers at {address} ({' '.join(str(error).split())})") from error


def follow(job: Submission, show: Callable[[str], Any]) -> int:
    """Show the log of a job until it ends.

    Returns:
        The exit code of the run: 0 done, 2 wrong input, 1 anything else, a job that was stopped included.
    """
    client = connect(job.address)
    shown = 0

    async def tail() -> None:
        nonlocal shown
        passed = 0
        async for text in client.tail_job_logs(job.id):
            passed += len(text)
            if passed > shown:  # after a broken connection the log comes from its start
                show(text[shown - passed :])
                shown = passed

    for attempt in range(_RECONNECTS):
        try:
            asyncio.run(tail())
        except RuntimeError:
            if attempt == _RECONNECTS - 1:
                raise
        info = client.get_job_info(job.id)
        if info.status.is_terminal():
            break
    else:
        raise UserError(f"the log of {job.id} breaks off; the job goes on: {job.command('logs')} --follow")
    if info.status == "SUCCEEDED":
        return 0
    code = info.driver_exit_code
    if code is None:
        show(f"{info.status}: {info.message}\n")
    return 2 if code == 2 else 1


if __name__ == "__main__":
    from pipelines.cli import main

    main("submit")
