"""Encoders behind an API in a run: one meter for all workers, whose ledger is in the run folder, and who may ask.

The ledger, RUN/spend/*.json, holds what was charged for each address and, while a run is going on, the block that is
being used up: it is written before the block is, so that whatever is killed, nothing that was sent is missing in it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mi_core.encoders.client import Client
from mi_core.encoders.endpoint import EndpointParameters
from mi_core.encoders.meter import Limits, Meter, Permit, Spent
from pipelines import storage
from pipelines.answers import AnswerCache
from pipelines.artifacts import digest
from pipelines.encoder_config import EndpointConfig
from pipelines.errors import UserError

if TYPE_CHECKING:
    from pipelines.config import Run


@dataclass(frozen=True)
class Access:
    """How the workers of a run ask endpoints.

    Args:
        folder: of the run; points of a sweep share that of the whole.
        meters: the Ray actor that charges requests.
    """

    folder: str
    meters: Any

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
            UserError: the environment variable that should hold the key is not set on this machine.
        """
        cached = parameters.cache and identity is not None and not storage.is_uri(self.folder)
        return Client(
            parameters,
            partial(_reserve, self.meters, parameters.url),
            key=api_key(name, parameters),
            cache=AnswerCache(f"{self.folder}/answers/{socket.gethostname()}.sqlite") if cached else None,
            identity=identity or "",
            widths=widths,
        )


def api_key(name: str, parameters: EndpointParameters) -> str | None:
    """The key of an endpoint. Raises UserError: its environment variable is not set on this machine."""
    variable = parameters.api_key_env
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise UserError(
            f"encoders.{name}.endpoint.api_key_env = {variable!r}: the environment variable is not set on "
            f"{socket.gethostname()}; set it on every machine that queries, before Ray starts"
        )
    return os.environ[variable]


def _reserve(meters: Any, url: str, images: int) -> Permit:
    import ray

    permit: Permit = ray.get(meters.reserve.remote(url, images))
    return permit


@contextmanager
def access(runs: Sequence[Run]) -> Iterator[Access | None]:
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
    actor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Meters)
    meters = actor.remote(folder, limits)
    try:
        yield Access(folder, meters)
    finally:
        with suppress(ray.exceptions.RayError):  # a ledger that is not settled counts too much, never too little
            ray.get(meters.settle.remote())
        ray.kill(meters)


def _limits(runs: Sequence[Run]) -> dict[str, Limits]:
    """What each address may be asked."""
    found: dict[str, tuple[str, Limits]] = {}
    for config, _ in runs:
        for name, encoder in config.encoders.items():
            if isinstance(encoder, EndpointConfig):
                parameters = encoder.parameters()
                api_key(name, parameters)
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
        self.meters = {url: Meter(own, spent(folder, url), partial(_save, folder, url)) for url, own in limits.items()}

    def reserve(self, url: str, images: int) -> Permit:
        """Charge a request to an address; refused as well where the ledger cannot be written."""
        try:
            return self.meters[url].reserve(images)
        except OSError as error:
            return Permit(0, f"the ledger of what is spent cannot be written: {error}")

    def settle(self) -> None:
        """Write what was really charged."""
        for meter in self.meters.values():
            meter.settle()


def spent(folder: str, url: str) -> Spent:
    """What a run was charged for an address so far, at most."""
    path = _ledger_path(folder, url)
    if not storage.exists(path):
        return Spent()
    return Spent(**{name: value for name, value in storage.read_json(path).items() if name != "url"})


def _save(folder: str, url: str, charged: Spent) -> None:
    storage.write_json(_ledger_path(folder, url), {"url": url, **asdict(charged)})


def _ledger_path(folder: str, url: str) -> str:
    return f"{folder}/spend/{digest(url)[:12]}.json"
