"""Answers of an encoder behind an API, kept on disk: what was paid for once is not paid for again.

One SQLite file per machine in the run folder: its processes share it, each transaction is whole or not there however a
process dies, and memory stays flat. Object stores hold no such file; runs there keep no answers.
"""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

WAIT_SECONDS = 60.0  # for another process that is writing
_AT_ONCE = 500  # keys per look-up
Row = npt.NDArray[np.float32]


class AnswerCache:
    """Embeddings by the hash of what was asked; safe for threads and processes of one machine.

    The key covers which encoder answered and the exact bytes of the image, so it stands for image and view seed alike,
    and for everything else that makes a view what it is.

    Args:
        path: of the file; it is made when it is not there, and made anew when it is damaged.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()

    def get(self, keys: Sequence[bytes], outputs: Sequence[str]) -> dict[bytes, dict[str, Row]]:
        """Whole and undamaged answers among those asked for: (D,) float32 by output."""
        found: dict[bytes, dict[str, Row]] = {}

        def look_up(database: sqlite3.Connection) -> None:
            for start in range(0, len(keys), _AT_ONCE):
                part = keys[start : start + _AT_ONCE]
                marks = ",".join("?" * len(part))
                rows = database.execute(f"SELECT key, output, value, sum FROM answers WHERE key IN ({marks})", part)
                for key, output, value, checksum in rows:
                    if zlib.crc32(value) == checksum:
                        found.setdefault(key, {})[output] = np.frombuffer(value, dtype=np.float32)

        self._use(look_up)
        return {key: answer for key, answer in found.items() if set(outputs) <= set(answer)}

    def put(self, answers: Mapping[bytes, Mapping[str, Row]]) -> None:
        """Keep answers, replacing what was there; all of them or, if the process dies, none."""
        rows = [
            (key, output, value := np.asarray(row, dtype=np.float32).tobytes(), zlib.crc32(value))
            for key, answer in answers.items()
            for output, row in answer.items()
        ]
        self._use(lambda database: database.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", rows))

    def _use(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """One transaction on a connection of its own, which may not go from thread to thread or to a forked process."""
        with self._lock:
            try:
                self._transaction(work)
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                    raise
                for suffix in ("", "-wal", "-shm"):  # what a damaged file held is asked again
                    Path(f"{self.path}{suffix}").unlink(missing_ok=True)
                self._transaction(work)

    def _transaction(self, work: Callable[[sqlite3.Connection], object]) -> None:
        with closing(sqlite3.connect(self.path, timeout=WAIT_SECONDS)) as database, database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = OFF")  # a machine that loses power asks some of it again
            database.execute(
                "CREATE TABLE IF NOT EXISTS answers "
                "(key BLOB, output TEXT, value BLOB, sum INTEGER, PRIMARY KEY (key, output)) WITHOUT ROWID"
            )
            work(database)
