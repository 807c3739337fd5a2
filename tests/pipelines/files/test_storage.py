"""Files and objects: writes are whole or not at all, S3 behaves as a disk does."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.errors import Unreachable, UserError, fault_of_user, storage_fault, unavailable_in
from pipelines.files import many, storage, stores
from pipelines.files.lock import lock
from tests.conftest import S3_REQUESTS
from tests.raising import refused


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
    assert storage.list_files(f"{place}/none") == []
    refused(OSError, "c.bin|not exist|No such", storage.read_bytes, f"{place}/a/c.bin")


def test_a_file_is_created_once_and_removed(place: str) -> None:
    assert storage.create(f"{place}/m/1", b"first")
    assert not storage.create(f"{place}/m/1", b"second")
    assert storage.read_bytes(f"{place}/m/1") == b"first"
    many.remove_files([f"{place}/m/1"])
    many.remove_files([f"{place}/m/1"])
    assert not storage.exists(f"{place}/m/1")
    assert storage.create(f"{place}/m/1", b"third")
    for climbing in (lambda path: many.remove_files([path]), lambda path: storage.create(path, b"")):
        refused(UserError, "leads out of its folder", climbing, f"{place}/../m")


def test_an_object_store_sees_one_request(s3: str) -> None:
    storage.create(f"{s3}/counted/0", b"")  # a client is made
    for act, seen in (
        (lambda: storage.write_atomic(f"{s3}/counted/1", b"x" * 2**20), ["PUT /bucket/counted/1"]),
        (lambda: storage.create(f"{s3}/counted/2", b"x"), ["PUT /bucket/counted/2"]),
        (lambda: storage.create(f"{s3}/counted/2", b"x"), ["PUT /bucket/counted/2"]),
        (lambda: many.remove_files([f"{s3}/counted/2"]), ["POST /bucket"]),
        (lambda: storage.read_bytes(f"{s3}/counted/1"), ["HEAD /bucket/counted/1", "GET /bucket/counted/1"]),
    ):
        S3_REQUESTS.clear()
        act()
        assert seen == S3_REQUESTS


def test_json_refuses_nan_before_anything_is_written(place: str) -> None:
    storage.write_json(f"{place}/x.json", [1])
    refused(ValueError, "JSON compliant", storage.write_json, f"{place}/x.json", [float("nan")])
    assert storage.read_json(f"{place}/x.json") == [1]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    storage.write_atomic(str(path), b"old")

    def broken(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    refused(OSError, "disk full", storage.write_atomic, str(path), b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("address", "package"), [("adl://container/x", "adlfs"), ("hf://org/name/x", "huggingface_hub")]
)
def test_a_missing_package_is_named(address: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as where it is not installed
    loaded = import_module("fsspec.registry")._registry  # of stores that another test has used
    monkeypatch.delitem(loaded, address.partition(":")[0], raising=False)
    with pytest.raises(UserError, match=package) as caught:
        storage.exists(address)
    assert "\n" not in str(caught.value)


def test_paths_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write there"), lock(str(tmp_path / "file" / "below")):
        pass


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
        refused(UserError, r"leads out of its folder; nothing is written there", change, f"{place}/run/{name}")
    with pytest.raises(UserError, match="leads out"), lock(f"{place}/run/{name}"):
        pass
    assert storage.read_bytes(f"{place}/x") == b"kept"
    assert storage.list_files(place) == [f"{place}/x"]


def test_what_cannot_be_a_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    long = "x" * 256
    for act in (storage.exists, storage.is_folder, storage.read_bytes, lambda path: storage.write_atomic(path, b"")):
        for path in (f"{tmp_path}/{long}", f"{long}/y", f"ä{'ö' * 127}"):
            refused(UserError, "can be no name: it has more than 255 bytes", act, path)
        for address in ("reference://x", "github://a/b", "nosuch://x/y"):
            refused(UserError, f"^{address}: Unrecognized filesystem type", act, address)
    for path in (f"{tmp_path}/file/below/x", "/proc/nothing/x"):
        with pytest.raises(OSError, match="cannot be made") as caught:
            storage.write_atomic(path, b"")
        assert str(fault_of_user(caught.value)).startswith(f"{Path(path).parent}: cannot be made (")
    assert storage.absolute("/a/{" + ",".join(map(str, range(200))) + "}.tar")
    assert not storage.exists(f"{tmp_path}/{'x' * 255}")


def test_a_store_out_of_reach_is_told_from_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(stores, "ATTEMPTS", 1)

    def write(path: str) -> None:
        storage.write_atomic(path, b"")

    for act in (storage.exists, storage.read_bytes, storage.list_files, storage.sizes, storage.remove, write):
        with pytest.raises(Unreachable, match="run the same command again") as caught:
            act("s3://away/x")
        assert unavailable_in(caught.value) is not None


def test_users_may_name_places_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert storage.target("../x/./y") == f"{tmp_path.parent}/x/y"
    assert storage.target("s3://bucket/x/") == "s3://bucket/x"
    for path in ("a\0b", "a" * 5000):
        refused(UserError, "can be no path", storage.target, path)


def test_a_bucket_that_is_not_there_is_named_with_the_variables_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own words when it looks for the region of a bucket, as they came from it."""

    def fail(*_: object) -> None:
        raise OSError(
            "When resolving region for bucket 'none': AWS Error NETWORK_CONNECTION during HeadBucket operation: "
            "curlCode: 6, Could not resolve hostname; Details: Could not resolve host: none.s3.us-east-1.amazonaws.com"
        )

    monkeypatch.setattr("pipelines.files.stores._client", fail)
    with pytest.raises(UserError) as caught:
        storage.exists("s3://none/run/manifest.json")
    assert str(caught.value) == (
        "the bucket none is not found (Could not resolve host: none.s3.us-east-1.amazonaws.com); check its name, and "
        "AWS_REGION or AWS_ENDPOINT_URL"
    )
