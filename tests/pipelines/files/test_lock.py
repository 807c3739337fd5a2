"""The lock of a run folder: it holds, it ends with its process, and who lost it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import UserError
from pipelines.files import lock as locks
from pipelines.files import storage
from pipelines.files.lock import lock


@pytest.fixture(params=[True, False], ids=["conditional", "read back"])
def conditional(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the store writes on condition; from another one the lock is read back, here after a moment."""
    monkeypatch.setattr(locks, "SETTLE_SECONDS", 0.5)  # a busy machine writes late
    if not request.param:
        monkeypatch.setattr(locks.Conditional, "write", lambda *_: None)
    return bool(request.param)


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_lock_excludes_and_names_the_holder(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.2)
    with lock(place):
        with pytest.raises(UserError, match=f"in use by process {os.getpid()}"), lock(place):
            pass
        assert storage.list_files(place) == []  # the lock is no content
    with lock(place):
        pass


def test_a_lock_ends_with_a_killed_process(tmp_path: Path) -> None:
    code = """
import sys, time
from pipelines.files.lock import lock
with lock(sys.argv[1]):
    print(1, flush=True)
    time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    holder.stdout.readline()
    with pytest.raises(UserError, match=f"in use by process {holder.pid}"), lock(str(tmp_path)):
        pass
    holder.kill()
    holder.wait()
    with lock(str(tmp_path)):
        pass


def test_a_stale_lock_on_an_object_store_is_taken_over(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.2)
    monkeypatch.setattr(locks, "STALE_SECONDS", 0.8)
    place = f"{s3}/stale"
    storage.write_atomic(f"{place}/.lock", json.dumps({"by": "process 1 on gone", "time": 0}).encode())
    with lock(place):
        assert str(os.getpid()) in storage.read_json(f"{place}/.lock")["by"]
    assert not storage.exists(f"{place}/.lock")


def test_a_lock_of_a_holder_that_just_died_is_waited_for(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was stopped cannot say so any more; the next one does not fail, and does not start too early."""
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.2)
    monkeypatch.setattr(locks, "STALE_SECONDS", 1.5)
    place, began = f"{s3}/died", time.time()
    storage.write_atomic(f"{place}/.lock", json.dumps({"by": "process 1 on gone", "time": began}).encode())
    with lock(place):
        assert time.time() - began > 1.4


def test_a_lock_that_is_renewed_lives_by_whatever_clock(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of its holder may be hours behind."""
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.2)
    place = f"{s3}/behind"
    renewed: list[float] = []

    def renew() -> None:
        renewed.append(time.time() - 7200)
        storage.write_atomic(f"{place}/.lock", json.dumps({"by": "process 1 on other", "time": renewed[-1]}).encode())

    renew()
    later = threading.Timer(0.5, renew)
    later.start()
    with pytest.raises(UserError, match="in use by process 1 on other"), lock(place):
        pass
    later.join()
    assert storage.read_json(f"{place}/.lock")["time"] == renewed[-1]


def test_a_lock_survives_a_store_that_fails_for_a_while(
    s3: str, conditional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.1)
    place = f"{s3}/fails-{conditional}"
    failed: list[str] = []

    def fails(*_: object) -> None:
        failed.append("once")
        raise OSError("the store does not answer")

    with lock(place) as lost:
        with monkeypatch.context() as patch:
            patch.setattr(locks.Conditional, "write", fails)
            patch.setattr(locks, "write_json", fails)
            patch.setattr(locks, "read_json", fails)
            _until(lambda: len(failed) > 2)
        before = locks._held(place)  # a plain read may see two renewals at once
        _until(lambda: locks._held(place) != before)
        assert not lost()
    assert not storage.exists(f"{place}/.lock")


def test_a_renewal_whose_answer_was_lost_is_no_loss(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT_SECONDS", 60.0)
    held = locks._Remote(f"{s3}/answer")
    held.claim()
    before = held.store.written
    assert held.renew()
    held.store.written = before
    assert [held.renew(), held.renew()] == [True, True]
    held.release()
    assert not storage.exists(f"{s3}/answer/.lock")


def test_who_lost_a_lock_is_told_and_leaves_the_others(
    s3: str, conditional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a machine was suspended for minutes."""
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.2)
    place = f"{s3}/lost-{conditional}"
    other = {"by": "process 1 on other", "time": 0}
    with pytest.raises(UserError, match=f"{place} was taken by another start"), lock(place) as lost:
        storage.write_atomic(f"{place}/.lock", json.dumps(other).encode())
        _until(lost)
    assert storage.read_json(f"{place}/.lock") == other


@pytest.mark.parametrize("before", [None, {"by": "process 1 on gone", "time": 0}], ids=["free", "stale"])
def test_of_starts_in_one_moment_one_gets_the_lock(
    s3: str, before: dict[str, Any] | None, conditional: bool, tmp_path: Path
) -> None:
    """Four processes that wait for the same moment; the lock of a dead holder is no way in for two of them either."""
    code = """
import pathlib, sys, time
from pipelines.errors import UserError
from pipelines.files import lock
place, go, can = sys.argv[1:]
lock.BEAT_SECONDS = 0.5  # after which a start sees that another one lives
lock.STALE_SECONDS = 6.0
if can == "False":
    lock.Conditional.write = lambda *_: None
print(1, flush=True)
while not pathlib.Path(go).exists():
    time.sleep(0.001)
try:
    with lock.lock(place):
        print("got", flush=True)
        sys.stdin.read()
except UserError as error:
    print(error, flush=True)
"""
    place, go = f"{s3}/race-{conditional}-{before is None}", tmp_path / "go"
    if before is not None:
        storage.write_atomic(f"{place}/.lock", json.dumps(before).encode())
    command = [sys.executable, "-c", code, place, str(go), str(conditional)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    starts = [subprocess.Popen(command, **pipes) for _ in range(4)]
    for start in starts:
        start.stdout.readline()
    go.touch()
    said = [start.stdout.readline().strip() for start in starts]
    for start in starts:
        start.communicate()
    assert said.count("got") == 1, said
    assert sum("is in use by process" in one for one in said) == 3, said
