"""Runs found below a folder: each counted once, none left out without a word, on a disk and on an object store."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from mi_core.report.page.index import MARK
from pipelines.cli import app as cli
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.report.index import Index, write
from tests.mi_core.report.conftest import make_report
from tests.mi_core.report.page.page import Page
from tests.pipelines.report.stating import called
from tests.raising import refused

STARTED = {"config.yaml": b"name: x\n", "manifest.json": b'{"name": "x"}'}


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return make_report(seeds=(0,), epochs=(400,))


def plant(folder: str, report: dict[str, Any] | bytes, *more: str, page: bool = True) -> None:
    """A finished run, or something like one."""
    files = dict(STARTED)
    files["report.json"] = report if isinstance(report, bytes) else json.dumps(report).encode()
    if page:
        files["report.html"] = b"<!DOCTYPE html>"
    for name in (*files, *more):
        storage.write_atomic(f"{folder}/{name}", files.get(name, b"x"))


def links(index: Index) -> list[str]:
    tags = Page(storage.read_bytes(index.page).decode()).tags
    found = [str(attributes["href"]) for tag, attributes in tags if tag == "a"]
    return [unquote(link) for link in found if not link.startswith("#")]


def folders(index: Index) -> list[str]:
    return sorted(one.folder for one in index.entries)


def why(index: Index) -> dict[str, str]:
    return {one.folder: one.why for one in index.unread}


def test_a_hundred_runs_are_a_hundred_rows(report: dict[str, Any], tmp_path: Path) -> None:
    wanted = []
    for number in range(100):
        changed = copy.deepcopy(report)
        changed["name"] = f"run {number}"
        changed["validity"]["verdict"] = ("leak", "no-evidence", "confounded", "undecided")[number % 4]
        changed["encoders"]["target"]["fingerprint"] = f"{number // 7:064x}"
        wanted.append(("nightly" if number % 3 else "by-hand/2026") + f"/{number}")
        plant(f"{tmp_path}/{wanted[-1]}", changed)
    found = write(str(tmp_path))
    assert found.page == f"{tmp_path}/index.html"
    assert folders(found) == sorted(wanted)
    assert found.unread == ()
    assert sorted(links(found)) == sorted(f"{one}/report.html" for one in wanted)
    assert all((tmp_path / link).is_file() for link in links(found))
    text = (tmp_path / "index.html").read_text()
    assert len(text.encode()) < 500_000
    assert text.count('<tr role="row" class="run ') == 100
    assert "100 runs seen: 100 with a report" in text


def test_every_run_is_listed_or_has_a_reason(report: dict[str, Any], place: str) -> None:
    plant(f"{place}/fine", report)
    plant(f"{place}/deep/er/fine", report, page=False)
    plant(f"{place}/cut", b'{"schema_version": 1, "na')
    plant(f"{place}/bytes", b"\xff\xfe\x00")
    plant(f"{place}/nested", b"[" * 200_000)
    plant(f"{place}/newer", report | {"schema_version": 9})
    plant(f"{place}/foreign", b'{"tests": 3}')
    storage.write_atomic(f"{place}/copied/results.json", b"{}")
    failed = {"state": "failed", "why": "no <space>", "stage": "extract", "stages": ["data", "extract"]}
    failed |= {"stage_seconds": 3.0, "beat": time.time() - 3600, "machine": "", "process": [1, 2], "pieces": []}
    for name, told in {"failed": failed, "damaged": {"state": 3}, "silent": None}.items():
        for file, data in STARTED.items():
            storage.write_atomic(f"{place}/{name}/{file}", data)
        if told is not None:
            storage.write_json(f"{place}/{name}/progress.json", told)
    storage.write_atomic(f"{place}/data/photo.jpg", b"x")  # no run
    storage.write_atomic(f"{place}/data/config.yaml", b"x")
    found = write(place)
    assert folders(found) == ["deep/er/fine", "fine"]
    assert links(found) == ["fine/report.html"]  # the other has no report.html
    told = why(found)
    assert {name: told.pop(name) for name in ("newer", "foreign", "copied")} == {
        "newer": "report.json has schema_version 9, expected 1",
        "foreign": "report.json has no schema_version",
        "copied": "holds results.json, but no report.json",
    }
    assert told.pop("failed") == "no report.json; failed (no <space>) 1 h 00 min ago; the same command continues"
    assert told.pop("silent") == "no report.json; unknown: no progress was written yet"
    assert told.pop("damaged") == "no report.json, and progress.json cannot be read (KeyError)"
    assert set(told) == {"cut", "bytes", "nested"}
    assert all(reason.startswith("report.json cannot be read (") for reason in told.values()), told
    text = Page(storage.read_bytes(found.page).decode()).text
    assert "11 runs seen: 2 with a report, 9 without" in text
    assert all(f"{one.folder} {one.why}" in text for one in found.unread)


def test_seeds_and_sweeps_belong_to_their_run(report: dict[str, Any], place: str) -> None:
    plant(f"{place}/runs/a", report, "seed-0/splits/roles.parquet", "scan/x", "figures/roc.png", "tune/x")
    for part in ("sweep/views/2", "sweep/views/4", "seed-0", "scan/pool"):
        plant(f"{place}/runs/a/{part}", report)
    plant(f"{place}/runs/a/below", report)  # a run that somebody put there
    plant(f"{place}/runs/.trash/b", report)
    assert folders(write(f"{place}/runs")) == ["a", "a/below"]
    assert folders(write(f"{place}/runs/a/sweep", f"{place}/points.html")) == ["views/2", "views/4"]
    itself = write(f"{place}/runs/a/below")
    assert (folders(itself), links(itself)) == (["."], ["report.html"])


def test_links_lead_from_the_page_to_the_report(report: dict[str, Any], place: str) -> None:
    name = "a:b #1 100% ü?"
    plant(f"{place}/runs/{name}", report)
    found = write(f"{place}/runs")
    assert (folders(found), links(found)) == ([name], [f"{name}/report.html"])
    assert links(write(f"{place}/runs", f"{place}/site/pages/all.html")) == [f"../../runs/{name}/report.html"]
    raw = storage.read_bytes(f"{place}/runs/index.html").decode()
    assert 'href="a%3Ab%20%231%20100%25%20%C3%BC%3F/report.html"' in raw  # a colon would name a scheme


def test_no_link_from_a_disk_to_a_store(report: dict[str, Any], s3: str, tmp_path: Path) -> None:
    plant(f"{s3}/{tmp_path.name}/run", report)
    found = write(f"{s3}/{tmp_path.name}", str(tmp_path / "all.html"))
    assert (folders(found), links(found)) == (["run"], [])
    assert "no link: report.html is not there, or not on the same disk or store" in Path(found.page).read_text()


def test_the_page_is_written_again_but_never_over_another(report: dict[str, Any], place: str) -> None:
    plant(f"{place}/run", report)
    first = write(place)
    assert MARK in storage.read_bytes(first.page).decode()
    plant(f"{place}/second", report)
    assert len(write(place).entries) == 2
    storage.write_atomic(f"{place}/index.html", b"<title>My home page</title>")
    refused(UserError, r"index\.html is there and no page of encoder-audit index", write, place)
    assert storage.read_bytes(f"{place}/index.html") == b"<title>My home page</title>"
    assert len(write(place, f"{place}/index.html").entries) == 2  # who names it, means it


def test_a_folder_without_runs_is_a_mistake(place: str, tmp_path: Path) -> None:
    refused(UserError, "is no folder; give one that holds runs", write, f"{place}/nowhere")
    storage.write_atomic(f"{place}/photos/a.jpg", b"x")
    refused(UserError, "holds no run", write, place)
    assert not storage.exists(f"{place}/index.html")
    plant(str(tmp_path / "run"), b"{}")
    refused(UserError, "is a folder; give the name of a page", write, str(tmp_path), str(tmp_path / "run"))


def test_links_between_folders_are_followed_once(report: dict[str, Any], tmp_path: Path) -> None:
    plant(str(tmp_path / "elsewhere" / "run"), report)
    (tmp_path / "runs" / "loop").mkdir(parents=True)
    (tmp_path / "runs" / "loop" / "back").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "itself").symlink_to(tmp_path / "runs" / "itself")
    for name in ("one", "two"):
        (tmp_path / "runs" / name).symlink_to(tmp_path / "elsewhere")
    found = write(str(tmp_path / "runs"))
    assert folders(found) == ["one/run"]
    assert found.unread == ()


def test_folders_that_cannot_be_read_are_listed(
    report: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(str(tmp_path / "fine"), report)
    (tmp_path / "locked").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).mkdir()
    really = os.scandir

    def scandir(path: str) -> Any:
        if str(path).endswith("/locked"):
            raise PermissionError(13, "Permission denied", path)
        return really(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = write(str(tmp_path))
    assert folders(found) == ["fine"]
    assert why(found) == {
        "locked": "the folder cannot be read: Permission denied",
        "\ufffd": "the folder cannot be read: its name is not UTF-8",
    }


def test_the_command_starts_without_pytorch_and_ray(report: dict[str, Any], tmp_path: Path) -> None:
    plant(str(tmp_path / "run"), report)
    plant(str(tmp_path / "bad"), b"{}")
    code = (
        "import sys; from pipelines.cli.app import app; app(standalone_mode=False); "
        "assert not {'torch', 'ray', 'sklearn'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code, "index", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"2 runs seen: 1 with a report, 1 without, listed with the reason\npage: {tmp_path}/index.html\n"
    )


@pytest.fixture
def browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A browser that writes down the addresses which it is given."""
    seen, program = tmp_path / "seen", tmp_path / "browser"
    program.write_text(f'#!/bin/sh\necho "$1" >> {seen}\n')
    program.chmod(0o755)
    # webbrowser reads BROWSER once, so a process of its own is asked
    monkeypatch.setenv("BROWSER", str(program))
    return seen


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "pipelines.cli", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)


def test_open_shows_the_finished_report_at_once(report: dict[str, Any], tmp_path: Path, browser: Path) -> None:
    run = tmp_path / "run"
    plant(str(run), report)
    storage.write_json(f"{run}/progress.json", {"state": "done", "stage": "report"})
    assert command("report", run, "--open").stdout == f"report: {run}/report.html\n"
    assert "page: " in command("index", tmp_path, "--open").stdout
    end = time.monotonic() + 60
    while not (browser.exists() and len(browser.read_text().splitlines()) == 2) and time.monotonic() < end:
        time.sleep(0.05)
    assert browser.read_text().splitlines() == [(run / "report.html").as_uri(), (tmp_path / "index.html").as_uri()]


def test_without_a_browser_the_path_is_printed(
    report: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(str(tmp_path), report)
    storage.write_json(f"{tmp_path}/progress.json", {"state": "done", "stage": "report"})
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BROWSER", "no-such-browser")
    monkeypatch.setenv("PATH", "/nowhere")
    assert command("report", tmp_path, "--open").stdout == (
        f"report: {tmp_path}/report.html\nThere is no browser here; open the file yourself.\n"
    )


DONE = {"state": "done", "stage": "report"}


@pytest.mark.parametrize(
    ("progress", "more"),
    [
        *((one, []) for one in ({}, DONE | {"stage": "attack"}, DONE | {"state": "running"}, None)),
        *((DONE, more) for more in (["name=other"], ["--force", "attack"], ["--out", "elsewhere"])),
    ],
)
def test_a_report_that_is_old_or_asked_for_anew_is_written_before_it_is_shown(
    progress: dict[str, str] | None,
    more: list[str],
    report: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last start did not end with the report, or fields and options ask for another one."""
    plant(str(tmp_path), report)
    if progress is not None:
        storage.write_json(f"{tmp_path}/progress.json", progress)
    ran = []
    monkeypatch.setattr(cli, "_run", lambda *given: ran.append(given))
    called(monkeypatch, "report", tmp_path, *more, "--open")
    ((config, _, last, show),) = ran
    assert (config, last, show) == (str(tmp_path), "report", True)
