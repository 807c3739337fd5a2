"""The same run through Ray's Jobs API: this package's code and the resolved config travel, no data and no secret.

Of this package go its source files, of what a user includes all but hidden files and links that lead out of it; a file
that looks like a secret is refused. Data, weights and the run folder are read and written by the cluster where the
config says; keys come from the environment of its nodes, because Ray shows what is submitted to everybody who sees the
dashboard. Needs ``ray[default]``. Names and contents are looked at, archives are not opened: what looks like no secret
may still be one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

import mi_core
import pipelines
from mi_core.checks import secret_in
from pipelines.config.paths import spelled_out
from pipelines.config.run_config import RunConfig
from pipelines.errors import Unavailable, UserError
from pipelines.files.digest import digest
from pipelines.plan.load import parse
from pipelines.run.ray_session import probe

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

CONFIG_NAME = "run.yaml"
MOST_BYTES = 20 * 2**20  # of what travels; a data set that slipped in is larger
START_SECONDS = 90.0  # how long a cluster that has just started may take until it accepts jobs
SOURCES = (".py", ".yaml", ".json", ".j2", ".typed")
STOP_SECONDS = 60  # that Ray gives a job which is stopped to save its state; Ray's default is 3
_STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
_DASHBOARD = "RAY_API_SERVER_ADDRESS"  # Ray lets it win over the address that a client is given
_HEADERS = "RAY_JOB_HEADERS"  # as Ray's own commands take them
_SILENT_RECONNECTS = 12  # in a row without a word; waits between them double up to half a minute
_LONGEST_WAIT = 30.0
_TALKATIVE = (
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
    "ray._private.runtime_env.packaging",
)


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
    given = {"--address": address, **{name: os.environ.get(name) for name in (_DASHBOARD, "RAY_ADDRESS")}}
    named_by, found = next(((name, value) for name, value in given.items() if value), ("", None))
    if not found:
        raise UserError("--address is missing; give the dashboard of the cluster, such as http://HOST:8265")
    matched = re.fullmatch(r"(https?)://(?:\[([^]/]+)\]|([^/:@]+))(?::(\d+))?/?", found)
    if not matched:
        raise UserError(f"{named_by} {found}: jobs go to the dashboard of a cluster; write http://HOST:8265")
    scheme, bracketed, host, port = matched.groups()
    probe(f"{bracketed or host}:{port or (443 if scheme == 'https' else 80)}", named_by)
    return found.rstrip("/")


def travelling(config: RunConfig) -> RunConfig:
    """The config with every path of files spelled out, since a job starts in a folder of its own."""
    return parse(spelled_out(config.model_dump(mode="json", by_alias=True)), config.name)


@contextmanager
def staged(config: Mapping[str, Any], include: Sequence[str] = ()) -> Iterator[Path]:
    """A folder with what travels: the code of this package, the config, and what a user names.

    Raises:
        UserError: a named file is not there, takes the place of another, leads elsewhere or looks like a secret, or it
            is too much altogether.
    """
    roots = [Path(package.__path__[0]) for package in (mi_core, pipelines)]
    own = {path.relative_to(root.parent): path for root in roots for path in root.rglob("*") if path.suffix in SOURCES}
    theirs: dict[Path, Path] = {}
    for given in include:
        theirs |= _included(given, {CONFIG_NAME, *(path.parts[0] for path in (*own, *theirs))})
    files = own | theirs
    size = sum(path.stat().st_size for path in files.values())
    if size > MOST_BYTES:
        raise UserError(
            f"{size / 2**20:.0f} MiB would travel with the job, at most {MOST_BYTES // 2**20} may; put data and "
            "weights where all nodes read them, and --include code alone"
        )
    check_travelling(theirs)
    with tempfile.TemporaryDirectory(prefix="encoder-audit-") as folder:
        stage = Path(folder)
        for name, path in files.items():
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, stage / name)
        (stage / CONFIG_NAME).write_text(yaml.safe_dump(dict(config), sort_keys=False))
        yield stage


def _included(given: str, taken: set[str]) -> dict[Path, Path]:
    """Files by their names in the job's folder, of a file or folder that a user names."""
    source = Path(given).absolute()
    if not source.exists() or source.name in taken:
        raise UserError(f"--include {given}: {'its name is taken' if source.exists() else 'is not there'}")
    if source.is_file():
        return {Path(source.name): source}
    found = {}
    for path in source.rglob("*"):
        name = path.relative_to(source.parent)
        if any(part.startswith(".") or part == "__pycache__" for part in name.parts):
            continue
        if not path.exists() or not path.resolve().is_relative_to(source.resolve()):
            raise UserError(
                f"--include {given}: {path} is a link that leads out of it; take it away, or name its target"
            )
        if path.is_file():
            found[name] = path
    if not found:
        raise UserError(f"--include {given}: holds nothing that travels, hidden files do not; name what should")
    return found


def submit(
    config: RunConfig,
    out: str,
    address: str,
    *,
    force: str | None = None,
    options: Sequence[str] = (),
    include: Sequence[str] = (),
) -> Submission:
    """Submit a run; one that runs already in the same folder with the same config is joined.

    Args:
        config: the whole run, paths spelled out (`travelling`).
        out: run folder, a path or URI that means the same on every node.
        address: of the dashboard.
        force: a stage to redo, with all that follow.
        options: further options of ``encoder-audit audit``, which change no result.
        include: further files and folders of code.

    Raises:
        UserError: the cluster refuses, or runs something else in that folder.
        Unavailable: the cluster takes no jobs yet.
    """
    import requests

    client = connect(address)
    plain = config.model_dump(mode="json", by_alias=True)
    asked = digest({"config": plain, "force": force})
    forced = [] if force is None else ["--force", force]
    entry = ["python", "-m", "pipelines.cli.start", CONFIG_NAME, "--out", out, *forced, *options]
    with staged(plain, include) as folder:
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                number, running = _earlier(client, out)
                if running is not None:
                    found = Submission(running.submission_id, address, started=False)
                    if running.metadata.get("run") != asked:
                        raise UserError(
                            f"{out} is being written by job {found.id}, which was given another config; wait for it, "
                            f"or stop it: {found.command('stop')}"
                        )
                    return found
                made = client.submit_job(
                    entrypoint=shlex.join(entry),
                    submission_id=f"{stem_of(out)}-{number + 1}",
                    runtime_env={"working_dir": str(folder), "env_vars": {_STOP_WAIT: str(STOP_SECONDS)}},
                    metadata={"run": asked, "out": out},
                )
                return Submission(made, address, started=True)
            except (RuntimeError, requests.RequestException) as error:
                # A head that has just started has no agent; a name that exists is somebody else's of this moment.
                if not any(text in str(error) for text in ("No available agent", "already exists")):
                    raise UserError(f"the cluster refuses the job: {_short(error)}") from error
                if time.monotonic() > end:
                    raise Unavailable(
                        f"the cluster took no job in {START_SECONDS:.0f} s: {_short(error)}; run the same command again"
                    ) from error
            time.sleep(2)


def stem_of(out: str) -> str:
    """A name for a job that says which run folder it is for."""
    name = re.sub(r"[^a-z0-9]+", "-", out.rpartition("/")[2].lower()).strip("-")[:40]
    return f"{name or 'run'}-{digest(out)[:8]}"


def _earlier(client: JobSubmissionClient, out: str) -> tuple[int, Any]:
    """The highest number among the jobs of a run folder, and the one of them that has not ended, or None."""
    jobs = client.list_jobs()
    numbers = [re.fullmatch(rf"{re.escape(stem_of(out))}-(\d+)", job.submission_id or "") for job in jobs]
    running = [job for job in jobs if (job.metadata or {}).get("out") == out and not job.status.is_terminal()]
    return max((int(found[1]) for found in numbers if found), default=0), running[-1] if running else None


def _short(error: BaseException) -> str:
    """One line of an error; of a server's traceback the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip().strip(".")]
    return lines[-1].rstrip(".") if lines else type(error).__name__


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
        headers = json.loads(os.environ.get(_HEADERS, "{}"))
    except ValueError as error:
        raise UserError(f'{_HEADERS} is not valid JSON; write {{"name": "value"}}') from error
    try:
        return JobSubmissionClient(address, headers=headers or None)
    except AuthenticationError as error:
        raise UserError(
            f"the cluster at {address} wants a token that is not the one given; set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN_PATH to the file with its token"
        ) from error
    except (ConnectionError, KeyError, RuntimeError, TypeError, ValueError, requests.RequestException) as error:
        raise UserError(f"no Ray dashboard answers at {address} ({_short(error)})") from error


def follow(job: Submission, show: Callable[[str], Any]) -> int:
    """Show the log of a job until it ends; a broken connection is made again.

    Returns:
        The exit code of the run: 0 done, 2 wrong input, 1 anything else, a job that was stopped or lost from sight
        included.
    """
    import aiohttp
    import requests

    client = connect(job.address)
    shown, silent, state = 0, 0, ""

    async def tail() -> None:
        nonlocal shown
        passed = 0
        async for text in client.tail_job_logs(job.id):
            passed += len(text)
            if passed > shown:  # after a broken connection the log comes from its start
                show(text[shown - passed :])
                shown = passed

    while silent <= _SILENT_RECONNECTS:
        before, waits = shown, False
        try:
            asyncio.run(tail())
            info = client.get_job_info(job.id)
        except (OSError, RuntimeError, aiohttp.ClientError, requests.RequestException) as error:
            state = _short(error)
        else:
            if info.status.is_terminal():
                if info.status != "SUCCEEDED" and info.driver_exit_code is None:
                    show(f"{info.status}: {info.message}\n")
                return 0 if info.status == "SUCCEEDED" else 2 if info.driver_exit_code == 2 else 1
            waits = info.status == "PENDING"
            if waits and state != str(info.message):
                state = str(info.message)
                show(f"{job.id}: {state}\n")
        silent = 0 if waits or shown > before else silent + 1
        time.sleep(min(_LONGEST_WAIT, 2.0**silent))
    show(f"{job.id} is out of sight ({state}), and may go on: {job.command('status')}\n")
    return 1


NAMES = (
    "*.env", ".env*", "*secret*", "*credential*", "*passw*", ".netrc", "_netrc", ".npmrc", ".pypirc", ".pgpass",
    ".htpasswd", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.p8", "*.p12", "*.pfx", "*.ppk",
    "*.jks", "*.keystore", "*.kdbx", "*.gpg", "*.tfvars", "*.tfstate", "kubeconfig*", "service-account*",
    "service_account*", "*token", "*tokens", "*token.*", "*tokens.*", "*cookie*", "*.url",
)  # fmt: skip
"""Names of files, in small letters, under which secrets are kept; public keys (``*.pub``) are none."""


def check_travelling(files: Mapping[Path, Path]) -> None:
    """Raise UserError if a file looks like a secret, naming it; the files by the names under which they travel."""
    for name, path in files.items():
        small, content = name.name.lower(), path.read_bytes()
        named = [] if small.endswith(".pub") else [one for one in NAMES if fnmatchcase(small, one)]
        found = [f"is named like a secret ({one})" for one in named]
        found += [f"holds {kind}"] if (kind := secret_in(content)) else []
        if found:
            raise UserError(
                f"--include: {path} {found[0]}, and the dashboard of Ray shows what travels to all who see it: leave "
                "it out and set keys in the environment of the nodes; what is no secret needs another name or place"
            )
