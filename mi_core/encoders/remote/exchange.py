"""One request over HTTP and its answer, within a deadline for all of it and a bound on what is read.

The deadline is that of an asyncio task, the only one that holds whatever a server does: the client's own timeouts begin
anew with every byte. The event loop runs in a thread of its own, so that callers need not know of it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import urllib.request
import weakref
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from mi_core.checks import ShapeError, import_extra

if TYPE_CHECKING:
    import httpx2

OK = 200
_MOST_OF_A_REFUSAL = 2**16  # bytes read of an answer with another status
_GZIP_OR_ZLIB = 47  # zlib's sign for both
_TALKATIVE = ("httpx2", "httpcore2")  # their logs hold addresses and headers
LOOPBACK = ("localhost", "127.0.0.1", "::1")  # hosts that are this machine
Unpack = Callable[[bytes, int], bytes]
"""From a piece of an answer, and how many bytes are wanted at most, to its content."""


class BrokenError(Exception):
    """A request got no whole answer; another attempt may. The message is what happened."""


class Answer(NamedTuple):
    """An answer: status, headers by lower-case names, body (of a status other than 200 its beginning)."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Exchange:
    """Sends requests to one address, from any thread, and keeps connections open between them.

    Redirects are not followed, so that headers go to no other host; what answers may hold is asked uncompressed or as
    gzip, which is unpacked no further than the bound.

    Args:
        headers: sent with every request.
        query: of the address.
        connections: at once, at most.

    Raises ConfigError: httpx2 (the api extra) is missing.
    """

    def __init__(self, headers: Mapping[str, str], query: Mapping[str, str], connections: int) -> None:
        import_extra("httpx2", "an encoder behind an API", "api")
        import httpx2

        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(logging.WARNING)
        limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
        direct = httpx2.AsyncHTTPTransport(limits=limits)
        self._http = httpx2.AsyncClient(
            headers={"Accept-Encoding": "gzip", **headers},
            params=dict(query),
            timeout=None,  # of single reads and writes
            mounts={
                f"all://{f'[{host}]' if ':' in host else host}": direct for host in LOOPBACK
            },  # no proxy on the way
            limits=limits,
        )
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=_serve, args=(self._loop,), name="exchange", daemon=True).start()
        weakref.finalize(self, _end, self._http, self._loop).atexit = False

    def request(self, url: str, **content: Any) -> httpx2.Request:
        """A POST request; its body is one piece, for any number of attempts."""
        request = self._http.build_request("POST", url, **content)
        request.read()
        return request

    def send(self, request: httpx2.Request, *, seconds: float, most_bytes: int) -> Answer:
        """Send a request and read its answer.

        Args:
            request: of `request`.
            seconds: for all of it: connecting, sending, waiting, reading.
            most_bytes: of the answer, unpacked.

        Raises TimeoutError: the answer is not whole in time; BrokenError: the connection failed, or was closed in the
        midst of the answer; ShapeError: the answer is longer, or is not compressed as it says.
        """
        work = asyncio.run_coroutine_threadsafe(self._send(request, seconds, most_bytes), self._loop)
        return work.result()

    async def _send(self, request: httpx2.Request, seconds: float, most_bytes: int) -> Answer:
        import httpx2

        try:
            async with asyncio.timeout(seconds):
                response = await self._http.send(request, stream=True)
                try:
                    body = await _body(response, most_bytes)
                finally:
                    await response.aclose()
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise BrokenError(f"{type(error).__name__}: {error}{_proxy_of(request.url)}") from None
        return Answer(response.status_code, response.headers, body)


def _proxy_of(url: httpx2.URL) -> str:
    """The proxy that a request goes through, in words, without user and password; empty: none."""
    proxy = urllib.request.getproxies().get(url.scheme) or urllib.request.getproxies().get("all")
    if not proxy or url.host in LOOPBACK or urllib.request.proxy_bypass(url.host):
        return ""
    return f", through the proxy {proxy.rpartition('@')[2]} that the environment names ({url.scheme}_proxy, no_proxy)"


async def _body(response: httpx2.Response, most_bytes: int) -> bytes:
    """The body of an answer, unpacked."""
    if response.status_code == OK:
        return await _whole(response, most_bytes, bytearray())
    import httpx2

    beginning = bytearray()
    with suppress(BrokenError, ShapeError, httpx2.HTTPError):  # the status says more than a body that is broken too
        await _whole(response, _MOST_OF_A_REFUSAL, beginning)
    return bytes(beginning)


async def _whole(response: httpx2.Response, most: int, body: bytearray) -> bytes:
    unpack, came = _unpacking(response.headers.get("content-encoding", "")), 0
    async for piece in response.aiter_raw():
        came += len(piece)
        body += unpack(piece, most + 1 - len(body))
        if max(came, len(body)) > most:
            raise ShapeError(f"the answer is longer than {most:,} bytes, far more than embeddings take")
    unpack(b"", 1)
    return bytes(body)


def _unpacking(encoding: str) -> Unpack:
    if encoding.strip().lower() in ("", "identity"):
        return lambda piece, most: piece
    if encoding.strip().lower() not in ("gzip", "x-gzip", "deflate"):
        raise ShapeError(f"the answer has Content-Encoding {encoding!r}, which was not asked for")
    stream = zlib.decompressobj(_GZIP_OR_ZLIB)

    def unpack(piece: bytes, most: int) -> bytes:
        try:
            content = stream.decompress(piece, most)
        except zlib.error as error:
            raise ShapeError(f"the answer has Content-Encoding {encoding!r}, and is not: {error}") from None
        if not piece and not stream.eof:
            raise BrokenError("the compressed answer breaks off")
        return content

    return unpack


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _end(http: httpx2.AsyncClient, loop: asyncio.AbstractEventLoop) -> None:
    """Close connections and end the thread; waits for neither, since any thread may be the one that collects."""

    async def close() -> None:
        await http.aclose()
        loop.stop()

    asyncio.run_coroutine_threadsafe(close(), loop)
