"""The reference server with faults on demand: whatever it does wrong goes over a real connection."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import sha256
from typing import Any, TypeVar

import torch

from cluster.serve_encoder import EncoderServer, Reply, _Handler

Server = TypeVar("Server", bound=socketserver.BaseServer)
RESET = Reply(0, b"")  # the connection is broken instead of answered
Fault = Callable[[Reply], Reply]
"""What becomes of an answer."""


def status(code: int, **headers: str) -> Fault:
    """Answer with an error."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda reply: Reply(code, {"error": f"this is {code}"}, named)


def reset(reply: Reply) -> Reply:
    """Break the connection."""
    return RESET


def slow(seconds: float) -> Fault:
    """Answer late."""

    def answer(reply: Reply) -> Reply:
        time.sleep(seconds)
        return reply

    return answer


def changed(change: Callable[[list[Any]], list[Any]], output: str = "backbone") -> Fault:
    """Change the embeddings of an answer in the shape of ``/json``."""

    def answer(reply: Reply) -> Reply:
        embeddings = {**reply.content["embeddings"], output: change(reply.content["embeddings"][output])}
        return Reply(200, {"embeddings": embeddings})

    return answer


class FaultyServer(EncoderServer):
    """Counts what arrives; request number k, from 0, meets fault k, those after the last fault the one for all."""

    def __init__(self, embed: Callable[[torch.Tensor], Mapping[str, torch.Tensor]]) -> None:
        super().__init__(("127.0.0.1", 0), embed)
        self.RequestHandlerClass = _Breakable
        self.faults: list[Fault | None] = []
        self.always: Fault | None = None
        self.requests = 0
        self.headers: list[Mapping[str, str]] = []
        self.paths: list[str] = []
        self.started: list[float] = []
        self.images: Counter[bytes] = Counter()
        self.answered: Counter[bytes] = Counter()
        self.connections: set[Any] = set()
        self.in_flight = self.most_in_flight = 0
        self.lock = threading.Lock()

    @property
    def asked(self) -> int:
        """Images that arrived."""
        return sum(self.images.values())

    def respond(self, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        with self.lock:
            number, self.requests = self.requests, self.requests + 1
            self.started.append(time.monotonic())
            self.headers.append(headers)
            self.paths.append(path)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            reply = super().respond(path, headers, body)
            fault = self.faults[number] if number < len(self.faults) else self.always
            return reply if fault is None else fault(reply)
        finally:
            with self.lock:
                self.in_flight -= 1

    def answer(self, images: Sequence[bytes]) -> dict[str, list[list[float]]]:
        with self.lock:
            self.images.update(sha256(image).digest() for image in images)
        return super().answer(images)


class _Breakable(_Handler):
    server: FaultyServer

    def setup(self) -> None:
        super().setup()
        with self.server.lock:
            self.server.connections.add(self.client_address)

    def _send(self, reply: Reply) -> None:
        if reply is RESET:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
            self.wfile = self.rfile  # type: ignore[assignment]  # nothing is left to flush
        else:
            super()._send(reply)

    def handle(self) -> None:
        with suppress(OSError):  # a client that was killed, or gave up waiting
            super().handle()

    def finish(self) -> None:
        with suppress(OSError, ValueError):
            super().finish()


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """A server in a thread, for the duration of the block."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def serving(embed: Callable[[torch.Tensor], Mapping[str, torch.Tensor]]) -> AbstractContextManager[FaultyServer]:
    """A server of an encoder, for the duration of the block."""
    return running(FaultyServer(embed))


class RawServer(socketserver.ThreadingTCPServer):
    """Reads a request whole, and then does with the connection what it is told: no HTTP is spoken for it."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        super().__init__(("127.0.0.1", 0), _RawHandler)
        self.answer = answer
        self.requests: list[bytes] = []

    @property
    def url(self) -> str:
        """Where it answers, with a path."""
        return f"http://127.0.0.1:{self.server_address[1]}/json"


class _RawHandler(socketserver.StreamRequestHandler):
    server: RawServer

    def handle(self) -> None:
        with suppress(OSError):
            head = b"".join(iter(self.rfile.readline, b"\r\n"))
            lengths = [line.split(b":")[1] for line in head.lower().splitlines() if line.startswith(b"content-length:")]
            self.rfile.read(int(lengths[0]) if lengths else 0)
            self.server.requests.append(head)
            self.server.answer(self.connection)


def raw(answer: Callable[[socket.socket], None]) -> AbstractContextManager[RawServer]:
    """A raw server, for the duration of the block."""
    return running(RawServer(answer))
