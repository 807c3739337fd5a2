"""Calls of an actor overlap, but a call that looks for the cause of a death works alone."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mi_core.images import Decoder, encode_png
from pipelines.extract.actor import worker
from pipelines.extract.actor.asking import decoded_ahead
from pipelines.extract.actor.attempts import QUERYING, marker_path
from pipelines.extract.actor.worker import EncodeChunks, Turns
from pipelines.files import storage
from tests.pipelines.extract.actor.test_together import config_with, contents, encoded, planned, rows_of

pytestmark = pytest.mark.ray

WAIT = 20.0


class Seen:
    """How many are inside at once."""

    def __init__(self) -> None:
        self.lock, self.now, self.most = threading.Lock(), 0, 0

    @contextmanager
    def inside(self) -> Iterator[None]:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            time.sleep(0.01)
            yield
        finally:
            with self.lock:
                self.now -= 1


def test_sharing_overlaps_and_nothing_is_beside_one_alone() -> None:
    turns, all_of_them, alone_ones = Turns(), Seen(), Seen()
    both, broken = threading.Barrier(2, timeout=WAIT), []

    def shared() -> None:
        with turns.shared(), all_of_them.inside():
            if alone_ones.now:
                broken.append("shared beside alone")

    def alone() -> None:
        with turns.alone(), alone_ones.inside():
            if all_of_them.now:
                broken.append("alone beside shared")

    def meet() -> None:
        with turns.shared():
            both.wait()

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(act) for act in [meet, meet, *[shared, alone] * 20]]:
            future.result(WAIT)
    assert not broken
    assert alone_ones.most == 1


def test_who_fails_gives_his_turn_back() -> None:
    turns = Turns()
    for enter in (turns.shared, turns.alone, turns.alone, turns.shared):
        with pytest.raises(RuntimeError), enter():
            raise RuntimeError
    with turns.alone():
        pass


def at_once(encode: EncodeChunks, rows: Sequence[pa.Table]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(2) as pool:
        return [receipt for table in pool.map(encode, rows) for receipt in table.to_pylist()]


def watched(monkeypatch: pytest.MonkeyPatch, name: str, around: Callable[[], AbstractContextManager[None]]) -> None:
    plain = getattr(worker, name)

    def watching(*given: Any, **named: Any) -> Any:
        with around():
            return plain(*given, **named)

    monkeypatch.setattr(worker, name, watching)


def test_a_chunk_is_asked_for_while_the_one_before_is_committed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The features are those of one call after another; neither encoders nor commits are used by two at once."""
    shutil.copytree(folder, tmp_path / "serial")
    asking, committing, either = Seen(), Seen(), Seen()

    @contextmanager
    def of(one: Seen) -> Iterator[None]:
        with one.inside(), either.inside():
            yield

    watched(monkeypatch, "ask", lambda: of(asking))
    watched(monkeypatch, "commit", lambda: of(committing))
    jobs = planned(config_with(queries={"views": 4, "chunk": 8}), str(folder))
    encoded(planned(config_with(queries={"views": 4, "chunk": 8}), str(tmp_path / "serial")), EncodeChunks())
    (asking.most, committing.most, either.most) = (0, 0, 0)
    monkeypatch.setattr(worker, "AHEAD", 3)
    receipts = at_once(EncodeChunks(threads=2), rows_of(jobs))
    assert not [receipt["error"] for receipt in receipts if receipt["error"]]
    assert (asking.most, committing.most, either.most) == (1, 1, 2)
    ours, theirs = contents(folder), contents(tmp_path / "serial")
    assert ours.keys() == theirs.keys()
    assert all(table.equals(theirs[name]) for name, table in ours.items())


def test_a_failed_commit_fails_its_chunk_and_no_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = planned(config_with(), str(folder))
    rows, plain = rows_of(jobs), storage.write_table
    bad = jobs[0].path(jobs[0].query.epochs[0], 0)

    def full(path: str, table: pa.Table) -> None:
        if path == bad:
            raise OSError(28, "No space left on device", path)
        plain(path, table)

    monkeypatch.setattr(storage, "write_table", full)
    receipts = at_once(EncodeChunks(), rows)
    (failed,) = [receipt["error"] for receipt in receipts if receipt["error"]]
    assert failed.startswith(f"{bad}: No space left on device; what was committed is kept")
    assert not storage.exists(bad)
    done = {path for job in jobs for chunk in range(job.chunks) for path in job.paths(chunk) if storage.exists(path)}
    receipted = sum(receipt["rows"] for receipt in receipts)
    assert receipted >= 32
    assert len(done) >= 2 * (len(receipts) - 1)


def test_a_suspected_chunk_is_asked_for_while_no_other_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An innocent chunk beside it would count its deaths, or have its own samples blamed."""
    jobs = planned(config_with(queries={"views": 4, "chunk": 16}), str(folder))
    suspect = jobs[0]
    for number in (1, 2):
        storage.write_atomic(marker_path(suspect, 0, number, QUERYING), b"10 now")
    encode, plain = EncodeChunks(), worker.ask
    careful: list[int] = []

    def watching(groups: Any, row: Any, pixels_of: Any, attempt: Any = None) -> Any:
        if attempt is not None and attempt.careful:
            time.sleep(0.2)  # others could begin
            careful.append(encode.turns.beside)
        return plain(groups, row, pixels_of, attempt)

    monkeypatch.setattr(worker, "ask", watching)
    receipts = at_once(encode, rows_of(jobs))
    assert not [receipt["error"] for receipt in receipts if receipt["error"]]
    assert careful == [0]


def test_threads_begin_to_decode_before_anybody_asks() -> None:
    files = [encode_png(np.full((8, 8, 3), number, dtype=np.uint8)) for number in range(20)]
    with ThreadPoolExecutor(1) as pool:
        pixels = decoded_ahead([*files, b"cut"], Decoder(8), pool, 4)
        deadline = time.monotonic() + WAIT
        while pool._work_queue.qsize() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not pool._work_queue.qsize()
        found = list(pixels)
    assert [one if isinstance(one, str) else int(one[0, 0, 0]) for one in found][:20] == list(range(20))
    assert isinstance(found[20], str)
