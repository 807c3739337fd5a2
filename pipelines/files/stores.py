"""The file system of an object store or of the Hub, by the scheme of an address.

The key of an object stands in its address as it is: nothing of it is percent-decoded, and ``?`` and ``#`` are letters.
Keys, regions and endpoints come from the environment of every node.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from mi_core.checks import secret_in
from pipelines.errors import Unreachable, UserError
from pipelines.files import azure

HUB = "hf://"  # addresses of Hugging Face's Hub, such as hf://datasets/org/name
ATTEMPTS = 10  # at one request to S3, over about a minute; pyarrow's own 3 give up on a busy store within a second
PATIENCE = timedelta(seconds=60)  # for Google's store; pyarrow's own limit is 15 minutes
_QUERY = re.compile(r"[?#][^/]*=")  # ?name=value or #name=value, but not the ? of a glob
_WEB = ("http", "https", "ftp")  # schemes whose addresses are URLs
_USERS = {"abfs": "[^:]*", "abfss": "[^:]*", "gs": "anonymous", "gcs": "anonymous", "hdfs": "[^:]*"}  # no secrets
_PASSING = re.compile(
    r"AWS Error (NETWORK_CONNECTION|SLOW_DOWN|THROTTLING|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|REQUEST_TIMEOUT)"
    r"|HTTP status 5\d\d|Status\((UNAVAILABLE|DEADLINE_EXCEEDED|INTERNAL)|HTTP error: |status code: (429|5\d\d)"
)


class Address(NamedTuple):
    """An address of a store: its scheme, host or bucket, and the key of an object or folder in it."""

    scheme: str
    store: str
    key: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """Part an address.

        Raises:
            UserError: it holds a user, a query or what looks like a secret, which would end in configs, logs and
                reports; or a part of the key is empty, which no client reads.
        """
        scheme, _, rest = text.partition("://")
        store, _, key = rest.partition("/")
        user, at, _ = store.rpartition("@")
        told = f"{scheme}://... holds a key, user or query, which would be shown; "
        if (
            (at and not re.fullmatch(_USERS.get(scheme, "$.^"), user))
            or _QUERY.search(rest)
            or secret_in(rest.encode())
        ):
            raise UserError(told + "set keys, region and endpoint in the environment of every node")
        if scheme in _WEB and re.search("[?#]", rest):
            raise UserError(told + "fetch the file and give its path")
        if "//" in key.rstrip("/") and scheme not in _WEB:
            raise UserError(f"{text} has an empty part (//), which cannot be read; copy the object to another name")
        return cls(scheme, store, key.rstrip("/"))

    @property
    def place(self) -> str:
        """Bucket and key, joined by a slash."""
        return f"{self.store.rpartition('@')[2]}/{self.key}".rstrip("/")


def store_of(address: str) -> tuple[Any, str]:
    """The file system of a URI, and the place in it.

    Raises:
        UserError: the scheme is unknown, a package for it is missing, the store does not answer; or as `Address.parse`.
    """
    parts = Address.parse(address)
    try:
        if parts.scheme in ("s3", "gs"):
            return _client(parts.scheme, parts.store, _surroundings()), parts.place
        if parts.scheme in azure.SCHEMES:
            return _client(parts.scheme, parts.store, _surroundings()), parts.key
        if address.startswith(HUB):
            store, place = fs.FileSystem.from_uri(address)
            return store, str(place)
        store, root = fs.FileSystem.from_uri(f"{parts.scheme}://{parts.store}/")  # it would decode a key
        return store, f"{root.rstrip('/')}/{parts.key}"
    except pa.ArrowInvalid as error:
        return _by_fsspec(address, error)
    except ImportError as error:
        needed = "needs huggingface_hub: pip install 'encoder-audit[hub]'"
        raise UserError(f"{address}: {needed if address.startswith(HUB) else _first_line(error)}") from error
    except (pa.ArrowNotImplementedError, OSError) as error:
        if parts.scheme == "s3" and "resolving region" in str(error):
            cause = re.split(r"Details: |: AWS Error ", _first_line(error))[-1]
            raise UserError(
                f"the bucket {parts.store} is not found ({cause}); check its name, and AWS_REGION or AWS_ENDPOINT_URL"
            ) from error
        raise UserError(f"{address}: {_first_line(error)}") from error


def may_pass(fault: str) -> bool:
    """Tell whether the words of an error are of a store that is busy or does not answer, not of a damaged object."""
    return _PASSING.search(fault) is not None


@contextmanager
def connected(address: str = "") -> Iterator[None]:
    """Let faults of the network in the block be of one kind, an OSError: those of the Hub's client are none.

    Args:
        address: what is asked for in the block, for the message; empty: the caller names it.

    Raises:
        Unreachable: the store does not answer, or is busy.
    """
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("httpx") and not (isinstance(error, OSError) and may_pass(str(error))):
            raise
        about = f"{address}: " if address else ""
        raise Unreachable(f"{about}{type(error).__name__}: {_first_line(error)}; run the same command again") from error


@lru_cache(maxsize=16)
def _client(scheme: str, bucket: str, surroundings: tuple[tuple[str, str], ...]) -> Any:
    """One client for all requests to a bucket: a new one asks for credentials and connects again.

    Args:
        surroundings: of the process; other ones may mean other credentials.
    """
    del surroundings
    address = f"{scheme}://{bucket}"
    if scheme in azure.SCHEMES:
        store = azure.container(address, ATTEMPTS, PATIENCE)
        _await_answer(store, "", address)
        return store
    if scheme == "gs":
        user, _, name = bucket.rpartition("@")
        store = fs.GcsFileSystem(anonymous=bool(user), retry_time_limit=PATIENCE)
        _await_answer(store, name, address)
        return store
    told = {}
    if (endpoint := urlsplit(endpoint_of_s3())).netloc:
        told = {"scheme": endpoint.scheme, "endpoint_override": f"{endpoint.netloc}{endpoint.path}".rstrip("/")}
    else:
        told["region"] = fs.resolve_s3_region(bucket)
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        told["tls_ca_file_path"] = bundle
    patient = fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS)
    # delayed: a small object is written in one request, in place of three
    return fs.S3FileSystem(**told, allow_delayed_open=True, retry_strategy=patient)


def _await_answer(store: Any, place: str, address: str) -> None:
    """Ask a store for the first time by a thread: its client hears no Ctrl-C, and may look for keys for minutes.

    Raises:
        UserError: it does not answer.
    """
    fault = [f"no answer within {PATIENCE.seconds} s"]

    def ask() -> None:
        try:
            store.get_file_info(place)
        except (OSError, UserError) as error:
            fault[0] = _first_line(error)[:200] if may_pass(str(error)) else ""
        else:
            fault[0] = ""

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    for _ in range(10 * PATIENCE.seconds):
        thread.join(0.1)
        if not thread.is_alive():
            break
    if fault[0]:
        raise UserError(f"{address}: {fault[0]}; check the network, and the credentials of this machine")


def endpoint_of_s3() -> str:
    """The address of another store than Amazon's, where the surroundings name one; the constructor ignores them."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def _surroundings() -> tuple[tuple[str, str], ...]:
    heeded = ("AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_", "CLOUD_STORAGE_")
    return tuple(sorted(pair for pair in os.environ.items() if pair[0].startswith(heeded)))


def _by_fsspec(address: str, unknown: pa.ArrowInvalid) -> tuple[Any, str]:
    """A store that pyarrow does not know, such as ``https://``, by fsspec, which names a package that is missing."""
    import fsspec

    try:
        store, place = fsspec.core.url_to_fs(address)
    except ImportError as error:
        raise UserError(f"{address}: {_first_line(error)}") from error
    except (AttributeError, LookupError, OSError, TypeError, ValueError):  # of no store, or of one that asks for more
        raise UserError(f"{address}: {_first_line(unknown)}") from unknown
    return fs.PyFileSystem(fs.FSSpecHandler(store)), place


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


LONGEST = 4096  # characters of a path
LONGEST_NAME = 255  # bytes of a name in it, on a disk


def check_place(path: str) -> None:
    """Raise UserError if no path or address can be so: it holds a NUL, is too long or not UTF-8."""
    if "\0" in path or len(path) > LONGEST:
        raise UserError(f"{path[:60]!r}... can be no path: it holds a NUL, or more than {LONGEST:,} characters")
    if (shown := path.encode("utf-8", "backslashreplace").decode()) != path:
        raise UserError(f"{shown}: its name is not UTF-8; rename it")


def check_names(path: str) -> None:
    """Raise UserError if a name in a path is longer than a disk takes; patterns are no names."""
    for name in path.split("/"):
        if len(name.encode()) > LONGEST_NAME and not set("{*?[") & set(name):
            raise UserError(f"{name[:60]}... can be no name: it has more than {LONGEST_NAME} bytes")
