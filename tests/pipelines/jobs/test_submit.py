"""Jobs: what travels, what is refused, how they are numbered, joined and followed."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import requests

from pipelines.cli import start
from pipelines.errors import Unavailable, UserError
from pipelines.jobs import submit
from pipelines.plan.load import load, parse
from tests.conftest import small_config
from tests.endpoints import running

ROOT = Path(__file__).parents[3]


def with_paths() -> dict:  # type: ignore[type-arg]
    """A config that names files in every place where one can."""
    config = small_config()
    config["data"]["sources"]["tars"] = {"kind": "shards", "path": ["shards/a.tar", "s3://bucket/b.tar"]}
    config["data"]["sources"]["more"] = {"kind": "torchvision:CIFAR10", "options": {"root": "downloads"}}
    config["data"]["attributes"] = {"kind": {"from": "key", "table": "list.txt", "values": ["a", "b"]}}
    config["encoders"]["stranger"] = {"load": "checkpoint:resnet18", "weights": "~/stranger.pt"}
    config["sweep"] = {"encoders.stranger.weights": ["one.pt", "two.pt"]}
    return config


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from strings(inner)


def test_paths_are_spelled_out_and_the_rest_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    config = parse(with_paths(), "small.yaml")
    sent = submit.travelling(config)
    before, after = (set(strings(one.model_dump(mode="json", by_alias=True))) for one in (config, sent))
    # the points of a sweep keep their labels
    assert before - after == {"shards/a.tar", "downloads", "list.txt", "~/stranger.pt"}
    assert after - before == {
        *(f"{tmp_path}/{name}" for name in ("shards/a.tar", "downloads", "list.txt", "one.pt", "two.pt")),
        "/home/me/stranger.pt",
    }
    assert submit.travelling(sent) == sent


def test_every_field_of_a_config_that_names_files_is_known() -> None:
    """Fields and settings of methods whose names or descriptions say so are those that are spelled out."""
    from dataclasses import fields, is_dataclass

    from pydantic import BaseModel

    from mi_core.attacks import ATTACKS
    from mi_core.defenses import DEFENSES
    from mi_core.objectives import OBJECTIVES
    from pipelines.config.mistakes import models_in
    from pipelines.config.paths import FILE_FIELDS
    from pipelines.config.run_config import RunConfig

    seen: set[type[BaseModel]] = set()
    waiting: list[type[BaseModel]] = [RunConfig]
    named, said = set(), set()
    while waiting:
        model = waiting.pop()
        if model in seen:
            continue
        seen.add(model)
        for name, info in model.model_fields.items():
            waiting += models_in(info.annotation)
            named |= {name} & FILE_FIELDS
            if any(word in (info.description or "") for word in ("a path", "folder;", "file with")):
                said.add(name)
    assert said == named == {"path", "table", "weights", "keys"}
    assert len(seen) > 20
    methods = [*ATTACKS.values(), *DEFENSES.values(), *OBJECTIVES.values()]
    settings = {
        field.name for method in methods if is_dataclass(method.Parameters) for field in fields(method.Parameters)
    }
    files = {name for name in settings if any(word in name for word in ("path", "file", "weights", "folder"))}
    assert files == {"text_weights"} <= FILE_FIELDS


def test_code_and_config_travel_and_nothing_else(tmp_path: Path) -> None:
    config = submit.travelling(parse(small_config(), "small.yaml"))
    mine = tmp_path / "mine"
    (mine / ".aws").mkdir(parents=True)
    (mine / ".aws" / "credentials").write_text("secret")
    (mine / ".env").write_text("secret")
    (mine / "model.py").write_text("def encode(images): return images")
    (mine / "same.py").symlink_to("model.py")
    with submit.staged(config.model_dump(mode="json", by_alias=True), [str(mine)]) as stage:
        found = {path.relative_to(stage) for path in stage.rglob("*") if path.is_file()}
        assert {path.parts[0] for path in found} == {"mi_core", "pipelines", "mine", "run.yaml"}
        assert {path for path in found if path.parts[0] == "mine"} == {Path("mine/model.py"), Path("mine/same.py")}
        assert {path.suffix for path in found} <= {".py", ".yaml", ".typed", ".j2", ".json"}
        assert not any(path.is_symlink() for path in stage.rglob("*"))
        assert load(str(stage / "run.yaml")) == config
        for package in ("mi_core", "pipelines"):
            assert {path for path in found if path.parts[0] == package and path.suffix != ".md"} >= {
                path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py")
            }
    assert not stage.exists()


def test_what_cannot_be_included(tmp_path: Path) -> None:
    config = parse(small_config(), "small.yaml")
    for name in ("pipelines", "data", "mine", "broken", "empty", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / ".hidden" / "encode.py").write_text("")
    (tmp_path / "data.bin").write_bytes(bytes(submit.MOST_BYTES))
    (tmp_path / "mine" / "linked").symlink_to(tmp_path / "data")
    (tmp_path / "broken" / "gone.py").symlink_to(tmp_path / "broken" / "nothing")
    for name, message in {
        "nothing": "is not there",
        "pipelines": "its name is taken",
        "data.bin": r"2\d MiB would travel",
        "mine": "mine/linked is a link that leads out of it",
        "broken": "gone.py is a link that leads out of it",
        "empty": "holds nothing that travels",
        ".hidden": "holds nothing that travels, hidden files do not",
    }.items():
        with pytest.raises(UserError, match=message), submit.staged(config.plain(), [str(tmp_path / name)]):
            pass


SECRETS = {
    "secrets.env": "", "prod.env": "", "id_rsa": "", "ID_ED25519": "", "key.pem": "", "server.key": "",
    "credentials.json": "", "client_secret_1.json": "", ".netrc": "", "passwords.txt": "", "service-account.json": "",
    "notes.txt": "x\n-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl", "gpg.txt": "-----BEGIN PGP PRIVATE KEY BLOCK-----",
    "table.csv": "a,AKIA" + "IOSFODNN7EXAMPLE,b", "run.sh": "export AWS_SECRET_ACCESS_KEY=" + "a1" * 20,
    "model.py": "TOKEN = 'hf_" + "a1" * 17 + "'", "load.py": "key='ghp_" + "a1" * 18 + "'",
    "ask.py": "'sk-" + "a1" * 20 + "'",
    "web.js": "AIza" + "a1" * 17 + "b",
    "db.url": "", "cookies.txt": "", "token": "", "api_token.txt": "", "run.txt": "password=" + "hunter2" * 2,
    "settings.yaml": "db_password: " + "hunter2" * 2, "conn.txt": "postgres://me:" + "hunter2" * 2 + "@db/x",
    "azure.txt": "AccountName=x;AccountKey=" + "a1" * 40 + "==", "ci.yml": "x: glpat-" + "a1" * 10,
    "sas.txt": "https://x.blob.core.windows.net/c?sv=1&sp=r&sig=" + "a1" * 20 + "%3D",
    "azure.sh": "AZURE_STORAGE_ACCOUNT_KEY=" + "a1" * 40 + "==", "oauth.txt": "GOCSPX-" + "a1" * 14,
    "adc.json": '{"refresh_token": "1//0' + "a1" * 30 + '"}',
    "hook.yaml": "hooks.slack.com/services/T1/B1/" + "a1" * 12,
    "pay.py": "'sk_live_" + "a1" * 12 + "'", "call.py": "Client('AC" + "a1" * 16 + "')", "mail.txt": "SG." + "a1" * 11
    + "." + "a1" * 21 + "b", "lake.py": "dapi" + "a1" * 16, "log.py": "wandb.login(key='" + "a1" * 20 + "')",
    "runner.txt": "glrt-" + "a1" * 10, "pypi.txt": "pypi-AgEIcHlwaS5vcmc" + "a1" * 40, "npm.txt": "npm_" + "aB1" * 12,
    "rc.txt": "//registry.npmjs.org/:_authToken=" + "a1" * 10, "config.json": '{"auths": {"x": {"auth": "' + "a1" * 9,
    "kube.yaml": "client-key-data: " + "a1" * 30, "login.txt": "machine x\n  login me\n  password hunter",
    "nested.json": '{"db": {"host": "h", "password": "' + "hunter2" * 2 + '"}}',
    "export.sh": "export API_KEY=" + "a1" * 9,
    "connect.py": "connect(user='me', password='" + "hunter2" * 2 + "')", "tf.txt": 'secret_key = "' + "a1" * 9 + '"',
    "bearer.py": "{'Authorization': 'Bearer " + "a1" * 20 + "'}", "new.txt": "gsk_" + "aB1" * 12,
    "vault.sh": "hvs." + "a1" * 20, "age.txt": "AGE-SECRET-KEY-1" + "A1" * 20,
    "cache.txt": "redis://:" + "a1" * 5 + "@h/0",
    "jwt.txt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w",
}  # fmt: skip
HARMLESS = {
    "id_rsa.pub": "ssh-rsa AAAAB3Nza", "ca.crt": "-----BEGIN CERTIFICATE-----", "tokenizer.json": "{}",
    "model.py": "secret_key = None\nclass KeyEncoder: ...\n# AKIA begins a key\nname = 'task-sk-learn-models'",
    "net.py": "token = self.embed(x)\nsecret = images[:, 0]\ntoken: torch.Tensor\npassword = os.environ['P']",
    "audit.yaml": "api_key_env: MY_TOKEN_VARIABLE\nurl: http://127.0.0.1:8000/embed",
    "public.txt": "-----BEGIN PUBLIC KEY-----", "keys.csv": "key,sha\n" + "a1" * 16 + "," + "a1" * 32,
    "manifest.json": '{"name": "shard_' + "a1" * 16 + '.tar", "key": "' + "a1" * 16 + '"}',
    "requirements.txt": "torch==2.11 --hash=sha256:" + "a1" * 32, "urls.txt": "https://h/a.jpg?w=500&h=400&sig=1",
    "login.py": "headers = {'Authorization': f'Bearer {KEY}'}\nlogin(token='token', password='')",
    "my.yaml": "token: null",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "inside"),
    [(name, inside) for name in SECRETS for inside in (True, False) if not (inside and name.startswith("."))],
)  # hidden files of a folder are left out anyway
def test_what_looks_like_a_secret_does_not_travel(tmp_path: Path, name: str, inside: bool) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "encode.py").write_text("def encode(images): return images")
    (mine / name).write_text(SECRETS[name])
    given = [str(mine)] if inside else [str(mine / "encode.py"), str(mine / name)]
    with (
        pytest.raises(UserError, match=r"--include: \S+/mine/\S+ (is named like a secret|holds a)") as caught,
        submit.staged(parse(small_config(), "small.yaml").plain(), given),
    ):
        pass
    assert name in str(caught.value)
    assert not SECRETS[name] or SECRETS[name][-20:] not in str(caught.value)


def test_what_does_not_look_like_a_secret_travels(tmp_path: Path) -> None:
    for name, text in HARMLESS.items():
        (tmp_path / name).write_text(text)
    with submit.staged(
        parse(small_config(), "small.yaml").plain(), [str(tmp_path / name) for name in HARMLESS]
    ) as stage:
        assert all((stage / name).read_text() == text for name, text in HARMLESS.items())


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (None, "--address is missing"),
        ("10.0.0.1:6379", r"write http://HOST:8265"),
        ("ray://10.0.0.1:10001", r"write http://HOST:8265"),
        ("http://me:secret@head:8265", r"write http://HOST:8265"),
        ("http://127.0.0.1:1", "no Ray cluster answers"),
        ("http://[::1]:1", r"no Ray cluster answers at ::1:1 \(\[Errno"),
    ],
)
def test_addresses_that_are_none(address: str | None, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=message):
        submit.dashboard(address)


@pytest.mark.parametrize("answer", [b"[]", b"{}", b"no JSON"])
def test_a_server_that_is_no_dashboard_is_one_line(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")
    with running(HTTPServer(("127.0.0.1", 0), Answer)) as server:
        with pytest.raises(UserError, match="no Ray dashboard answers at") as caught:
            submit.connect(submit.dashboard(f"http://127.0.0.1:{server.server_port}"))
        assert "\n" not in str(caught.value)


class Status(str):
    """A job's state as Ray tells it."""

    def is_terminal(self) -> bool:
        return self in ("SUCCEEDED", "FAILED", "STOPPED")


def job_entry(name: str, status: str, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(submission_id=name, status=Status(status), metadata=more.pop("metadata", None), **more)


class Cluster:
    """A jobs API whose answers are given: what stands for a connection that breaks is raised."""

    def __init__(self, jobs: Sequence[Any] = (), logs: Sequence[Any] = (), states: Sequence[Any] = ()) -> None:
        self.jobs, self.logs, self.states, self.sent = list(jobs), list(logs), list(states), []  # type: ignore[var-annotated]
        self.refusals: list[Exception] = []

    def list_jobs(self) -> list[Any]:
        return self.jobs

    def submit_job(self, **arguments: Any) -> str:
        if self.refusals:
            raise self.refusals.pop(0)
        self.sent.append(arguments)
        return str(arguments["submission_id"])

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        for text in self.logs.pop(0):
            if isinstance(text, Exception):
                raise text
            yield text

    def get_job_info(self, job: str) -> Any:
        found = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Callable[[Cluster], Cluster]:
    def use(cluster: Cluster) -> Cluster:
        monkeypatch.setattr(submit, "connect", lambda address: cluster)
        monkeypatch.setattr(submit.time, "sleep", lambda seconds: None)
        return cluster

    return use


def test_jobs_of_a_folder_are_numbered_and_joined(connected: Callable[[Cluster], Cluster]) -> None:
    config = submit.travelling(parse(small_config(), "small.yaml"))
    stem = submit.stem_of("s3://b/runs/Mine")
    strangers = [job_entry("", "RUNNING"), job_entry(f"{stem}-rerun", "FAILED"), job_entry(f"{stem}-4", "STOPPED")]
    cluster = connected(Cluster(strangers))
    made = submit.submit(config, "s3://b/runs/Mine", "http://h:1", options=["--yes"])
    assert made == submit.Submission(f"{stem}-5", "http://h:1", started=True)
    (sent,) = cluster.sent
    assert sent["entrypoint"] == "python -m pipelines.cli.start run.yaml --out s3://b/runs/Mine --yes"
    assert int(sent["runtime_env"]["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]) >= 30
    cluster.jobs.append(job_entry(f"{stem}-5", "PENDING", metadata=sent["metadata"]))
    again = submit.submit(config, "s3://b/runs/Mine", "http://h:1", options=["-v"])
    assert again == submit.Submission(f"{stem}-5", "http://h:1", started=False)
    renamed = submit.travelling(parse(small_config(name="other"), "small.yaml"))
    for arguments in ((renamed, None), (config, "attack")):
        with pytest.raises(UserError, match=f"being written by job {stem}-5, which was given another config"):
            submit.submit(arguments[0], "s3://b/runs/Mine", "http://h:1", force=arguments[1])
    assert len(cluster.sent) == 1


def test_a_cluster_that_refuses_is_asked_again_where_that_helps(connected: Callable[[Cluster], Cluster]) -> None:
    config = submit.travelling(parse(small_config(), "small.yaml"))
    cluster = connected(Cluster())
    cluster.refusals = [
        RuntimeError("Request failed with status code 500: No available agent to submit job, please try again later.."),
        RuntimeError("Traceback (most recent call last):\n ValueError: Job with submission_id x-1 already exists.\n."),
    ]
    assert submit.submit(config, "s3://b/x", "http://h:1").started
    for refusal in (RuntimeError("Traceback\n  ...\nValueError: no room.\n."), requests.ConnectionError("no room.")):
        cluster.refusals = [refusal]
        with pytest.raises(UserError, match=r"^the cluster refuses the job: (ValueError: )?no room$"):
            submit.submit(config, "s3://b/x", "http://h:1")


def test_a_cluster_that_takes_no_jobs_yet_is_no_fault_of_the_input(
    connected: Callable[[Cluster], Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "START_SECONDS", 0.05)
    cluster = connected(Cluster())
    cluster.refusals = [RuntimeError("No available agent to submit job, please try again later.")] * 100_000
    with pytest.raises(Unavailable, match="took no job in 0 s: No available agent .*; run the same command again"):
        submit.submit(submit.travelling(parse(small_config(), "small.yaml")), "s3://b/x", "http://h:1")
    assert len(cluster.refusals) < 100_000 - 1


def test_a_python_without_the_packages_is_one_line(tmp_path: Path) -> None:
    """The job starts under whatever Python its head finds, here one that has no packages."""
    with submit.staged(submit.travelling(parse(small_config(), "small.yaml")).plain()) as stage:
        command = [sys.executable, "-S", "-m", "pipelines.cli.start", "run.yaml", "--out", str(tmp_path / "run")]
        done = subprocess.run(command, cwd=stage, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"encoder-audit: the cluster's head runs this job with {sys.executable}, which lacks torch,")
    assert "activate it, then ray start --head" in line
    assert not (tmp_path / "run").exists()


def test_the_packages_that_a_job_looks_for_are_those_of_the_project() -> None:
    import_names = {"pillow": "PIL", "pyyaml": "yaml", "scikit-learn": "sklearn"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [re.split(r"[\[><=]", entry)[0] for entry in project["dependencies"]]
    assert set(start.PACKAGES) == {import_names.get(name, name) for name in needed}
    assert start.lacking(start.PACKAGES) == ""
    assert tuple(map(int, project["requires-python"].removeprefix(">=").split("."))) == start.OLDEST


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (job_entry("x", "SUCCEEDED"), 0),
        (job_entry("x", "FAILED", driver_exit_code=2, message=""), 2),
        (job_entry("x", "FAILED", driver_exit_code=1, message=""), 1),
        (job_entry("x", "FAILED", driver_exit_code=None, message="node died"), 1),
        (job_entry("x", "STOPPED", driver_exit_code=None, message="stopped"), 1),
    ],
)
def test_the_exit_code_is_that_of_the_run(connected: Callable[[Cluster], Cluster], state: Any, code: int) -> None:
    shown: list[str] = []
    connected(Cluster(logs=[["a\n"]], states=[state]))
    assert submit.follow(submit.Submission("x", "http://h:1", True), shown.append) == code
    assert ("".join(shown) == "a\n") == (getattr(state, "driver_exit_code", 0) is not None)


def test_a_log_that_breaks_off_goes_on_where_it_was(connected: Callable[[Cluster], Cluster]) -> None:
    broken: list[Exception] = [aiohttp.ClientError("tunnel closed"), RuntimeError("websocket"), OSError("reset")]
    parts = ["one\n", "two\n", "three\n", "four\n"]
    logs = [[*parts[: number + 1], fault] for number, fault in enumerate(broken)]
    waiting = job_entry("x", "PENDING", message="waiting for a node")
    states = [waiting, waiting, requests.ConnectionError("gone"), job_entry("x", "SUCCEEDED")]
    shown: list[str] = []
    connected(Cluster(logs=[[], [], *logs, parts, parts], states=states))
    assert submit.follow(submit.Submission("x", "http://h:1", True), shown.append) == 0
    assert "".join(shown) == "x: waiting for a node\none\ntwo\nthree\nfour\n"


def test_a_job_that_is_lost_from_sight_is_told(connected: Callable[[Cluster], Cluster]) -> None:
    shown: list[str] = []
    connected(Cluster(logs=[[OSError("no route")]] * 100, states=[OSError("no route")]))
    assert submit.follow(submit.Submission("x", "http://h:1", True), shown.append) == 1
    assert "".join(shown) == "x is out of sight (no route), and may go on: ray job status --address http://h:1 x\n"
