"""The file system of an object store or of the Hub, by the scheme of an address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
from pyarrow import fs

from pipelines.errors import UserError

HUB = "hf://"  # addresses of Hugging Face's Hub, such as hf://datasets/org/name


def store_of(address: str) -> tuple[Any, str]:
    """The file system of a URI, and the place in it.

    Raises:
        UserError: the scheme is unknown, or a package for it is missing.
    """
    try:
        return cast("tuple[Any, str]", fs.FileSystem.from_uri(_in_one_request(address)))
    except pa.ArrowInvalid as error:
        return _by_fsspec(address, error)
    except ImportError as error:
        needed = "needs huggingface_hub: pip install 'encoder-audit[hub]'"
        raise UserError(f"{address}: {needed if address.startswith(HUB) else _first_line(error)}") from error
    except (pa.ArrowNotImplementedError, OSError) as error:
        raise UserError(f"{address}: {_first_line(error)}") from error


@contextmanager
def connected() -> Iterator[None]:
    """Let faults of the network in the block be OSErrors: those of the Hub's client are not."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("httpx"):
            raise
        raise OSError(f"{type(error).__name__}: {_first_line(error)}") from error


def _in_one_request(address: str) -> str:
    """The address with pyarrow's setting that writes a small object in one request to S3, in place of three."""
    if not address.startswith("s3://"):
        return address
    return f"{address}{'&' if '?' in address else '?'}allow_delayed_open=true"


def _by_fsspec(address: str, unknown: pa.ArrowInvalid) -> tuple[Any, str]:
    """A store that pyarrow does not know, such as ``az://``, through fsspec, which names a package that is missing."""
    import fsspec

    try:
        store, place = fsspec.core.url_to_fs(address)
    except ImportError as error:
        raise UserError(f"{address}: {_first_line(error)}") from error
    except ValueError:
        raise UserError(f"{address}: {_first_line(unknown)}") from unknown
    return fs.PyFileSystem(fs.FSSpecHandler(store)), place


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
