"""An encoder behind HTTP: its settings, and the encoder that asks it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import torch
from torch import nn

from mi_core.checks import ConfigError, check_choice, check_range
from mi_core.encoders.adapters import ADAPTERS
from mi_core.encoders.checkpoint import OUTPUTS, Encoder
from mi_core.encoders.client import Client
from mi_core.encoders.meter import Limits
from mi_core.encoders.png import png_bytes

_SECRET = re.compile("key|token|secret|signature|password|^sig$", re.IGNORECASE)


@dataclass(frozen=True)
class EndpointParameters:
    """Where an encoder answers, what it is sent, and how much it may be asked.

    Args:
        url: http:// or https://, the address that requests are posted to.
        adapter: shape of requests and answers, of `ADAPTERS`.
        model: name that is sent along, for servers of several models.
        outputs: the embeddings it answers with; an answer that names none holds the first.
        size: side of the images it is sent, to which views are drawn; None: that of the data.
        weights_tag: your name for the weights that are served, for example a release or a date.
        batch: images per request, at most.
        concurrency: requests in flight per worker, at most.
        timeout_s: seconds to wait for an answer.
        retries: how often a request is sent again after a timeout, a broken connection or a status of `client.RETRIED`.
        requests_per_second, price_per_request, price_per_image, max_spend: see `meter.Limits`; retries are charged too.
        api_key_env: name of the environment variable that holds the key, on every machine that queries.
        api_key_header: header that carries it; ``Authorization`` carries it as ``Bearer KEY``.
        cache: keep answers in the run folder, where it is on a disk, and never pay for the same image twice.

    Raises:
        ConfigError: a value that cannot be; a secret in the address.
    """

    url: str
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
        if not self.outputs or len(set(self.outputs)) != len(self.outputs):
            raise ConfigError(f"outputs = {list(self.outputs)}, allowed: each of {', '.join(OUTPUTS)} once")
        for output in self.outputs:
            check_choice("outputs", output, OUTPUTS)
        if self.size is not None:
            check_range("size", self.size, 1)
        for name in ("batch", "concurrency"):
            check_range(name, getattr(self, name), 1)
        check_range("retries", self.retries, 0)
        check_range("timeout_s", self.timeout_s, 0, open_low=True)
        self.limits()

    def limits(self) -> Limits:
        """What it may be asked."""
        return Limits(self.requests_per_second, self.price_per_request, self.price_per_image, self.max_spend)

    def identity(self) -> dict[str, Any]:
        """The settings that answers depend on; the others may change at any time."""
        return {name: getattr(self, name) for name in IDENTITY}


IDENTITY = ("url", "adapter", "model", "outputs", "size", "weights_tag")


def check_address(url: str) -> None:
    """Raise ConfigError if an address is none of HTTP, or holds a secret, which would end in logs and reports."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"url = {url!r}, allowed: http://... or https://...")
    named = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True) if _SECRET.search(name)]
    if "@" in parts.netloc or named:
        what = f"the parameter {named[0]!r}" if named else "a user or password"
        raise ConfigError(
            f"url holds {what}: keep secrets out of it; set api_key_env to the name of an environment variable"
        )


class Endpoint(Encoder):
    """An encoder behind HTTP, queried like any other: images (B, C, H, W) in [0, 1] to (B, D) by output.

    What is sent is an 8-bit PNG of each image: rounding to the nearest of 256 values is part of the query.

    Args:
        client: asks for embeddings.
    """

    def __init__(self, client: Client) -> None:
        one = torch.ones(1, 1, 1, 1)
        super().__init__(nn.Identity(), {}, torch.zeros_like(one), one, size=client.parameters.size)
        self.client = client

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the embeddings."""
        return self.client.parameters.outputs

    def forward(self, images: torch.Tensor, *, cached: bool = True) -> dict[str, torch.Tensor]:
        """Embeddings as answered, by output. Raises as `Client.embed`."""
        found = self.client.embed(png_bytes(self._resized(images)), cached=cached)
        return {output: torch.from_numpy(array).to(images.device) for output, array in found.items()}

    def feature_map(self, images: torch.Tensor) -> torch.Tensor:
        """Raises ConfigError: what stands behind an API answers with embeddings alone."""
        raise ConfigError(f"{self.client.parameters.url} gives no feature map; leave part-crop out for it")
