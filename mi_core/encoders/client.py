"""The client of an encoder behind HTTP: PNG files out, checked embeddings back, with retries, limits and a cache.

What is asked is charged before it is sent (`meter`), answers are checked before they are believed or kept. Meter and
cache are arguments: a run shares one meter among all its workers.
"""

from __future__ import annotations

import hashlib
import math
import random
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from mi_core.checks import AnswerError, ConfigError, ShapeError
from mi_core.encoders.adapters import ADAPTERS
from mi_core.encoders.meter import Reserve

if TYPE_CHECKING:
    import httpx

    from mi_core.encoders.endpoint import EndpointParameters

Embeddings = dict[str, npt.NDArray[np.float32]]
"""(N, D) by output."""

RETRIED = (429, 500, 502, 503, 504)
BACKOFF_SECONDS = 0.5  # the first wait is up to this, each one after it up to twice the last
MOST_BACKOFF_SECONDS = 60.0
MOST_RETRY_AFTER_SECONDS = 600.0


class Cache(Protocol):
    """Answers that were paid for, by the hash of what was sent."""

    def get(self, keys: Sequence[bytes], outputs: Sequence[str]) -> dict[bytes, dict[str, npt.NDArray[np.float32]]]:
        """What is known of some keys: (D,) by output."""

    def put(self, answers: Mapping[bytes, Mapping[str, npt.NDArray[np.float32]]]) -> None:
        """Keep answers; when it returns they are safe from the death of the process."""


class Client:
    """Asks an endpoint for embeddings of PNG files.

    Args:
        parameters: address and settings.
        reserve: charges a request before it is sent.
        key: content of the header ``api_key_header``, without ``Bearer``.
        cache: answers kept; None: every image is sent.
        identity: of what is served, part of the cache's keys.
        widths: D by output where it is known; otherwise the first answer fixes it.

    Raises:
        ConfigError: httpx (the api extra) is missing.
    """

    def __init__(
        self,
        parameters: EndpointParameters,
        reserve: Reserve,
        *,
        key: str | None = None,
        cache: Cache | None = None,
        identity: str = "",
        widths: Mapping[str, int] | None = None,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise ConfigError("an encoder behind an API needs httpx: pip install 'encoder-audit[api]'") from error
        self.parameters, self.reserve, self.cache, self.identity = parameters, reserve, cache, identity
        self.widths = dict(widths or {})
        self._adapter = ADAPTERS[parameters.adapter]
        self._lock = threading.Lock()
        self._random = random.Random()
        bearer = parameters.api_key_header.lower() == "authorization"
        most = parameters.concurrency
        self._http = httpx.Client(
            headers={} if key is None else {parameters.api_key_header: f"Bearer {key}" if bearer else key},
            timeout=parameters.timeout_s,
            limits=httpx.Limits(max_connections=most, max_keepalive_connections=most),
        )
        weakref.finalize(self, self._http.close)

    def embed(self, images: Sequence[bytes], *, cached: bool = True) -> Embeddings:
        """Embeddings of N PNG files, (N, D) by output.

        Args:
            images: PNG files.
            cached: take answers from the cache where it has them, and keep new ones there; otherwise all images are
                sent and nothing is kept.

        Raises:
            ConfigError: a request was refused by the server or the meter, or failed as often as it may.
            ShapeError: an answer is not of the adapter's shape, or lacks images or an output.
            AnswerError: a row of an answer is not numeric, not finite or of another width.
        """
        keys = [hashlib.sha256(self.identity.encode() + image).digest() for image in images]
        outputs = self.parameters.outputs
        cache = self.cache if cached else None
        found = {} if cache is None else cache.get(keys, outputs)
        known: list[Mapping[str, npt.NDArray[np.float32]] | None] = [found.get(key) for key in keys]
        missing = [row for row, answer in enumerate(known) if answer is None]
        stopped = threading.Event()

        def ask(rows: Sequence[int]) -> None:
            try:
                answers = self._answers([images[row] for row in rows], rows, stopped)
                if cache is not None:
                    cache.put({keys[row]: answer for row, answer in zip(rows, answers, strict=True)})
            except BaseException:
                stopped.set()  # requests that wait give up; those in flight are kept when they come
                raise
            for row, answer in zip(rows, answers, strict=True):
                known[row] = answer

        size = self.parameters.batch
        parts = [missing[start : start + size] for start in range(0, len(missing), size)]
        if len(parts) == 1:
            ask(parts[0])
        elif parts:
            with ThreadPoolExecutor(min(len(parts), self.parameters.concurrency)) as pool:
                futures = [pool.submit(ask, part) for part in parts]
            faults = [fault for future in futures if (fault := future.exception()) is not None]
            for fault in sorted(faults, key=lambda fault: isinstance(fault, _StoppedError)):
                raise fault
        return {output: np.stack([answer[output] for answer in known if answer is not None]) for output in outputs}

    def _answers(
        self, images: Sequence[bytes], rows: Sequence[int], stopped: threading.Event
    ) -> list[dict[str, npt.NDArray[np.float32]]]:
        """Embeddings of the images of one request, each (D,) by output, checked."""
        body = self._post(images, stopped)
        try:
            given = self._adapter.rows(body)
        except ShapeError as error:
            raise ShapeError(f"{self.parameters.url}: {error}") from error
        if "" in given:
            given = {self.parameters.outputs[0]: given[""]}
        matrices = {}
        for output in self.parameters.outputs:
            if output not in given:
                raise ShapeError(
                    f"{self.parameters.url}: the answer has no output {output!r}, it has "
                    f"{', '.join(given) or 'none'}; set outputs"
                )
            if len(given[output]) != len(images):
                raise ShapeError(
                    f"{self.parameters.url}: {len(given[output])} embeddings for {len(images)} images ({output})"
                )
            matrices[output] = self._matrix(output, given[output], rows)
        return [{output: matrix[place] for output, matrix in matrices.items()} for place in range(len(images))]

    def _matrix(self, output: str, given: Sequence[Any], rows: Sequence[int]) -> npt.NDArray[np.float32]:
        """(N, D) of the rows of an answer; raises AnswerError for the first that is wrong."""
        with self._lock:
            width = self.widths.get(output)
            if width is None:
                width = self.widths[output] = _width(given[0])
        try:
            matrix = _float32(given)
        except (TypeError, ValueError):
            matrix = None
        if matrix is not None and matrix.shape == (len(given), width) and np.isfinite(matrix).all():
            return matrix
        for place, values in enumerate(given):
            fault = _fault(values, width)
            if fault:
                raise AnswerError(f"{self.parameters.url}: {output} {fault}", rows[place])
        raise ShapeError(f"{self.parameters.url}: {output} is no matrix of {len(given)} x {width} numbers")

    def _post(self, images: Sequence[bytes], stopped: threading.Event) -> Any:
        """The JSON of the answer to one request, tried as often as the settings allow."""
        import httpx

        settings = self.parameters
        request = self._http.build_request("POST", settings.url, **self._adapter.request(images, settings.model))
        request.read()  # one piece, for all attempts
        problem = ""
        for attempt in range(settings.retries + 1):
            permit = self.reserve(len(images))
            if permit.refusal:
                raise ConfigError(f"{settings.url}: {permit.refusal}")
            _pause(permit.wait, stopped)
            asked_for = 0.0
            try:
                answer = self._http.send(request)
            except httpx.TimeoutException:
                problem = f"no answer within timeout_s = {settings.timeout_s:g}"
            except httpx.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if answer.status_code == httpx.codes.OK:
                    return self._json(answer)
                problem = f"status {answer.status_code}, {_beginning(answer.text)}"
                if answer.status_code not in RETRIED:
                    raise ConfigError(f"{settings.url}: {problem}; check url, model and api_key_env")
                asked_for = retry_after(answer.headers.get("retry-after"), datetime.now(UTC))
            if attempt < settings.retries:
                backoff = min(MOST_BACKOFF_SECONDS, BACKOFF_SECONDS * 2**attempt)
                _pause(asked_for + self._random.uniform(0, backoff), stopped)
        times = settings.retries + 1
        raise ConfigError(f"{settings.url} failed {times} times, last: {problem}; the same command continues later")

    def _json(self, answer: httpx.Response) -> Any:
        try:
            return answer.json()
        except (ValueError, RecursionError) as error:
            raise ShapeError(f"{self.parameters.url}: the answer is no JSON: {_beginning(answer.text)}") from error


class _StoppedError(ConfigError):
    """Another request of the same images failed."""


def _pause(seconds: float, stopped: threading.Event) -> None:
    if stopped.wait(seconds) if seconds > 0 else stopped.is_set():
        raise _StoppedError("another request failed")


def _beginning(text: str) -> str:
    return repr(" ".join(text.split())[:120])


def retry_after(header: str | None, now: datetime) -> float:
    """Seconds that a Retry-After header asks to wait, at most `MOST_RETRY_AFTER_SECONDS`; 0 where it asks nothing.

    Args:
        header: seconds, or a date as HTTP writes it.
        now: the time, with its zone.

    Example:
        >>> retry_after("7", datetime.now(UTC)), retry_after("soon", datetime.now(UTC))
        (7.0, 0.0)
    """
    if header is None:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            when = parsedate_to_datetime(header)
        except ValueError:
            return 0.0
        seconds = (when.replace(tzinfo=when.tzinfo or UTC) - now).total_seconds()
    if math.isnan(seconds):
        return 0.0
    return min(MOST_RETRY_AFTER_SECONDS, max(0.0, seconds))


def _width(row: Any) -> int:
    return len(row) if isinstance(row, list) else 0


def _float32(values: Any) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype=np.float64).astype(np.float32)


def _fault(values: Any, width: int) -> str:
    """What is wrong with one row of an answer; empty if nothing is."""
    if not isinstance(values, list) or not values:
        return "is no list of numbers"
    try:
        row = _float32(values)
    except (TypeError, ValueError):
        return "holds something else than numbers"
    if row.shape != (width,):
        return f"has {len(values)} numbers instead of {width}"
    return "" if np.isfinite(row).all() else "is NaN or infinite"
