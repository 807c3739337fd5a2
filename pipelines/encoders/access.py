"""Access to encoders behind an API: one meter for all workers, with a ledger in the run folder.

The ledger, RUN/spend/*.json, holds the charges of each address. It is written before anything is sent, so that no kill
loses a charge: on a disk before each request, on an object store before each block of requests.

Answers of an encoder behind an API, kept on disk: what was paid for once is not paid for again.

One SQLite file per machine in the run folder: its processes share it, each transaction is whole or not there however a
process dies, and memory stays flat. Object stores hold no such file; runs there keep no answers.
"""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mi_core.checks import ConfigError
from mi_core.encoders.remote import parameters as secrets
from mi_core.encoders.remote.client import Client
from mi_core.encoders.remote.meter import BLOCK, Limits, Meter, Permit, Spent
from mi_core.encoders.remote.parameters import EndpointParameters
from mi_core.report.words.numbers import plain
from pipelines.config.sections.encoders import EndpointConfig
from pipelines.console import count_of, say
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.run.points import Run
from pipelines.run.ray_session import HELPER_MEMORY, borne

_KEEPING_SECONDS = 30.0  # for an answer to be checked and kept
_LAST_WORD_SECONDS = 1.0  # for the last message of a worker to arrive


@dataclass(frozen=True)
class Access:
    """Access of a run's workers to endpoints.

    Args:
        folder: of the run; points of a sweep share that of the whole.
        meters: the Ray actor that charges requests.
        patience: seconds that a request and the keeping of its answer may take.
    """

    folder: str
    meters: Any
    patience: float = 0.0

    def client(
        self,
        name: str,
        parameters: EndpointParameters,
        *,
        identity: str | None = None,
        widths: Mapping[str, int] | None = None,
    ) -> Client:
        """A client whose requests are charged to the run.

        Args:
            name: of the encoder, for errors.
            parameters: address and settings.
            identity: fingerprint of the encoder, under which its answers are kept; None: none are kept.
            widths: D by output, where it is known.

        Raises:
            UserError: an environment variable that should hold a secret is not set on this machine.
            ConfigError: as `Client`.
        """
        cached = parameters.cache and identity is not None and not storage.is_uri(self.folder)
        key, query = secrets_of(name, parameters)
        return Client(
            parameters,
            _Account(self.meters, parameters.url),
            name=f"encoders.{name}.endpoint",
            key=key,
            query=query,
            cache=AnswerCache(f"{self.folder}/answers/{socket.gethostname()}.sqlite") if cached else None,
            identity=identity or "",
            widths=widths,
        )

    def stop(self) -> None:
        """Send nothing any more, and wait for requests in flight: they are paid for, and their answers are kept."""
        import ray

        with suppress(ray.exceptions.RayError):
            waiting = ray.get(self.meters.stop.remote())
            if waiting:
                say("endpoint", f"waiting for {count_of(waiting, 'answer', 'answers')} that are already paid for")
                self._wait(self.patience)

    def settle(self) -> None:
        """Write the real charges, once all work is over."""
        import ray

        with suppress(ray.exceptions.RayError):  # a ledger that is not settled counts too much, never too little
            self._wait(_LAST_WORD_SECONDS)
            ray.get(self.meters.settle.remote())

    def _wait(self, seconds: float) -> None:
        """Wait until nothing is in flight; the requests of a killed worker stay in flight for ever."""
        import ray

        end = time.monotonic() + seconds
        while ray.get(self.meters.in_flight.remote()) and time.monotonic() < end:
            time.sleep(0.05)


@dataclass(frozen=True)
class _Account:
    """The account of one client: its requests are charged to the meter of an address."""

    meters: Any
    url: str

    def reserve(self, images: int) -> Permit:
        import ray

        return ray.get(self.meters.reserve.remote(self.url, images))

    def close(self, ticket: str, *, sent: bool) -> None:
        self.meters.close.remote(self.url, ticket, sent)


def secrets_of(name: str, parameters: EndpointParameters) -> tuple[str | None, dict[str, str]]:
    """The key of an encoder's endpoint, and the secret parameters of its address.

    Raises:
        UserError: an environment variable that should hold one is not set on this machine.
    """
    try:
        return secrets.secrets_of(parameters, f"encoders.{name}.endpoint")
    except ConfigError as error:
        raise UserError(str(error)) from error


@contextmanager
def access_to(runs: Sequence[Run]) -> Iterator[Access | None]:
    """Access for the duration of the block; None where no run has an encoder behind an API.

    Raises:
        UserError: encoders at one address have other limits, or a key is missing.
    """
    limits = _limits(runs)
    if not limits:
        yield None
        return
    import ray

    folder = runs[0][1].path
    for url in limits:
        tell_of_a_kill(folder, url)
    meter = ray.remote(num_cpus=0, memory=borne(HELPER_MEMORY), max_restarts=-1, max_task_retries=-1)
    actor = meter(Meters)
    meters = actor.remote(folder, limits)
    patience = _KEEPING_SECONDS + max(parameters.timeout_s for _, parameters in _endpoints(runs))
    shared = Access(folder, meters, patience)
    try:
        yield shared
    except Exception:
        shared.stop()
        raise
    finally:
        shared.settle()
        ray.kill(meters)


def _endpoints(runs: Sequence[Run]) -> Iterator[tuple[str, EndpointParameters]]:
    for config, _ in runs:
        for name, encoder in config.encoders.items():
            if isinstance(encoder, EndpointConfig):
                yield name, encoder.parameters()


def tell_of_a_kill(folder: str, url: str) -> None:
    """Say which charges in the ledger come from a killed start: not sent perhaps, or their answers are lost."""
    lost = spent(folder, url).minus(certain(folder, url))
    if lost.requests:
        requests = count_of(lost.requests, "request", "requests")
        counts = "counts" if lost.requests == 1 else "count"
        money = f" ({plain(lost.money, 4)} in money)" if lost.money else ""
        say(
            "endpoint",
            f"{url}: an earlier start was killed; at most {requests} with {count_of(lost.images, 'image', 'images')} "
            f"{counts} as spent{money} and may be sent again",
        )


def _limits(runs: Sequence[Run]) -> dict[str, Limits]:
    """The limits of each address."""
    by_url: dict[str, tuple[str, Limits]] = {}
    for name, parameters in _endpoints(runs):
        secrets_of(name, parameters)
        other, limits = by_url.setdefault(parameters.url, (name, parameters.limits()))
        if limits != parameters.limits():
            raise UserError(
                f"encoders.{other} and encoders.{name} ask {parameters.url} within different limits; give "
                "both the same requests_per_second, prices and max_spend"
            )
    return {url: limits for url, (_, limits) in by_url.items()}


class Meters:
    """The meters of a run, by address: a Ray actor. Started again, it goes on from the ledger."""

    def __init__(self, folder: str, limits: Mapping[str, Limits]) -> None:
        self.stopped = False
        block = BLOCK if storage.is_uri(folder) else 1
        self.meters = {
            url: Meter(own, spent(folder, url), partial(_save, folder, url), block) for url, own in limits.items()
        }

    def reserve(self, url: str, images: int) -> Permit:
        """Charge a request to an address; it is refused too where the ledger cannot be written."""
        try:
            return self.meters[url].reserve(images)
        except OSError as error:
            return Permit(0, f"the ledger of what is spent cannot be written: {error}")

    def close(self, url: str, ticket: str, sent: bool) -> None:
        """End a request; see `Meter.close`."""
        self.meters[url].close(ticket, sent=sent)

    def stop(self) -> int:
        """Grant nothing any more; returns the requests in flight, at a second call 0."""
        first = not self.stopped
        self.stopped = True
        for meter in self.meters.values():
            meter.stop()
        return self.in_flight() if first else 0

    def in_flight(self) -> int:
        """Requests that were granted and are not over."""
        return sum(meter.in_flight for meter in self.meters.values())

    def settle(self) -> None:
        """Write the real charges."""
        for meter in self.meters.values():
            meter.settle()


def spent(folder: str, url: str) -> Spent:
    """The charges of a run for an address so far, at most."""
    return _spent(_ledger(folder, url))


def certain(folder: str, url: str) -> Spent:
    """Charges of requests that were surely sent, and answered or given up: all, unless a start was killed or works."""
    ledger = _ledger(folder, url)
    return _spent(ledger.get("certain", ledger))


def _ledger(folder: str, url: str) -> dict[str, Any]:
    return dict(storage.read_json_or(_ledger_path(folder, url), {}))


def _spent(entry: Mapping[str, Any]) -> Spent:
    return Spent(**{field.name: entry[field.name] for field in fields(Spent) if field.name in entry})


def _save(folder: str, url: str, charged: Spent, sure: Spent) -> None:
    storage.write_json(_ledger_path(folder, url), {"url": url, **asdict(charged), "certain": asdict(sure)})


def _ledger_path(folder: str, url: str) -> str:
    return f"{folder}/spend/{digest(url)[:12]}.json"


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
