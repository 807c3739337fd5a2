"""The client of an encoder behind HTTP: PNG files out, checked embeddings back, with retries, limits and a cache.

Requests are charged before they are sent (`meter`). Answers are checked before they are believed or kept (`answers`).
Every fault is one line that names the encoder, the answer and the remedy, without the key. Account and cache are
arguments: a run shares one meter among all its workers.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import random
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, quote_plus, urljoin, urlsplit

import numpy as np
import numpy.typing as npt

from mi_core.checks import AnswerError, ConfigError, ShapeError
from mi_core.encoders.remote.adapters import ADAPTERS, Embeddings, embeddings, most_bytes
from mi_core.encoders.remote.exchange import OK, Answer, BrokenError, Exchange
from mi_core.encoders.remote.meter import Account
from mi_core.encoders.remote.parameters import EndpointParameters

if TYPE_CHECKING:
    import httpx2

RETRIED = (429, 500, 502, 503, 504)
REDIRECTS = range(300, 400)
BACKOFF_SECONDS = 0.5  # the first wait is up to this, each one after it up to twice the last
MOST_BACKOFF_SECONDS = 60.0
MOST_RETRY_AFTER_SECONDS = 600.0
_SHOWN = 120  # characters of an answer in a message
_LONGEST = 1000  # characters of a message
_LOOKED_AT = 4096  # characters of it that these are made of


class Cache(Protocol):
    """Answers that were paid for, by the hash of what was sent."""

    def get(self, keys: Sequence[bytes], outputs: Sequence[str]) -> dict[bytes, dict[str, npt.NDArray[np.float32]]]:
        """The known answers to some keys: (D,) by output."""

    def put(self, answers: Mapping[bytes, Mapping[str, npt.NDArray[np.float32]]]) -> None:
        """Keep answers; when it returns they are safe from the death of the process."""


class Client:
    """Asks an endpoint for embeddings of PNG files.

    Args:
        parameters: address and settings.
        account: charges a request before it is sent.
        name: of the encoder, as messages call it; default: its address.
        key: content of the header ``api_key_header``, without ``Bearer``.
        query: secret parameters of the address, beside ``parameters.query``.
        cache: answers kept; None: every image is sent.
        identity: of what is served, part of the cache's keys.
        widths: D by output where it is known; otherwise the first answer fixes it.

    Raises ConfigError: httpx2 (the api extra) is missing, or the key cannot be sent in a header.
    """

    def __init__(
        self,
        parameters: EndpointParameters,
        account: Account,
        *,
        name: str = "",
        key: str | None = None,
        query: Mapping[str, str] = {},
        cache: Cache | None = None,
        identity: str = "",
        widths: Mapping[str, int] | None = None,
    ) -> None:
        self.parameters, self.account, self.cache, self.identity = parameters, account, cache, identity
        self.widths = dict(widths or {})
        self.name = f"{name} ({parameters.url})" if name else parameters.url
        if key is not None and not (key.isascii() and key.isprintable() and key == key.strip()):
            raise ConfigError(
                f"{self.name}: the key holds a line break, a space at an end or another character that no header "
                f"takes; set {parameters.api_key_env or 'it'} to the key alone"
            )
        self._adapter = ADAPTERS[parameters.adapter]
        self._lock = threading.Lock()
        self._random = random.Random()
        self._redaction = Redaction([*([key] if key else []), *query.values()])
        bearer = parameters.api_key_header.lower() == "authorization"
        headers = {} if key is None else {parameters.api_key_header: f"Bearer {key}" if bearer else key}
        self._exchange = Exchange(headers, {**(parameters.query or {}), **query}, parameters.concurrency)

    def embed(self, images: Sequence[bytes], *, cached: bool = True) -> Embeddings:
        """Embeddings of N PNG files, (N, D) by output.

        Args:
            images: PNG files.
            cached: take answers from the cache where it has them, keep new ones there, and send equal images once;
                otherwise, and without a cache, all images are sent and nothing is kept.

        Raises ConfigError: a request was refused by the server or the account, or failed as often as it may;
        ShapeError: an answer is not of the adapter's shape, is too long, or lacks images or an output; AnswerError: a
        row of an answer is not numeric, not finite or of another width.
        """
        keys = [hashlib.sha256(self.identity.encode() + image).digest() for image in images]
        outputs = self.parameters.outputs
        cache = self.cache if cached else None
        kept = {} if cache is None else cache.get(keys, outputs)
        known: list[Mapping[str, npt.NDArray[np.float32]] | None] = [kept.get(key) for key in keys]
        first = {key: row for row, key in reversed(list(enumerate(keys)))}
        missing = [row for row, key in enumerate(keys) if known[row] is None and (cache is None or first[key] == row)]
        stopped = threading.Event()

        def ask(rows: Sequence[int]) -> None:
            errand = _Errand(self.account, stopped)
            try:
                answers = self._answers([images[row] for row in rows], rows, errand)
                if cache is not None:
                    cache.put({keys[row]: answer for row, answer in zip(rows, answers, strict=True)})
            except BaseException:
                stopped.set()  # requests that wait give up; those in flight are kept when they come
                raise
            finally:
                errand.end()
            for row, answer in zip(rows, answers, strict=True):
                known[row] = answer

        size = self.parameters.images_per_request
        self._ask_all([missing[start : start + size] for start in range(0, len(missing), size)], ask)
        answers = [known[row] or known[first[key]] for row, key in enumerate(keys)]
        return {output: np.stack([answer[output] for answer in answers if answer is not None]) for output in outputs}

    def _ask_all(self, parts: Sequence[Sequence[int]], ask: Callable[[Sequence[int]], None]) -> None:
        """Do every part, some at once; raises the first fault that is no consequence of another."""
        if len(parts) < 2:
            for part in parts:
                ask(part)
            return
        with ThreadPoolExecutor(min(len(parts), self.parameters.concurrency)) as pool:
            futures = [pool.submit(ask, part) for part in parts]
        faults = [fault for future in futures if (fault := future.exception()) is not None]
        for fault in sorted(faults, key=lambda fault: isinstance(fault, _StoppedError)):
            raise fault

    def _answers(
        self, images: Sequence[bytes], rows: Sequence[int], errand: _Errand
    ) -> list[dict[str, npt.NDArray[np.float32]]]:
        """Embeddings of the images of one request, each (D,) by output, checked."""
        with self._naming_the_encoder():
            answer = self._post(images, errand)
            try:
                matrices = embeddings(answer.body, self._adapter, self.parameters.outputs, len(images), self.widths)
            except ShapeError as error:
                raise ShapeError(f"{error}: {self._beginning(answer)}; check url, adapter and outputs") from None
            except AnswerError as error:
                raise AnswerError(error.message, rows[error.row]) from None
            with self._lock:  # the first answer fixes the widths, also of answers that come at the same time
                for output, matrix in matrices.items():
                    width = self.widths.setdefault(output, matrix.shape[1])
                    if width != matrix.shape[1]:
                        raise AnswerError(f"{output} has {matrix.shape[1]} numbers instead of {width}", rows[0])
        return [{output: matrix[place] for output, matrix in matrices.items()} for place in range(len(images))]

    @contextmanager
    def _naming_the_encoder(self) -> Iterator[None]:
        """Faults name the encoder; neither they nor their tracebacks hold a secret."""
        try:
            yield
        except AnswerError as error:
            raise AnswerError(self._message(error.message), error.row) from None
        except (ConfigError, ShapeError) as error:
            raise type(error)(self._message(str(error))) from None

    def _message(self, fault: str) -> str:
        return f"{self.name}: {self._redaction.hide(fault)[:_LONGEST]}"

    def _beginning(self, answer: Answer) -> str:
        return repr(self._shown(answer.body[:_LOOKED_AT].decode(errors="replace")))

    def _shown(self, text: str) -> str:
        """The beginning of a server's text; secrets go before it is cut."""
        return " ".join(self._redaction.hide(text[:_LOOKED_AT]).split())[:_SHOWN]

    def _post(self, images: Sequence[bytes], errand: _Errand) -> Answer:
        """The answer to one request, tried as often as the settings allow."""
        settings = self.parameters
        named = {} if settings.model is None else {"model": settings.model}
        request = self._exchange.request(settings.url, **self._adapter.request(images, named))
        problem = ""
        for attempt in range(settings.retries + 1):
            errand.reserve(len(images))
            asked_for = 0.0
            try:
                answer = self._exchange.send(request, seconds=settings.timeout_s, most_bytes=most_bytes(len(images)))
            except TimeoutError:
                problem = f"no whole answer within timeout_s = {settings.timeout_s:g}; raise it or lower batch"
            except BrokenError as error:
                problem = self._shown(str(error))
            else:
                if answer.status == OK:
                    return answer
                problem = self._refusal(answer, request)
                asked_for = retry_after(answer.headers.get("retry-after"), datetime.now(UTC))
            if attempt < settings.retries:
                backoff = min(MOST_BACKOFF_SECONDS, BACKOFF_SECONDS * 2**attempt)
                errand.pause(asked_for + self._random.uniform(0, backoff))
        times = settings.retries + 1
        raise ConfigError(f"failed {times} times, last: {problem}; the same command continues later")

    def _refusal(self, answer: Answer, request: httpx2.Request) -> str:
        """The problem of a status that may pass; raises ConfigError for one that will not."""
        problem = f"status {answer.status}, {self._beginning(answer)}"
        if answer.status in RETRIED:
            return problem
        if answer.status in REDIRECTS and "location" in answer.headers:
            place = urlsplit(urljoin(str(request.url), answer.headers["location"]))
            raise ConfigError(
                f"{problem}, a redirect to {place.scheme}://{place.netloc.rpartition('@')[2]}{place.path}: it is not "
                "followed, since images and key would go there; set url to where it answers"
            )
        raise ConfigError(f"{problem}; check url, model and api_key_env")


class _StoppedError(ConfigError):
    """Another request of the same images failed."""


class _Errand:
    """The charges for one request and all its attempts, until its answer is kept."""

    def __init__(self, account: Account, stopped: threading.Event) -> None:
        self.account, self.stopped = account, stopped
        self.tickets: list[str] = []

    def reserve(self, images: int) -> None:
        """Charge an attempt and wait for its turn. Raises ConfigError where it is refused."""
        self.pause(0)
        permit = self.account.reserve(images)
        if permit.refusal:
            raise ConfigError(permit.refusal)
        try:
            self.pause(permit.wait)
        except BaseException:
            self.account.close(permit.ticket, sent=False)
            raise
        self.tickets.append(permit.ticket)

    def pause(self, seconds: float) -> None:
        """Wait. Raises _StoppedError when another request fails meanwhile."""
        if self.stopped.wait(seconds) if seconds > 0 else self.stopped.is_set():
            raise _StoppedError("another request failed")

    def end(self) -> None:
        """The answer is kept, or none will come."""
        for ticket in self.tickets:
            self.account.close(ticket, sent=True)


def retry_after(header: str | None, now: datetime) -> float:
    """Seconds that a Retry-After header asks to wait, at most `MOST_RETRY_AFTER_SECONDS`; 0 where it asks nothing.

    Args:
        header: seconds, or a date as HTTP writes it.
        now: the time, with its zone.

    Example:
        >>> retry_after("7", datetime.now(UTC)), retry_after("soon", datetime.now(UTC))
        (7.0, 0.0)
    """
    try:
        seconds = float(header or 0)
    except ValueError:
        try:
            when = parsedate_to_datetime(header or "")
            seconds = (when.replace(tzinfo=when.tzinfo or UTC) - now).total_seconds()
        except (OverflowError, TypeError, ValueError):
            return 0.0
    return 0.0 if math.isnan(seconds) else min(MOST_RETRY_AFTER_SECONDS, max(0.0, seconds))


HIDDEN = "***"
_CUT = 16  # characters from which on the first half of a secret is taken for a part of it
_WORD = re.compile("[A-Za-z0-9]{8,}")
_SHORT = 4  # characters of base64 that say nothing yet
_RUN = re.compile(rf"[A-Za-z0-9+/_=-]{{{_SHORT},}}")


class Redaction:
    """Takes secrets out of texts, in the forms in which a server sends them back.

    These are the secret itself in any case, quoted for an address, JSON or HTML, anything in base64 that holds it
    (``Bearer KEY``, ``user:KEY``), its first half where a text was cut, and its longer words in whatever else.

    Args:
        secrets: what must not be shown.

    Example:
        >>> Redaction(["s3cret"]).hide("no such key: Bearer S3CRET")
        'no such key: Bearer ***'
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self._plain = _any(form for secret in secrets if secret for form in _forms(secret))
        self._encoded = _any(core for secret in secrets for core in _in_base64(secret.encode()))

    def hide(self, text: str) -> str:
        """The text with `HIDDEN` for every secret."""
        if (encoded := self._encoded) is not None:
            text = _RUN.sub(lambda run: HIDDEN if encoded.search(run[0]) else run[0], text)
        return text if self._plain is None else self._plain.sub(HIDDEN, text)


def _any(patterns: Iterable[str]) -> re.Pattern[str] | None:
    ordered = sorted(set(patterns), key=len, reverse=True)
    return re.compile("|".join(ordered)) if ordered else None


def _forms(secret: str) -> Iterator[str]:
    """Patterns of a secret as text."""
    quoted = {secret, quote(secret, safe=""), quote(secret), quote_plus(secret), html.escape(secret)}
    for form in quoted | {json.dumps(secret)[1:-1], repr(secret)[1:-1], *_WORD.findall(secret)}:
        yield f"(?i:{re.escape(form)})"
    if len(secret) >= _CUT:
        yield rf"(?i:{re.escape(secret[: len(secret) // 2])})[^\s\"'<>]*"


def _in_base64(secret: bytes) -> Iterator[str]:
    """Patterns of a secret in the base64 of any text around it, one for each place in three bytes."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + secret).decode()
        core = encoded[(0, 2, 3)[before] : (before + len(secret)) * 8 // 6]
        if len(core) >= _SHORT:
            yield "".join({"+": "[+-]", "/": "[/_]"}.get(sign, sign) for sign in core)
