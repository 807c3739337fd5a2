"""A finished report is handed over to a function or a command; the examples of the page work."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from pipelines.config.sections.limits import ReportConfig
from pipelines.errors import UserError
from pipelines.report.run import hand_over
from pipelines.run.folder import RunFolder
from tests.endpoints import running
from tests.pages import blocks

REPORT = {"name": "mine", "validity": {"verdict": "leak", "attack_auc": {"value": 0.9}}}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "report.json").write_text(json.dumps(REPORT))
    return RunFolder(str(tmp_path))


def given(after: str) -> ReportConfig:
    return ReportConfig(after=after, trust_code=True)


def test_a_command_gets_the_place_of_the_report_last(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    hand_over(given(f"cp --target-directory={tmp_path / 'out'}"), folder)
    assert json.loads((tmp_path / "out/report.json").read_text()) == REPORT


def test_nothing_is_called_unless_it_is_asked_for(tmp_path: Path) -> None:
    hand_over(ReportConfig(), RunFolder(str(tmp_path)))  # there is no report to read


def test_code_is_not_run_unless_it_is_trusted() -> None:
    with pytest.raises(ValidationError, match=r"report.after = 'rm' runs code; set report.trust_code=true"):
        ReportConfig(after="rm")


def test_a_fault_is_one_line_that_names_it(folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hooks_that_fail.py").write_text("def one(report, folder):\n    raise KeyError('absent')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for after, fault in (
        ("python:hooks_that_fail:one", "KeyError: 'absent'"),
        ("python:hooks_that_fail:two", "report.after = 'python:hooks_that_fail:two': module .* has no attribute 'two'"),
        ("python:hooks_that_fail", "write python:module:function"),
        ("no-such-command", "No such file or directory: 'no-such-command'"),
        ("sh -c 'exit 3'", "returned non-zero exit status 3"),
        ("sh -c 'unclosed", "No closing quotation"),
    ):
        with pytest.raises(UserError, match=rf"(?s)report.after = .* failed: .*{fault}.*the report is written") as told:
            hand_over(given(after), folder)
        assert "\n" not in str(told.value)


def examples(language: str) -> list[str]:
    return [block.text for block in blocks("docs/results.md") if block.language == language]


def test_the_functions_of_the_page_read_what_a_report_holds(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins for both services, which are no dependencies."""
    told: list[Any] = []

    class Service:
        summary: dict[str, Any] = {}  # noqa: RUF012

        def __getattr__(self, name: str) -> Any:
            return lambda *given, **named: told.append((name, given, named)) or self

        def __enter__(self) -> Service:
            return self

        def __exit__(self, *_: object) -> None:
            told.append(dict(self.summary))

    (tmp_path / "my_hooks.py").write_text("".join(examples("python")))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("mlflow", "wandb"):
        module: Any = types.ModuleType(name)
        module.__getattr__ = Service().__getattr__
        monkeypatch.setitem(sys.modules, name, module)
    hand_over(given("python:my_hooks:to_mlflow"), folder)
    hand_over(given("python:my_hooks:to_wandb"), folder)
    assert ("set_tag", ("verdict", "leak"), {}) in told
    assert ("log_metric", ("attack_auc", 0.9), {}) in told
    assert ("log_artifact", (f"{tmp_path}/report.html",), {}) in told
    assert {"verdict": "leak", "attack_auc": 0.9} in told


@pytest.fixture
def received() -> Iterator[tuple[str, list[bytes]]]:
    bodies: list[bytes] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200 if self.path == "/audits" else 500)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with running(HTTPServer(("127.0.0.1", 0), Receiver)) as server:
        yield f"http://127.0.0.1:{server.server_port}", bodies


def test_the_webhook_of_the_page_posts_the_report(folder: RunFolder, received: tuple[str, list[bytes]]) -> None:
    address, bodies = received
    (webhook,) = (block for block in examples("yaml") if "curl" in block)
    after = yaml.safe_load(webhook)["report"]["after"].replace("https://example.org", address)
    hand_over(given(after), folder)
    assert json.loads(bodies[0]) == REPORT
    with pytest.raises(UserError, match="returned non-zero exit status"):
        hand_over(given(after.replace("/audits", "/elsewhere")), folder)
