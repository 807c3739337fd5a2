"""Many files at a time: in order, few ahead of the reader, and removed with few requests."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pipelines.files import many, storage
from tests.conftest import S3_REQUESTS


def test_results_come_in_order_and_few_are_ahead() -> None:
    begun: list[str] = []
    lock = threading.Lock()

    def square(path: str) -> int:
        with lock:
            begun.append(path)
        return int(path) ** 2

    for number, result in enumerate(many.streamed(square, [str(number) for number in range(200)])):
        assert result == number**2
        assert len(begun) <= number + storage.THREADS + 2
    assert len(begun) == 200


def test_an_error_comes_where_its_result_would(tmp_path: Path) -> None:
    storage.write_atomic(f"{tmp_path}/0", b"x")
    results = many.streamed(storage.read_bytes, [f"{tmp_path}/0", f"{tmp_path}/1"])
    assert next(results) == b"x"
    with pytest.raises(FileNotFoundError):
        next(results)


def test_files_are_removed_whether_they_are_there_or_not(tmp_path: Path) -> None:
    paths = [f"{tmp_path}/{folder}/{name}" for folder in "ab" for name in range(3)]
    for path in paths[1:]:
        storage.write_atomic(path, b"")
    storage.write_atomic(f"{tmp_path}/a/kept", b"")
    many.remove_files(paths)
    assert storage.list_files(str(tmp_path)) == [f"{tmp_path}/a/kept"]
    many.remove_files([])


def test_an_object_store_sees_one_request_for_many(s3: str) -> None:
    paths = [f"{s3}/many/{name}" for name in range(20)]
    for path in paths:
        storage.write_atomic(path, b"")
    S3_REQUESTS.clear()
    many.remove_files(paths)
    assert S3_REQUESTS == ["POST /bucket"]
    assert storage.list_files(f"{s3}/many") == []
