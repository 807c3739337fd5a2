"""Objects of a store, in one request each: written unless somebody else has, or removed.

A write is on condition: If-None-Match and If-Match on S3, generations on GCS.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any

from pipelines.errors import UserError
from pipelines.files.stores import Address, endpoint_of_s3, store_of

PATIENCE = timedelta(seconds=15)  # for a store that does not answer
Version = dict[str, Any]
"""The store's own tag for one state of an object."""


class Conditional:
    """One object of a store that can write on condition.

    Args:
        address: of the object, ``s3://``, ``gs://`` or ``az://``.

    Raises:
        ValueError: no such store is known.
        UserError: as `Address.parse`.
    """

    def __init__(self, address: str) -> None:
        parts = Address.parse(address)
        self.store, self.name = _store(parts.scheme, parts.store), parts.key
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
        except (AlreadyExistsError, PreconditionError):
            return False
        except FileNotFoundError:  # the object is gone, or there is no such bucket
            return None if before is None else False
        except (BaseError, NotImplementedError, OSError):
            return None
        self.written = _version(made)
        return True

    def remove(self, keys: Sequence[str]) -> bool:
        """Remove the objects of some keys of the bucket, if they are there; tell whether the store answered."""
        import obstore
        from obstore.exceptions import BaseError

        try:
            obstore.delete(self.store, list(keys))
        except FileNotFoundError:
            return True
        except (BaseError, OSError):
            return False
        return True


def _version(told: Mapping[str, Any]) -> Version:
    return {name: told[name] for name in ("e_tag", "version") if told.get(name) is not None}


@lru_cache(maxsize=16)
def _store(scheme: str, store: str) -> Any:
    """A client for the objects of a bucket."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    retries = {"max_retries": 2, "retry_timeout": PATIENCE}
    options = {"allow_http": True, "timeout": PATIENCE}
    address = f"{scheme}://{store}"
    if scheme == "gs" and os.environ.get("CLOUD_STORAGE_EMULATOR_ENDPOINT"):
        raise ValueError("this client would ask Google")
    try:
        elsewhere = scheme != "s3" or endpoint_of_s3()
        settings = {} if elsewhere else {"region": str(store_of(address)[0].region)}
        return from_url(address, client_options=options, retry_config=retries, **settings)  # type: ignore[call-overload]
    except (BaseError, NotImplementedError, UserError) as error:
        raise ValueError(str(error)) from error
