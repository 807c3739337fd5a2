"""Files and objects: writes are whole or not at all, locks hold and end, S3 behaves as a disk does."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.errors import UserError, storage_fault
from pipelines.files import lock as locks
from pipelines.files import storage
from pipelines.files.lock import lock
from tests.conftest import S3_REQUESTS


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return f"{tmp_path}/run"
    return f"{request.getfixturevalue('s3')}/{tmp_path.name}"


def test_what_is_written_is_read_back(place: str) -> None:
    assert not storage.exists(f"{place}/a/b.json")
    storage.write_json(f"{place}/a/b.json", {"x": 1})
    storage.write_atomic(f"{place}/a/c.bin", b"123")
    table = pa.table({"key": ["a", "b"], "value": [1.5, None]})
    storage.write_table(f"{place}/t.parquet", table)
    assert storage.read_json(f"{place}/a/b.json") == {"x": 1}
    assert storage.read_bytes(f"{place}/a/c.bin") == b"123"
    assert storage.read_table(f"{place}/t.parquet").equals(table)
    assert storage.list_files(place) == [f"{place}/a/b.json", f"{place}/a/c.bin", f"{place}/t.parquet"]
    assert storage.list_files(place, recursive=False) == [f"{place}/t.parquet"]
    assert storage.is_folder(f"{place}/a")
    assert not storage.is_folder(f"{place}/a/b.json")
    storage.write_atomic(f"{place}/a/c.bin", b"4")
    assert storage.read_bytes(f"{place}/a/c.bin") == b"4"
    storage.remove(f"{place}/a")
    storage.remove(f"{place}/a")
    assert storage.list_files(place) == [f"{place}/t.parquet"]
    with pytest.raises(OSError, match="c.bin|not exist|No such"):
        storage.read_bytes(f"{place}/a/c.bin")


def test_a_file_is_created_once_and_removed(place: str) -> None:
    assert storage.create(f"{place}/m/1", b"first")
    assert not storage.create(f"{place}/m/1", b"second")
    assert storage.read_bytes(f"{place}/m/1") == b"first"
    storage.remove_file(f"{place}/m/1")
    storage.remove_file(f"{place}/m/1")
    assert not storage.exists(f"{place}/m/1")
    assert storage.create(f"{place}/m/1", b"third")
    for climbing in (storage.remove_file, lambda path: storage.create(path, b"")):
        with pytest.raises(UserError, match="leads out of its folder"):
            climbing(f"{place}/../m")


def test_an_object_store_sees_one_request(s3: str) -> None:
    storage.create(f"{s3}/counted/0", b"")  # a client is made
    for act, seen in (
        (lambda: storage.write_atomic(f"{s3}/counted/1", b"x" * 2**20), ["PUT /bucket/counted/1"]),
        (lambda: storage.create(f"{s3}/counted/2", b"x"), ["PUT /bucket/counted/2"]),
        (lambda: storage.create(f"{s3}/counted/2", b"x"), ["PUT /bucket/counted/2"]),
        (lambda: storage.remove_file(f"{s3}/counted/2"), ["POST /bucket"]),
        (lambda: storage.read_bytes(f"{s3}/counted/1"), ["HEAD /bucket/counted/1", "GET /bucket/counted/1"]),
    ):
        S3_REQUESTS.clear()
        act()
        assert seen == S3_REQUESTS


def test_nothing_is_listed_where_nothing_is(place: str) -> None:
    assert storage.list_files(f"{place}/none") == []


def test_json_refuses_nan_before_anything_is_written(place: str) -> None:
    storage.write_json(f"{place}/x.json", [1])
    with pytest.raises(ValueError, match="JSON compliant"):
        storage.write_json(f"{place}/x.json", [float("nan")])
    assert storage.read_json(f"{place}/x.json") == [1]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    storage.write_atomic(str(path), b"old")

    def broken(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        storage.write_atomic(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_reader_never_sees_a_part(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    contents = {bytes([letter]) * 200_000 for letter in b"ab"}
    storage.write_atomic(path, min(contents))
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            for content in contents:
                storage.write_atomic(path, content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = {storage.read_bytes(path) for _ in range(300)}
    finally:
        ended.set()
        writer.join()
    assert seen <= contents


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
    assert holder.stdout is not None
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
        content = {"by": "process 1 on other", "time": renewed[-1]}
        storage.write_atomic(f"{place}/.lock", json.dumps(content).encode())

    renew()
    later = threading.Timer(0.5, renew)
    later.start()
    with pytest.raises(UserError, match="in use by process 1 on other"), lock(place):
        pass
    later.join()
    assert storage.read_json(f"{place}/.lock")["time"] == renewed[-1]


@pytest.mark.parametrize("conditional", [True, False], ids=["conditional", "read back"])
def test_a_lock_survives_a_store_that_fails_for_a_while(
    s3: str, conditional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(locks, "SETTLE_SECONDS", 0.1)
    place = f"{s3}/fails-{conditional}"
    failed: list[str] = []

    def fails(*_: object) -> None:
        failed.append("once")
        raise OSError("the store does not answer")

    if not conditional:
        monkeypatch.setattr(locks.Conditional, "write", lambda *_: None)
    with lock(place) as lost:
        with monkeypatch.context() as patch:
            patch.setattr(locks.Conditional, "write", fails)
            patch.setattr(locks, "write_json", fails)
            patch.setattr(locks, "read_json", fails)
            _until(lambda: len(failed) > 2)
        before = storage.read_json(f"{place}/.lock")
        _until(lambda: storage.read_json(f"{place}/.lock") != before)
        assert not lost()
    assert not storage.exists(f"{place}/.lock")


def test_a_renewal_whose_answer_was_lost_is_no_loss(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT_SECONDS", 60.0)
    held = locks._Remote(f"{s3}/answer")
    held.claim()
    assert held.store is not None
    before = held.store.written
    assert held.renew()
    held.store.written = before
    assert [held.renew(), held.renew()] == [True, True]
    held.release()
    assert not storage.exists(f"{s3}/answer/.lock")


@pytest.mark.parametrize("conditional", [True, False], ids=["conditional", "read back"])
def test_who_lost_a_lock_is_told_and_leaves_the_others(
    s3: str, conditional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a machine was suspended for minutes."""
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.2)
    monkeypatch.setattr(locks, "SETTLE_SECONDS", 0.1)
    if not conditional:
        monkeypatch.setattr(locks.Conditional, "write", lambda *_: None)
    place = f"{s3}/lost-{conditional}"
    other = {"by": "process 1 on other", "time": 0}
    with pytest.raises(UserError, match=f"{place} was taken by another start"), lock(place) as lost:
        storage.write_atomic(f"{place}/.lock", json.dumps(other).encode())
        _until(lost)
    assert storage.read_json(f"{place}/.lock") == other


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("before", [None, {"by": "process 1 on gone", "time": 0}], ids=["free", "stale"])
@pytest.mark.parametrize("conditional", [True, False], ids=["conditional", "read back"])
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


@pytest.mark.parametrize(
    ("address", "package"), [("az://container/x", "adlfs"), ("hf://org/name/x", "huggingface_hub")]
)
def test_a_missing_package_is_named(address: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as where it is not installed
    with pytest.raises(UserError, match=package) as caught:
        storage.exists(address)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("call", [storage.absolute, storage.exists, storage.read_bytes])
def test_keys_in_addresses_are_refused_and_not_repeated(call: Callable[[str], object]) -> None:
    for address in ("s3://AKIAKEY:hushhush@bucket/file", "s3://bucket/file?access_key=AKIA&secret_key=hushhush"):
        with pytest.raises(UserError, match="holds a key") as caught:
            call(address)
        assert "hush" not in str(caught.value)


def test_paths_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write there"), lock(str(tmp_path / "file" / "below")):
        pass
    with pytest.raises(UserError, match="nosuch://x"):
        storage.exists("nosuch://x/y")


def test_absolute_keeps_uris_and_completes_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert storage.absolute("a/b") == f"{tmp_path}/a/b"
    assert storage.absolute("file:///x/y") == "/x/y"
    assert storage.absolute("s3://bucket/x/") == "s3://bucket/x"
    assert storage.absolute("~/x") == str(Path.home() / "x")


def test_what_is_no_file_is_told_and_a_link_upwards_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    (folder / "in").mkdir(parents=True)
    (tmp_path / "beside").mkdir()
    for name in ("photos/a.jpg", "photos/in/b.jpg", "beside/c.jpg", "photos/.hidden"):
        (tmp_path / name).touch()
    (folder / "in" / "up").symlink_to(folder)
    (folder / "beside").symlink_to(tmp_path / "beside")
    (folder / "linked.jpg").symlink_to("a.jpg")
    (folder / "gone.jpg").symlink_to("nothing")
    (folder / "itself").symlink_to("itself")
    os.mkfifo(folder / "pipe.jpg")
    found = storage.listing(str(folder))
    assert [path.removeprefix(f"{folder}/") for path in found.files] == [
        "a.jpg",
        "beside/c.jpg",
        "in/b.jpg",
        "linked.jpg",
    ]
    assert {path.removeprefix(f"{folder}/"): what for path, what in found.others.items()} == {
        "gone.jpg": "a link to what is not there",
        "in/up": "a link to a folder that it stands in",
        "itself": "unreadable: Too many levels of symbolic links",
        "pipe.jpg": "no file but a pipe, socket or device",
    }
    with pytest.raises(NotADirectoryError):
        storage.listing(str(folder / "a.jpg"))


def test_what_a_killed_write_left_is_removed(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from pipelines.files import storage
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
storage.write_atomic(sys.argv[1], b"half")
"""
    place = tmp_path / "figures"
    subprocess.run([sys.executable, "-c", code, f"{place}/roc.png"], check=False)
    (left,) = place.iterdir()
    assert left.name.startswith(storage.UNFINISHED)
    (place / "done.png").touch()
    storage.remove_unfinished(str(tmp_path))
    assert [path.name for path in place.iterdir()] == ["done.png"]


def test_an_error_of_writing_names_the_file(tmp_path: Path) -> None:
    """The system names no file when a write fails, only when one is opened."""
    code = """
import resource, sys
from pipelines.files import storage
from pipelines.errors import fault_of_user
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    storage.write_atomic(sys.argv[1], bytes(2000))
except OSError as error:
    print(fault_of_user(error))
"""
    place = tmp_path / "features.parquet"
    done = subprocess.run([sys.executable, "-c", code, str(place)], check=True, capture_output=True, text=True)
    assert done.stdout.startswith(f"{place}: File too large; what was committed is kept")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="No space left") as caught, storage.naming("/data/run/x"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert storage_fault(caught.value).startswith("/data/run/x: No space left on device")


@pytest.mark.parametrize("name", ["../x", "a/../../x", ".."])
def test_nothing_is_written_or_removed_outside(place: str, name: str) -> None:
    storage.write_atomic(f"{place}/x", b"kept")
    for change in (lambda path: storage.write_atomic(path, b"1"), storage.remove):
        with pytest.raises(UserError, match=r"leads out of its folder; nothing is written there"):
            change(f"{place}/run/{name}")
    with pytest.raises(UserError, match="leads out"), lock(f"{place}/run/{name}"):
        pass
    assert storage.read_bytes(f"{place}/x") == b"kept"
    assert storage.list_files(place) == [f"{place}/x"]


def test_users_may_name_places_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert storage.target("../x/./y") == f"{tmp_path.parent}/x/y"
    assert storage.target("s3://bucket/x/") == "s3://bucket/x"
    for path in ("a\0b", "a" * 5000):
        with pytest.raises(UserError, match="can be no path"):
            storage.target(path)
