"""Servers that do not do what HTTP, JSON or decency ask: each ends in time, in bounded memory, in one line."""

from __future__ import annotations

import gzip
import json
import re
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from mi_core.checks import AnswerError, ConfigError, ShapeError
from mi_core.encoders.remote.adapters import ADAPTERS, most_bytes
from mi_core.encoders.remote.client import Client
from mi_core.encoders.remote.encoder import png_bytes
from mi_core.encoders.remote.meter import Meter, Spent
from mi_core.encoders.remote.parameters import EndpointParameters
from tests.endpoints import RawServer, raw

IMAGES = png_bytes(torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0)))
GOOD = json.dumps({"embeddings": [[1.0, 2.0], [3.0, 4.0]]}).encode()
Connection = socket.socket
MANY = 60  # pieces that a server drips, for three seconds


def http(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    """An answer as it goes over the wire."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def beginning(value: bytes | str) -> str:
    return repr(value[-20:])


def says(data: bytes) -> Callable[[Connection], None]:
    return lambda connection: connection.sendall(data)


def client_of(server: RawServer, **settings: Any) -> Client:
    own = {name: settings.pop(name) for name in ("name", "key", "query") if name in settings}
    parameters = EndpointParameters(url=server.url, **{"retries": 0, "timeout_s": 20.0} | settings)
    return Client(parameters, Meter(parameters.limits()), **own)


def fault(data: bytes | Callable[[Connection], None], **settings: Any) -> str:
    """What the client says of such an answer, in one line that names the encoder."""
    with raw(says(data) if isinstance(data, bytes) else data) as server:
        client = client_of(server, name="encoders.target.endpoint", **settings)
        with pytest.raises((AnswerError, ConfigError, ShapeError)) as caught:
            client.embed(IMAGES)
        assert len(server.requests) == 1
        message = str(caught.value)
        assert "\n" not in message
        assert message.startswith(f"encoders.target.endpoint ({server.url}): ")
        assert client.account.in_flight == 0  # type: ignore[attr-defined]
        return message


def test_a_server_of_this_machine_is_asked_without_the_proxy_and_others_name_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://me:hush@127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with raw(says(http(GOOD))) as server:
        assert client_of(server).embed(IMAGES)
    parameters = EndpointParameters(url="http://encoder.invalid/embed", retries=0, timeout_s=20.0)
    with pytest.raises(ConfigError, match=r"through the proxy 127.0.0.1:9 that the environment names") as caught:
        Client(parameters, Meter(parameters.limits())).embed(IMAGES)
    assert "hush" not in str(caught.value)


def test_a_raw_server_can_answer_well() -> None:
    """Otherwise the tests below would show nothing."""
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD)
    for data in (http(GOOD), chunked, http(gzip.compress(GOOD), "Content-Encoding: gzip")):
        with raw(says(data)) as server:
            assert client_of(server).embed(IMAGES)["backbone"].tolist() == [[1, 2], [3, 4]]
    with raw(says(http(zlib.compress(GOOD), "Content-Encoding: deflate"))) as server:
        assert client_of(server).embed(IMAGES)["backbone"].shape == (2, 2)


def drip(first: bytes, piece: bytes) -> Callable[[Connection], None]:
    def answer(connection: Connection) -> None:
        connection.sendall(first)
        for _ in range(MANY):
            time.sleep(0.05)
            connection.sendall(piece)

    return answer


def never_reads(connection: Connection) -> None:
    time.sleep(MANY * 0.05)


@pytest.mark.parametrize(
    "answer",
    [
        drip(http(b"", length=10_000), b" "),
        drip(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x"),
        drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        drip(http(b"", status="400 Bad", length=10_000), b" "),
        never_reads,
    ],
    ids=["body", "head", "interim", "chunks", "refusal", "silence"],
)
def test_a_request_has_one_deadline(answer: Callable[[Connection], None]) -> None:
    began = time.monotonic()
    assert "no whole answer within timeout_s = 0.5; raise it or lower batch" in fault(answer, timeout_s=0.5)
    assert time.monotonic() - began < MANY * 0.05


def test_a_request_that_nobody_reads_has_the_same_deadline() -> None:
    """More than the buffers of both sides hold."""
    large = [bytes(16 * 2**20)]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        parameters = EndpointParameters(
            f"http://127.0.0.1:{listening.getsockname()[1]}/", retries=0, timeout_s=0.5, adapter="multipart"
        )
        with pytest.raises(ConfigError, match="no whole answer within timeout_s = 0.5"):
            Client(parameters, Meter(parameters.limits())).embed(large)


class Flood:
    """Sends for as long as it is read, up to more than it may."""

    def __init__(self, head: str, piece: bytes = bytes(2**16), chunked: bool = False) -> None:
        self.head, self.sent = f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode(), 0
        self.piece = b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece

    def __call__(self, connection: Connection) -> None:
        connection.sendall(self.head)
        while self.sent < 64 * 2**20:
            connection.sendall(self.piece)
            self.sent += len(self.piece)


@pytest.mark.parametrize(
    "flood",
    [
        Flood("Content-Length: 9999999999"),
        Flood("Connection: close"),
        Flood("Transfer-Encoding: chunked", chunked=True),
        Flood("Transfer-Encoding: chunked", b"[" * 2**16, chunked=True),
        Flood("Content-Encoding: gzip\r\nContent-Length: 9999999999", gzip.compress(GOOD) * 1000),
    ],
    ids=["length", "closed", "chunked", "brackets", "behind-gzip"],
)
def test_an_answer_is_read_no_further_than_embeddings_may_reach(flood: Flood) -> None:
    message = fault(flood)
    assert f"the answer is longer than {most_bytes(2):,} bytes, far more than embeddings take" in message
    assert flood.sent < 40 * 2**20  # the bound, and what buffers hold


def test_a_bomb_is_unpacked_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(bytes(32 * 2**20))
    made: list[int] = []
    unpacker = zlib.decompressobj

    class Counting:
        def __init__(self, bits: int) -> None:
            self.inner = unpacker(bits)

        def decompress(self, data: bytes, most: int) -> bytes:
            found = self.inner.decompress(data, most)
            made.append(len(found))
            return found

    monkeypatch.setattr("mi_core.encoders.remote.exchange.zlib.decompressobj", Counting)
    assert "longer than" in fault(http(bomb, "Content-Encoding: gzip"))
    assert sum(made) <= most_bytes(2) + 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (http(GOOD, "Content-Encoding: gzip"), "the answer has Content-Encoding 'gzip', and is not: Error -3"),
        (http(GOOD, "Content-Encoding: br"), "the answer has Content-Encoding 'br', which was not asked for"),
        (http(b"[" * 200_000), "the answer has far more brackets than a list of embeddings: '[[["),
        (http(b"[" * 9_000), "the answer is no JSON: '[[["),
        (http(b'{"a":' * 9_000), "the answer is no JSON: "),
        (http(b""), "the answer is no JSON: ''; check url, adapter and outputs"),
        (http(b"<p>\xff\xfe busy \x1b[31m</p>"), "no JSON: '<p>\ufffd\ufffd busy \\x1b[31m</p>'; check url"),
        (http(b'{"embeddings": [[1' + b"0" * 5000 + b"]]}"), "the answer is no JSON: "),
        (http(GOOD, "Content-Type: application/json; charset=nonsense")[:-2] + b"\xff}", "the answer is no JSON: "),
        *((http(json.dumps(one).encode()), "answer has no {") for one in (None, 1, "x", True, {"embeddings": 1})),
        (http(b'{"embeddings": {"backbone": 1}}'), "the answer has no {"),
        (http(b'{"embeddings": [[1], {}]}'), "backbone is no list of numbers (image 1 of those sent)"),
        (http(b'{"embeddings": [[], []]}'), "backbone is no list of numbers (image 0 of those sent)"),
        (http(b'{"embeddings": [[1], [NaN]]}'), "backbone is NaN or infinite (image 1 of those sent)"),
        (http(b'{"embeddings": [[1], [1e999]]}'), "backbone is NaN or infinite (image 1 of those sent)"),
    ],
    ids=beginning,
)  # fmt: skip
def test_a_wrong_answer_is_one_line(data: bytes, message: str) -> None:
    assert message in fault(data)


@pytest.mark.parametrize("index", [[1], "0", None, 1.0, {"a": 1}])
def test_an_index_is_a_whole_number(index: Any) -> None:
    body = {"data": [{"index": 0, "embedding": [1.0]}, {"index": index, "embedding": [1.0]}]}
    assert 'the answer has no {"data": [{"index": ...' in fault(http(json.dumps(body).encode()), adapter="openai")


@pytest.mark.parametrize(
    ("adapter", "shape"),
    [
        ("cohere", '{"embeddings": {"float": [[...'),
        ("titan", '{"embedding": [...]}'),
        ("vertex", '{"predictions": [{"imageEmbedding": [...]}]}'),
        ("gemini", '{"embedding": {"values": [...]}}'),
    ],
)
def test_an_answer_of_another_vendor_is_refused(adapter: str, shape: str) -> None:
    numbers = {"embeddings": {"float": 1}, "embedding": 1, "predictions": [{"imageEmbedding": 1}]}
    for answer in (json.loads(GOOD), [], numbers, {"embeddings": [], "predictions": [], "embedding": {"values": 1}}):
        with pytest.raises(ShapeError, match=re.escape(f"the answer has no {shape}")):
            ADAPTERS[adapter].rows(answer)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (http(GOOD, length=len(GOOD) + 5), "failed 1 times, last: RemoteProtocolError: peer closed connection"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n[[1.0", "RemoteProtocolError: peer closed"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "RemoteProtocolError: illegal chunk header"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "RemoteProtocolError: Server disconnected"),
        (b"", "RemoteProtocolError: Server disconnected without sending a response"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "RemoteProtocolError: illegal status line"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, "RemoteProtocolError: "),
        (http(GOOD, "Content-Length: 1"), "RemoteProtocolError: "),
        (http(gzip.compress(GOOD)[:-9], "Content-Encoding: gzip"), "the compressed answer breaks off"),
    ],
    ids=beginning,
)
def test_a_connection_that_breaks_may_be_tried_again(data: bytes, message: str) -> None:
    assert message in (found := fault(data))
    assert found.endswith("the same command continues later")


def test_a_refusal_that_is_broken_too_keeps_its_status() -> None:
    assert "status 401, ''; check url" in fault(http(GOOD, "Content-Encoding: gzip", status="401 No"))
    assert "status 401, 'no'; check url" in fault(http(b"no", status="401 No", length=99))
    assert "status 401, 'nonono" in fault(http(b"no" * 2**20, status="401 No"))


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
def test_a_redirect_carries_the_key_nowhere(status: str) -> None:
    with raw(says(http(GOOD))) as other:
        moved = http(b"", f"Location: {other.url}?token=k3y-of-mine", status=status)
        message = fault(moved, key="k3y-of-mine")
        assert other.requests == []
    assert f"a redirect to {other.url}: it is not followed" in message
    assert "k3y-of-mine" not in message


def test_what_passed_is_asked_again_and_charged() -> None:
    """A request that is broken off in its answer was paid for."""
    answers = iter([http(GOOD)[:-3], http(GOOD, "Content-Encoding: gzip", status="503 Busy"), http(GOOD)])
    with raw(lambda connection: connection.sendall(next(answers))) as server:
        client = client_of(server, retries=2, price_per_image=1.0)
        assert client.embed(IMAGES)["backbone"].shape == (2, 2)
        assert len(server.requests) == 3
        assert client.account.spent == Spent(3, 6, 6.0)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("mi_core.encoders.remote.client.BACKOFF_SECONDS", 0.001)
    yield
