"""Containers of Azure: the same tests on a container in memory and, where Azurite is installed, on a real server."""

from __future__ import annotations

import pickle
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import obstore.store
import pytest
from obstore.store import MemoryStore
from pyarrow import fs

from pipelines.errors import UserError
from pipelines.files import azure, conditional, storage, stores
from pipelines.files.stores import store_of
from pipelines.files.walk import walk
from tests.endpoints import running
from tests.pipelines.files.keys import ODD, check_key
from tests.raising import refused

KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # Azurite's, public


def _account(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "devstoreaccount1")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{endpoint}/devstoreaccount1")


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real blob server on this host, with an empty container called ``box``."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("needs azurite-blob: npm install --global azurite")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    asked = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--skipApiVersionCheck", "--disableTelemetry"]
    with subprocess.Popen([program, *asked, "--inMemoryPersistence"], stdout=subprocess.DEVNULL) as server:
        endpoint = {"blob_storage_authority": f"127.0.0.1:{port}", "dfs_storage_authority": f"127.0.0.1:{port}"}
        plain = {"blob_storage_scheme": "http", "dfs_storage_scheme": "http"}
        for _ in range(300):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        fs.AzureFileSystem("devstoreaccount1", account_key=KEY, **endpoint, **plain).create_dir("box")
        yield f"http://127.0.0.1:{port}"
        server.terminate()


@pytest.fixture(params=["memory", "azurite"])
def az(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A container as users write it."""
    stores._client.cache_clear()
    conditional._store.cache_clear()
    if request.param == "memory":
        memory = MemoryStore()
        monkeypatch.setattr(obstore.store, "from_url", lambda *_, **__: memory)
    else:
        _account(monkeypatch, request.getfixturevalue("azurite"))
    yield "az://box"
    stores._client.cache_clear()
    conditional._store.cache_clear()


@pytest.mark.parametrize("name", [name for name in ODD if "\\" not in name])
def test_a_key_is_read_and_written_as_it_stands(name: str, az: str) -> None:
    check_key(az, name)
    assert not storage.exists(f"{az}/odd {name}")


def test_folders_and_what_is_not_there(az: str) -> None:
    for name in ("a.tar", "sub/b.tar", "sub/below/c.tar", "none.tar"):
        storage.write_atomic(f"{az}/m/{name}", b"" if name == "none.tar" else b"xyz")
    storage.write_atomic(f"{az}/more/x", b"x")  # no part of m
    assert storage.is_folder(f"{az}/m")
    assert not storage.is_folder(f"{az}/m/a.tar")
    found = [one.removeprefix(f"{az}/m/") for one in storage.list_files(f"{az}/m")]
    assert found == ["a.tar", "none.tar", "sub/b.tar", "sub/below/c.tar"]
    assert storage.list_files(f"{az}/m", recursive=False) == [f"{az}/m/a.tar", f"{az}/m/none.tar"]
    folders = {one.path: (one.files, one.folders) for one in walk(f"{az}/m", lambda *_: True)}
    assert folders[f"{az}/m"] == (("a.tar", "none.tar"), ("sub",))
    assert folders[f"{az}/m/sub/below"] == (("c.tar",), ())
    before = storage.stamp(f"{az}/m/a.tar")
    time.sleep(1.1)
    storage.write_atomic(f"{az}/m/a.tar", b"abc")
    assert storage.stamp(f"{az}/m/a.tar") != before
    refused(FileNotFoundError, "az://box: ", storage.read_bytes, f"{az}/m/nothing")
    assert storage.list_files(f"{az}/nothing") == []
    assert [one.fault for one in walk(f"{az}/nothing", lambda *_: True)] == ["nothing is not there"]
    storage.remove(f"{az}/m")
    assert not storage.exists(f"{az}/m")
    assert storage.exists(f"{az}/more/x")
    storage.remove(f"{az}/m")


def test_a_file_is_read_whole_and_in_any_order(az: str) -> None:
    whole = bytes(range(256)) * 50_000  # more than is asked for at once
    storage.write_atomic(f"{az}/big", whole)
    assert storage.read_bytes(f"{az}/big") == whole
    with storage.open_seekable(f"{az}/big") as file:
        assert file.size() == len(whole)
        for place in (12_000_000, 5, 1_048_570):
            file.seek(place)
            assert file.read(20) == whole[place : place + 20]


def test_an_empty_object_that_marks_a_folder_is_no_file(azurite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _account(monkeypatch, azurite)
    at = azurite.removeprefix("http://")
    plain = {"blob_storage_scheme": "http", "dfs_storage_scheme": "http"}
    store = fs.AzureFileSystem(
        "devstoreaccount1", account_key=KEY, blob_storage_authority=at, dfs_storage_authority=at, **plain
    )
    for name in ("marked", "marked/sub", "marked/empty"):
        store.create_dir(f"box/{name}")
    storage.write_atomic("az://box/marked/sub/x", b"x")
    assert storage.list_files("az://box/marked") == ["az://box/marked/sub/x"]
    assert storage.sizes("az://box/marked") == {}
    assert [(one.path, one.fault) for one in walk("az://box/marked", lambda *_: True)] == [
        *(("az://box/marked", ""), ("az://box/marked/empty", ""), ("az://box/marked/sub", ""))
    ]


def test_an_address_names_the_account_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    monkeypatch.setattr(stores, "_await_answer", lambda *_: None)
    store, place = store_of("abfss://box@account.dfs.core.windows.net/a b%20c")
    assert (store.type_name, place) == ("py::azure", "a b%20c")


@pytest.mark.parametrize("scheme", ["abfs://box", "abfss://box@devstoreaccount1.dfs.core.windows.net"])
def test_each_way_to_write_an_address(scheme: str, azurite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _account(monkeypatch, azurite)
    storage.write_atomic("az://box/way/x", b"x")
    assert storage.read_bytes(f"{scheme}/way/x") == b"x"
    assert storage.list_files(f"{scheme}/way") == [f"{scheme}/way/x"]


def test_a_client_travels_without_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    _account(monkeypatch, "http://127.0.0.1:9")
    packed = pickle.dumps(azure.container("az://box", 1, stores.PATIENCE))
    assert KEY.encode() not in packed
    assert pickle.loads(packed).handler.address == "az://box"


class _Answer(BaseHTTPRequestHandler):
    status = 403

    def do_GET(self) -> None:
        self.send_error(self.status)

    do_HEAD = do_PUT = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def refusing() -> Iterator[str]:
    """A server that answers all requests with ``_Answer.status``."""
    with running(ThreadingHTTPServer(("127.0.0.1", 0), _Answer)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.mark.parametrize(("status", "told"), [(403, "403 .*set AZURE_STORAGE_ACCOUNT_NAME, and"), (404, "not found")])
def test_a_refusal_is_one_line_with_a_remedy(
    status: int, told: str, refusing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _account(monkeypatch, refusing)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2024-01-01&sig=hush")
    monkeypatch.setattr(_Answer, "status", status)
    with pytest.raises((UserError, FileNotFoundError), match=f"^az://box: .*{told}") as caught:
        storage.read_bytes("az://box/x")
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_container_that_is_not_there_is_named_on_writing(refusing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _account(monkeypatch, refusing)
    monkeypatch.setattr(_Answer, "status", 404)
    assert not storage.exists("az://box/x")
    for act in (storage.write_atomic, storage.create):
        refused(UserError, "az://box: .*make the container first", act, "az://box/x", b"")


def test_without_account_or_with_a_broken_key(monkeypatch: pytest.MonkeyPatch) -> None:
    _account(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "no key!")
    refused(UserError, "az://box: Invalid Access Key: .*; set AZURE_STORAGE_ACCOUNT_NAME", store_of, "az://box/x")
    for name in ("NAME", "KEY"):
        monkeypatch.delenv(f"AZURE_STORAGE_ACCOUNT_{name}")
    refused(UserError, "az://box: Account must be specified; set AZURE_STORAGE_ACCOUNT_NAME", store_of, "az://box/x")


def test_a_store_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    _account(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.setattr(stores, "ATTEMPTS", 2)
    refused(UserError, "az://box: .*; check the network, and the credentials", storage.read_bytes, "az://box/x")
