"""The served page of runs: what it shows, and that nothing else can be had from it."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import UserError
from pipelines.report.serve import serve
from pipelines.run.machine import identity, this_process
from tests.endpoints import running
from tests.mi_core.report.conftest import make_report
from tests.raising import refused

Get = Callable[..., tuple[int, str]]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two reports, a run under way, a secret beside the folder, and links that lead to it."""
    root = tmp_path / "runs"
    for name in ("one", "two & <b>"):
        (root / name).mkdir(parents=True)
        (root / name / "report.json").write_text(json.dumps(make_report((0,), (400,)) | {"name": name}))
        (root / name / "report.html").write_text(f"<h1>report of {len(name)}</h1>")
    (root / "under-way").mkdir()
    for name, content in {
        "config.yaml": {},
        "manifest.json": {"name": "x", "seconds": {}},
        "progress.json": progress(),
    }.items():
        (root / "under-way" / name).write_text(json.dumps(content))
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "report.html").write_text("SECRET")
    (tmp_path / "secret" / "report.json").write_text((root / "one" / "report.json").read_text())
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "half").mkdir()
    (root / "half" / "report.json").write_text((root / "one" / "report.json").read_text())
    (root / "half" / "report.html").symlink_to(tmp_path / "secret" / "report.html")
    return root


def progress() -> dict[str, Any]:
    piece = {"title": "querying", "done": 25, "total": 100, "unit": "images", "rate": 1.0}
    about = {"stage": "extract", "stages": ["data", "extract"], "stage_seconds": 5, "started": "", "why": ""}
    here = {"machine": identity(), "process": astuple(this_process()), "beat": time.time()}
    return {"state": "running", "pieces": [piece], **about, **here}


@pytest.fixture
def get(runs: Path) -> Iterator[Get]:
    with running(serve(str(runs))) as server:

        def ask(path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
            connection.putrequest(method, path, skip_host="Host" in headers)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

        yield ask


def test_it_lists_runs_opens_reports_and_compares_two(get: Get) -> None:
    status, page = get("/")
    assert status == 200 and page.count('type="checkbox"') == 2
    assert page.count("leads out of the folder") == 2  # neither read nor linked
    assert "querying: 25 of 100 images" in page and '<progress value="0.25">' in page and 'http-equiv="refresh"' in page
    assert get("/one/report.html") == (200, "<h1>report of 3</h1>")
    assert get("/two%20%26%20%3Cb%3E/report.html")[0] == 200
    status, page = get("/compare?run=one&run=two%20%26%20%3Cb%3E")
    assert status == 200 and "AUC on target" in page and "<b>" not in page
    for wrong in ("run=one", "run=one&run=half", "run=one&run=../secret", "run=one&run=one", ""):
        assert get(f"/compare?{wrong}")[0] == 400


OUTSIDE = (
    *("/../secret", "/%2e%2e/secret", "/one/../../secret", "//secret", "/..%2fsecret", "/link", "/half", "/one%00"),
    "http://127.0.0.1/secret",
)
PATHS = (
    *(f"{place}/report.html" for place in OUTSIDE),
    "/one/report.json",
    "/one/",
    "/one/report.html/",
    "/etc/passwd",
)


@pytest.mark.parametrize("path", [*PATHS, "/under-way/config.yaml"])
def test_nothing_but_the_reports_of_the_folder_is_served(path: str, get: Get) -> None:
    status, page = get(path)
    assert status in (403, 404) and "SECRET" not in page


def test_no_page_of_the_web_reads_it(get: Get) -> None:
    assert get("/", Origin="https://example.org")[0] == 403
    assert get("/", Host="attacker.example")[0] == 403
    assert get("/", Host="attacker.example:80")[0] == 403
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert get("/", method)[0] == 501


def test_a_store_or_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    refused(UserError, "a folder of this disk", serve, "s3://bucket/runs")
    refused(UserError, "holds no run", serve, str(tmp_path))
