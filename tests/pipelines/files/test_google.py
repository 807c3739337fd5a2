"""Buckets of Google, on an emulator of its API on this host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipelines.files import lock as locks
from pipelines.files import storage
from tests.pipelines.files.keys import ODD, check_key


@pytest.fixture(scope="module")
def emulator() -> Iterator[str]:
    """The address of a server with an empty bucket called ``bucket``."""
    server = pytest.importorskip("gcp_storage_emulator.server").create_server("127.0.0.1", 0, True, "bucket")
    server.start()
    yield f"http://127.0.0.1:{server._api._httpd.server_port}"
    server.stop()


@pytest.fixture
def gs(emulator: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The bucket as users write it."""
    monkeypatch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", emulator)
    monkeypatch.setattr(locks, "SETTLE_SECONDS", 0.1)
    return "gs://anonymous@bucket"


@pytest.mark.parametrize("name", [name for name in ODD if name != "%"])
def test_a_key_is_read_and_written_as_it_stands(name: str, gs: str) -> None:
    check_key(gs, name)
    assert not storage.exists(f"{gs}/odd {name}")


def test_a_folder_that_nobody_made_is_removed_with_what_is_in_it(gs: str) -> None:
    """There is no object of its name, for which the client looks at the end."""
    for name in ("a", "sub/b", "sub/below/c"):
        storage.write_atomic(f"{gs}/folder/{name}", b"x")
    storage.write_atomic(f"{gs}/folders", b"x")
    storage.remove(f"{gs}/folder")
    assert not storage.exists(f"{gs}/folder")
    assert storage.exists(f"{gs}/folders")
    storage.remove(f"{gs}/folder")


def test_what_is_not_there(gs: str) -> None:
    assert storage.list_files(f"{gs}/none") == []
    assert not storage.exists("gs://anonymous@nobucket/none")
    with pytest.raises(FileNotFoundError):
        storage.read_bytes(f"{gs}/none")
