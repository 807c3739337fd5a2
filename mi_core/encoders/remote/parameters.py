"""Settings of an encoder behind an API, and the checks of its address."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from mi_core.checks import ConfigError, check_choice, check_fields, secret_in
from mi_core.encoders.checkpoint import OUTPUTS
from mi_core.encoders.remote.adapters import ADAPTERS
from mi_core.encoders.remote.meter import Limits

_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile("[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True)
class EndpointParameters:
    """The address of an encoder, the shape of its requests, and their limits.

    Args:
        url: http:// or https://, the address that requests are posted to, without user, password, query and fragment.
            It stands in the run folder, in logs and in reports.
        query: what follows the address after a question mark, as in ``{api-version: "2026-01"}``. It stands in the run
            folder too.
        query_env: the same where a value is secret: the name of the environment variable that holds it, on every
            machine that queries.
        adapter: shape of requests and answers, of `ADAPTERS`.
        model: name that is sent along, for servers of several models.
        outputs: the embeddings it answers with; an answer that names none holds the first.
        size: side of the images it is sent, to which views are drawn; None: that of the data.
        weights_tag: your name for the weights that are served, for example a release or a date.
        batch: images per request, at most.
        concurrency: requests in flight per worker, at most.
        timeout_s: seconds for a whole request: connecting, sending, waiting and reading the answer.
        retries: how often a request is sent again after a timeout, a broken connection or a status of `client.RETRIED`.
        requests_per_second, price_per_request, price_per_image, max_spend: see `meter.Limits`; retries are charged too.
        api_key_env: name of the environment variable that holds the key, on every machine that queries.
        api_key_header: header that carries it; ``Authorization`` carries it as ``Bearer KEY``.
        cache: keep answers in the run folder, where it is on a disk, and never pay for the same image twice.

    Raises ConfigError: a value that cannot be; a secret in the address.
    """

    url: str
    query: dict[str, str] | None = None
    query_env: dict[str, str] | None = None
    adapter: str = "json"
    model: str | None = None
    outputs: tuple[str, ...] = ("backbone",)
    size: int | None = None
    weights_tag: str | None = None
    batch: int = 64
    concurrency: int = 4
    timeout_s: float = 60.0
    retries: int = 5
    requests_per_second: float | None = None
    price_per_request: float = 0.0
    price_per_image: float = 0.0
    max_spend: float | None = None
    api_key_env: str | None = None
    api_key_header: str = "Authorization"
    cache: bool = True

    def __post_init__(self) -> None:
        check_choice("adapter", self.adapter, ADAPTERS)
        check_address(self.url)
        self._check_secrets()
        if not self.outputs or len(set(self.outputs)) != len(self.outputs):
            raise ConfigError(f"outputs = {list(self.outputs)}, allowed: each of {', '.join(OUTPUTS)} once")
        for output in self.outputs:
            check_choice("outputs", output, OUTPUTS)
        check_fields(self, "size", "batch", "concurrency", low=1)
        check_fields(self, "retries", low=0)
        check_fields(self, "timeout_s", low=0, open_low=True)
        self.limits()

    def _check_secrets(self) -> None:
        secret = self.query_env or {}
        both = sorted(set(self.query or {}) & set(secret))
        if both:
            raise ConfigError(f"query and query_env both hold {both[0]!r}; keep it in one of them")
        for name, value in (self.query or {}).items():
            if kind := secret_in(f"?{name}={value}".encode()):
                raise ConfigError(
                    f"query.{name} holds {kind}, which would be shown: name its variable in query_env.{name}"
                )
        variables = {f"query_env.{name}": variable for name, variable in secret.items()}
        for name, variable in (variables | {"api_key_env": self.api_key_env or "_"}).items():
            if not _VARIABLE.fullmatch(variable):  # which may be the secret itself: it is not shown
                raise ConfigError(f"{name} is no name of an environment variable; give the name, never the key itself")
        if not _HEADER.fullmatch(self.api_key_header):
            raise ConfigError(f"api_key_header = {self.api_key_header!r} is no name of a header")

    @property
    def images_per_request(self) -> int:
        """``batch``, or fewer where the adapter takes no more."""
        return min(self.batch, ADAPTERS[self.adapter].most or self.batch)

    def limits(self) -> Limits:
        """Rate, prices and cap."""
        return Limits(self.requests_per_second, self.price_per_request, self.price_per_image, self.max_spend)

    def words(self) -> dict[str, Any]:
        """Entries of a report on the encoder before it is tried out, by the fields of its part."""
        size = f"{self.size} px" if self.size else "any size"
        return {
            "load": self.url if self.model is None else f"{self.url}, model {self.model}",
            "weights": self.weights_tag or "as served",
            "layout": f"embeddings as {self.adapter} answers hold them",
            "preprocessing": f"{size}, PNG of 8 bits, stored without loss",
        }

    def identity(self) -> dict[str, Any]:
        """The settings that answers depend on; the others may change at any time."""
        settings = {name: getattr(self, name) for name in IDENTITY}
        return {name: value for name, value in settings.items() if value is not None or name != "query"}


IDENTITY = ("url", "query", "adapter", "model", "outputs", "size", "weights_tag")


def check_address(url: str) -> None:
    """Raise ConfigError if an address is none of HTTP, or may hold a secret, which would end in logs and reports.

    No name says for sure that a parameter is harmless, so that none may be in it: `EndpointParameters.query` and
    ``query_env`` are for them. The message shows no more than the part of the address that may stay.
    """
    shown = re.split("[?#]", url)[0].rpartition("@")[2]
    if kind := secret_in(shown.encode()):
        raise ConfigError(
            f"url holds {kind}, which would be shown: set api_key_env to the name of an environment variable"
        )
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_http = False
    if not is_http or not url.isprintable() or " " in url:
        raise ConfigError(f"url = {shown!r}, allowed: http://... or https://...")
    if "@" in parts.netloc:
        raise ConfigError(
            "url holds a user or password, which would be shown: set api_key_env to the name of an environment variable"
        )
    if "?" in url or "#" in url:
        raise ConfigError(
            f"url holds something after {shown}, which would be shown: give what is harmless as query, such as "
            'query: {api-version: "2026-01"}, and what is secret as query_env: {NAME: ENVIRONMENT_VARIABLE}'
        )


def secrets_of(parameters: EndpointParameters, place: str, key: str | None = None) -> tuple[str | None, dict[str, str]]:
    """The key of an API, and the secret parameters of its address.

    Args:
        parameters: name the environment variables that hold them.
        place: of the parameters, for errors.
        key: in place of the one that ``api_key_env`` names.

    Raises ConfigError: an environment variable that should hold one is not set on this machine.
    """
    if key is None and parameters.api_key_env is not None:
        key = _secret(f"{place}.api_key_env", parameters.api_key_env)
    variables = parameters.query_env or {}
    return key, {field: _secret(f"{place}.query_env.{field}", variable) for field, variable in variables.items()}


def _secret(place: str, variable: str) -> str:
    if not os.environ.get(variable):
        raise ConfigError(
            f"{place} = {variable!r}: the environment variable is not set on {socket.gethostname()}; set it on every "
            "machine that queries, before it starts"
        )
    return os.environ[variable]
