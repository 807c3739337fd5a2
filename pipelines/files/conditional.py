"""Write an object on condition that nobody else has: If-None-Match and If-Match on S3, generations on GCS."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

PATIENCE = timedelta(seconds=15)  # for a store that does not answer; what cannot be had so is done without
Version = dict[str, Any]
"""What tells one state of an object from the next: the store's own tag."""


class Conditional:
    """One object of a store that can write on condition.

    Args:
        address: of the object, ``s3://``, ``gs://`` or ``az://``.

    Raises:
        ValueError: no such store is known.
    """

    def __init__(self, address: str) -> None:
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        parts = urlsplit(address)
        folder, _, self.name = f"{parts.scheme}://{parts.netloc}{parts.path}".rpartition("/")
        retries = {"max_retries": 2, "retry_timeout": PATIENCE}
        options = {"allow_http": True, "timeout": PATIENCE}
        try:
            self.store: Any = from_url(folder, client_options=options, retry_config=retries, **_settings(parts.query))  # type: ignore[call-overload]
        except (BaseError, NotImplementedError) as error:
            raise ValueError(str(error)) from error

    def version(self) -> Version | None:
        """The state of the object; None: there is none, or the store does not say."""
        import obstore
        from obstore.exceptions import BaseError

        try:
            found = obstore.head(self.store, self.name)
        except (BaseError, FileNotFoundError):
            return None
        return {name: found[name] for name in ("e_tag", "version") if found.get(name) is not None}

    def write(self, data: bytes, before: Version | None) -> bool | None:
        """Write the object if it is still in the state ``before``, or still not there.

        Returns:
            Whether it was; None: the store cannot write on condition, and nothing is known.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        try:
            obstore.put(self.store, self.name, data, mode="create" if before is None else before)  # type: ignore[arg-type]
        except (AlreadyExistsError, PreconditionError, FileNotFoundError):
            return False
        except (BaseError, NotImplementedError, OSError):
            return None
        return True


def _settings(query: str) -> dict[str, str]:
    """What the query of an address says, in the way of pyarrow, in that of obstore."""
    given = {name: values[-1] for name, values in parse_qs(query).items()}
    found = {"region": given["region"]} if "region" in given else {}
    if "endpoint_override" in given:
        found["endpoint"] = f"{given.get('scheme', 'https')}://{given['endpoint_override']}"
    return found
