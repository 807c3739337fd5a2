"""The file system of an object store or of the Hub, by the scheme of an address."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from pipelines.errors import UserError

HUB = "hf://"  # addresses of Hugging Face's Hub, such as hf://datasets/org/name
ATTEMPTS = 10  # at one request to S3, over about a minute; pyarrow's own 3 give up on a busy store within a second
_TOLD = ("region", "scheme", "endpoint_override", "tls_ca_file_path")  # what a query may say of S3, in pyarrow's terms


def store_of(address: str) -> tuple[Any, str]:
    """The file system of a URI, and the place in it.

    Raises:
        UserError: the scheme is unknown, or a package for it is missing.
    """
    try:
        parts = urlsplit(address)
        if parts.scheme in ("s3", "gs"):
            place = f"{parts.netloc}{unquote(parts.path)}".rstrip("/")
            return _client(parts.scheme, parts.netloc, parts.query, _surroundings()), place
        return cast("tuple[Any, str]", fs.FileSystem.from_uri(address))
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


def region_of(bucket: str) -> str | None:
    """Where a bucket of S3 stands, such as ``eu-central-1``; None: it is another store's, with an endpoint.

    Args:
        bucket: an address, such as ``s3://bucket``.

    Raises:
        UserError: as `store_of`.
    """
    if _endpoint() or "endpoint_override=" in bucket:
        return None
    return str(store_of(bucket)[0].region)


@lru_cache(maxsize=16)
def _client(scheme: str, bucket: str, query: str, surroundings: tuple[tuple[str, str], ...]) -> Any:
    """One client for all requests to a bucket: a new one asks for credentials and connects again.

    Args:
        surroundings: of the process; other ones may mean other credentials.
    """
    del surroundings
    if scheme != "s3":
        return fs.FileSystem.from_uri(f"{scheme}://{bucket}{'?' if query else ''}{query}")[0]
    told = dict(parse_qsl(query))
    if unknown := told.keys() - _TOLD:
        raise UserError(f"s3://{bucket}: unknown setting {min(unknown)}; an address may have {', '.join(_TOLD)}")
    if "endpoint_override" not in told and (endpoint := urlsplit(_endpoint())).netloc:
        told |= {"scheme": endpoint.scheme, "endpoint_override": f"{endpoint.netloc}{endpoint.path}".rstrip("/")}
    if "region" not in told and "endpoint_override" not in told:
        told["region"] = fs.resolve_s3_region(bucket)
    patient = fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS)
    # delayed: a small object is written in one request, in place of three
    return fs.S3FileSystem(**told, allow_delayed_open=True, retry_strategy=patient)


def _endpoint() -> str:
    """The address of another store than Amazon's, where the surroundings name one; the constructor ignores them."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def _surroundings() -> tuple[tuple[str, str], ...]:
    return tuple(sorted(pair for pair in os.environ.items() if pair[0].startswith(("AWS_", "GOOGLE_", "CLOUDSDK_"))))


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
