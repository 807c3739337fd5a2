"""Answers on disk: whole or absent, whoever writes them and however he dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest

from pipelines.encoders.access import AnswerCache

OUTPUTS = ("backbone", "projection")


def answers(numbers: range) -> dict[bytes, dict[str, np.ndarray]]:
    return {
        number.to_bytes(32, "little"): {
            "backbone": np.arange(number, number + 6, dtype=np.float32),
            "projection": np.full(3, number, dtype=np.float32),
        }
        for number in numbers
    }


def assert_same(found: dict[bytes, dict[str, np.ndarray]], expected: dict[bytes, dict[str, np.ndarray]]) -> None:
    assert set(found) == set(expected)
    for key, answer in expected.items():
        for output, row in answer.items():
            np.testing.assert_array_equal(found[key][output], row)
            assert found[key][output].dtype == np.float32


def test_what_is_put_is_got(tmp_path: Path) -> None:
    cache = AnswerCache(str(tmp_path / "new/answers.sqlite"))
    given = answers(range(1200))
    assert cache.get(list(given), OUTPUTS) == {}
    cache.put(given)
    assert_same(AnswerCache(str(cache.path)).get([*given, b"?" * 32], OUTPUTS), given)
    assert cache.get(list(given), ("backbone", "logits")) == {}  # half an answer is none


def test_a_damaged_entry_is_asked_again(tmp_path: Path) -> None:
    cache = AnswerCache(str(tmp_path / "answers.sqlite"))
    given = answers(range(3))
    cache.put(given)
    hurt = next(iter(given))
    with sqlite3.connect(cache.path) as database:
        database.execute("UPDATE answers SET value = zeroblob(24) WHERE key = ? AND output = 'backbone'", (hurt,))
    database.close()
    assert_same(cache.get(list(given), OUTPUTS), {key: answer for key, answer in given.items() if key != hurt})


@pytest.mark.parametrize("where", ["head", "inside"])
def test_a_damaged_file_is_made_anew(tmp_path: Path, where: str) -> None:
    cache = AnswerCache(str(tmp_path / "answers.sqlite"))
    cache.put(answers(range(2000)))
    cache.put(answers(range(2000, 2001)))
    with sqlite3.connect(cache.path) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    content = bytearray(cache.path.read_bytes())
    start = 0 if where == "head" else 4096
    content[start : start + 60_000] = os.urandom(60_000)
    cache.path.write_bytes(content)
    assert cache.get(list(answers(range(2000))), OUTPUTS) == {}
    cache.put(answers(range(5)))
    assert_same(cache.get(list(answers(range(5))), OUTPUTS), answers(range(5)))


def write_forever(path: str) -> None:
    cache = AnswerCache(path)
    for start in range(0, 10**6, 10):
        cache.put(answers(range(start, start + 10)))


def test_a_killed_writer_leaves_whole_answers_and_no_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "answers.sqlite")
    cache = AnswerCache(path)
    writers = [multiprocessing.get_context("spawn").Process(target=write_forever, args=(path,)) for _ in range(2)]
    for writer in writers:
        writer.start()
    wanted = list(answers(range(200)))
    while len(cache.get(wanted, OUTPUTS)) < 200:
        assert all(writer.is_alive() for writer in writers)
    for writer in writers:
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    assert_same(cache.get(wanted, OUTPUTS), answers(range(200)))
    several = range(10**6, 10**6 + 400)
    parts = [answers(several[start : start + 50]) for start in range(0, 400, 50)]
    threads = [threading.Thread(target=cache.put, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_same(cache.get(list(answers(several)), OUTPUTS), answers(several))
