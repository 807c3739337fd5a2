"""Secrets of an encoder behind an API, out of the environment: nothing else in this package looks at it."""

from __future__ import annotations

import os
import socket

from mi_core.checks import ConfigError
from mi_core.encoders.remote.parameters import EndpointParameters


def secrets_of(parameters: EndpointParameters, place: str, key: str | None = None) -> tuple[str | None, dict[str, str]]:
    """The key of an API, and the secret parameters of its address.

    Args:
        parameters: name the environment variables that hold them.
        place: of the parameters, for errors.
        key: in place of the one that ``api_key_env`` names.

    Raises:
        ConfigError: an environment variable that should hold one is not set on this machine.
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
