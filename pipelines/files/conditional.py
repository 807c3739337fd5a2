"""Objects of a store, in one request each: written unless somebody else has, or removed.

A write is on condition: If-None-Match and If-Match on S3, generations on GCS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pipelines.errors import UserError
from pipelines.files.stores import region_of

PATIENCE = timedelta(seconds=15)  # for a store that does not answer
Version = dict[str, Any]
"""The store's own tag for one state of an object."""


class Conditional:
    """One object of a store that can write on condition.

    Args:
        address: of the object, ``s3://``, ``gs://`` or ``az://``.

    Raises:
        ValueError: no such store is known.
    """

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        folder, _, self.name = f"{parts.scheme}://{parts.netloc}{parts.path}".rpartition("/")
        self.store = _store(folder, parts.query)
        self.written: Version | None = None  # the state that the last write here brought about

    def version(self) -> Version | None:
        """The state of the object; None: there is none, or the store does not say."""
        import obstore
        from obstore.exceptions import BaseError

        try:
            head = obstore.head(self.store, self.name)
        except (BaseError, FileNotFoundError):
            return None
        return _version(head)

    def write(self, data: bytes, before: Version | None) -> bool | None:
        """Write the object if it is still in the state ``before``, or still not there.

        Returns:
            Whether it was; None: the store cannot write on condition, and nothing is known.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        try:
            made = obstore.put(self.store, self.name, data, mode="create" if before is None else before)  # type: ignore[arg-type]
        except (AlreadyExistsError, PreconditionError, FileNotFoundError):
            return False
        except (BaseError, NotImplementedError, OSError):
            return None
        self.written = _version(made)
        return True

    def remove(self, names: Sequence[str] = ()) -> bool:
        """Remove the object, or those of some names in its folder, if they are there; whether the store answered."""
        import obstore
        from obstore.exceptions import BaseError

        try:
            obstore.delete(self.store, list(names) or self.name)
        except FileNotFoundError:
            return True
        except (BaseError, OSError):
            return False
        return True


def _version(told: Mapping[str, Any]) -> Version:
    return {name: told[name] for name in ("e_tag", "version") if told.get(name) is not None}


@lru_cache(maxsize=16)
def _store(folder: str, query: str) -> Any:
    """A client for the objects of a folder."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    retries = {"max_retries": 2, "retry_timeout": PATIENCE}
    options = {"allow_http": True, "timeout": PATIENCE}
    try:
        settings = _settings(folder, query)
        return from_url(folder, client_options=options, retry_config=retries, **settings)  # type: ignore[call-overload]
    except (BaseError, NotImplementedError, UserError) as error:
        raise ValueError(str(error)) from error


def _settings(folder: str, query: str) -> dict[str, str]:
    """The query of an address, which is in the terms of pyarrow, in those of obstore, with the region."""
    given = {name: values[-1] for name, values in parse_qs(query).items()}
    scheme, bucket = urlsplit(folder)[:2]
    region = given.get("region") or (region_of(f"s3://{bucket}?{query}") if scheme == "s3" else None)
    settings = {"region": region} if region else {}
    if "endpoint_override" in given:
        settings["endpoint"] = f"{given.get('scheme', 'https')}://{given['endpoint_override']}"
    return settings
