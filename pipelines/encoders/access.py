"""Encoders behind an API in a run: one meter for all workers, whose ledger is in the run folder, and who may ask.

The ledger, RUN/spend/*.json, holds what was charged for each address. It is written before anything is sent, so that
whatever is killed, nothing that was sent is missing in it: before each request where it is on a disk, in blocks of
requests where it is on an object store.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any

from mi_core.encoders.remote.client import Client
from mi_core.encoders.remote.meter import BLOCK, Limits, Meter, Permit, Spent
from mi_core.encoders.remote.parameters import EndpointParameters
from pipelines.config.encoders import EndpointConfig
from pipelines.console import count_of, say
from pipelines.encoders.answer_cache import AnswerCache
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.run.points import Run

_KEEPING_SECONDS = 30.0  # an answer that came may take so long to be checked and kept
_LAST_WORD_SECONDS = 1.0  # what a worker says last may take so long to arrive


@dataclass(frozen=True)
class Access:
    """How the workers of a run ask endpoints.

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
        return Client(
            parameters,
            _Account(self.meters, parameters.url),
            name=f"encoders.{name}.endpoint",
            key=api_key(name, parameters),
            query=secret_query(name, parameters),
            cache=AnswerCache(f"{self.folder}/answers/{socket.gethostname()}.sqlite") if cached else None,
            identity=identity or "",
            widths=widths,
        )

    def stop(self) -> None:
        """Send nothing any more, and wait for what is in flight: it is paid for, and its answers are kept."""
        import ray

        with suppress(ray.exceptions.RayError):
            waiting = ray.get(self.meters.stop.remote())
            if waiting:
                say("endpoint", f"waiting for {count_of(waiting, 'answer', 'answers')} that are already paid for")
                self._wait(self.patience)

    def settle(self) -> None:
        """Write what was really charged, once all work is over."""
        import ray

        with suppress(ray.exceptions.RayError):  # a ledger that is not settled counts too much, never too little
            self._wait(_LAST_WORD_SECONDS)
            ray.get(self.meters.settle.remote())

    def _wait(self, seconds: float) -> None:
        """Until nothing is in flight; what a worker asked that was killed is so for ever."""
        import ray

        end = time.monotonic() + seconds
        while ray.get(self.meters.in_flight.remote()) and time.monotonic() < end:
            time.sleep(0.05)


@dataclass(frozen=True)
class _Account:
    """What the requests of one client are charged to."""

    meters: Any
    url: str

    def reserve(self, images: int) -> Permit:
        import ray

        permit: Permit = ray.get(self.meters.reserve.remote(self.url, images))
        return permit

    def close(self, ticket: str, *, sent: bool) -> None:
        self.meters.close.remote(self.url, ticket, sent)


def api_key(name: str, parameters: EndpointParameters) -> str | None:
    """The key of an endpoint. Raises UserError: its environment variable is not set on this machine."""
    variable = parameters.api_key_env
    return None if variable is None else _secret(f"encoders.{name}.endpoint.api_key_env", variable)


def secret_query(name: str, parameters: EndpointParameters) -> dict[str, str]:
    """The secret parameters of an address. Raises UserError: an environment variable is not set on this machine."""
    place = f"encoders.{name}.endpoint.query_env"
    return {field: _secret(f"{place}.{field}", variable) for field, variable in (parameters.query_env or {}).items()}


def _secret(place: str, variable: str) -> str:
    if not os.environ.get(variable):
        raise UserError(
            f"{place} = {variable!r}: the environment variable is not set on {socket.gethostname()}; set it on every "
            "machine that queries, before Ray starts"
        )
    return os.environ[variable]


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
        _tell_of_a_kill(folder, url)
    actor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Meters)
    meters = actor.remote(folder, limits)
    shared = Access(folder, meters, _KEEPING_SECONDS + max(_timeouts(runs)))
    try:
        yield shared
    except Exception:
        shared.stop()
        raise
    finally:
        shared.settle()
        ray.kill(meters)


def _timeouts(runs: Sequence[Run]) -> Iterator[float]:
    for config, _ in runs:
        yield from (one.parameters().timeout_s for one in config.encoders.values() if isinstance(one, EndpointConfig))


def _tell_of_a_kill(folder: str, url: str) -> None:
    """Say what the ledger counts that a killed start may not have sent, or of which the answers are lost."""
    lost = spent(folder, url).minus(certain(folder, url))
    if lost.requests:
        requests = count_of(lost.requests, "request", "requests")
        counts = "counts" if lost.requests == 1 else "count"
        money = f" ({lost.money:.4g} in money)" if lost.money else ""
        say(
            "endpoint",
            f"{url}: an earlier start was killed; at most {requests} with {count_of(lost.images, 'image', 'images')} "
            f"{counts} as spent{money} and may be sent again",
        )


def _limits(runs: Sequence[Run]) -> dict[str, Limits]:
    """What each address may be asked."""
    found: dict[str, tuple[str, Limits]] = {}
    for config, _ in runs:
        for name, encoder in config.encoders.items():
            if isinstance(encoder, EndpointConfig):
                parameters = encoder.parameters()
                api_key(name, parameters)
                secret_query(name, parameters)
                other, limits = found.setdefault(parameters.url, (name, parameters.limits()))
                if limits != parameters.limits():
                    raise UserError(
                        f"encoders.{other} and encoders.{name} ask {parameters.url} within different limits; give "
                        "both the same requests_per_second, prices and max_spend"
                    )
    return {url: limits for url, (_, limits) in found.items()}


class Meters:
    """The meters of a run, by address: a Ray actor. Started again, it goes on from the ledger."""

    def __init__(self, folder: str, limits: Mapping[str, Limits]) -> None:
        self.stopped = False
        block = BLOCK if storage.is_uri(folder) else 1
        self.meters = {
            url: Meter(own, spent(folder, url), partial(_save, folder, url), block) for url, own in limits.items()
        }

    def reserve(self, url: str, images: int) -> Permit:
        """Charge a request to an address; refused as well where the ledger cannot be written."""
        try:
            return self.meters[url].reserve(images)
        except OSError as error:
            return Permit(0, f"the ledger of what is spent cannot be written: {error}")

    def close(self, url: str, ticket: str, sent: bool) -> None:
        """A request is over; see `Meter.close`."""
        self.meters[url].close(ticket, sent=sent)

    def stop(self) -> int:
        """Grant nothing any more; returns how many requests are in flight, or 0 if this was known before."""
        first = not self.stopped
        self.stopped = True
        for meter in self.meters.values():
            meter.stop()
        return self.in_flight() if first else 0

    def in_flight(self) -> int:
        """Requests that were granted and are not over."""
        return sum(meter.in_flight for meter in self.meters.values())

    def settle(self) -> None:
        """Write what was really charged."""
        for meter in self.meters.values():
            meter.settle()


def spent(folder: str, url: str) -> Spent:
    """What a run was charged for an address so far, at most."""
    return _spent(_ledger(folder, url))


def certain(folder: str, url: str) -> Spent:
    """What of it was surely sent, and answered or given up; all of it unless a start was killed or is at work."""
    ledger = _ledger(folder, url)
    return _spent(ledger.get("certain", ledger))


def _ledger(folder: str, url: str) -> dict[str, Any]:
    path = _ledger_path(folder, url)
    found: dict[str, Any] = storage.read_json(path) if storage.exists(path) else {}
    return found


def _spent(entry: Mapping[str, Any]) -> Spent:
    return Spent(**{field.name: entry[field.name] for field in fields(Spent) if field.name in entry})


def _save(folder: str, url: str, charged: Spent, sure: Spent) -> None:
    storage.write_json(_ledger_path(folder, url), {"url": url, **asdict(charged), "certain": asdict(sure)})


def _ledger_path(folder: str, url: str) -> str:
    return f"{folder}/spend/{digest(url)[:12]}.json"
