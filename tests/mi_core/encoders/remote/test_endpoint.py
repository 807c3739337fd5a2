"""An encoder behind HTTP, asked over a real connection: the same embeddings, every fault told, nothing uncharged."""

from __future__ import annotations

import base64
import io
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.checks import AnswerError, ConfigError, ShapeError
from mi_core.encoders.remote.adapters import ADAPTERS
from mi_core.encoders.remote.client import MOST_RETRY_AFTER_SECONDS, Client, retry_after
from mi_core.encoders.remote.encoder import Endpoint, png_bytes
from mi_core.encoders.remote.meter import Limits, Meter, Spent
from mi_core.encoders.remote.parameters import EndpointParameters
from mi_core.features.embedding import LpNorm
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.querying.extractor import Extractor
from mi_core.querying.plan import QueryPlan
from mi_core.streams import stream_keys
from tests.endpoints import FaultyServer, changed, reset, serving, slow, status
from tests.raising import refused

WEIGHTS = torch.randn(8, 3 * 6 * 6, generator=torch.Generator().manual_seed(0))
SLOW = slow(1.0)
PATHS = {
    "json": "/json",
    "multipart": "/multipart",
    "openai": "/v1/embeddings",
    "voyage": "/v1/multimodalembeddings",
    "cohere": "/v2/embed",
    "titan": "/model/amazon.titan-embed-image-v1/invoke",
    "jina": "/v1/embeddings",
    "vertex": "/v1/publishers/google/models/multimodalembedding@001:predict",
    "gemini": "/v1beta/models/gemini-embedding-2:embedContent",
}
ALONE = ("titan", "vertex", "gemini")


def linear(images: torch.Tensor) -> dict[str, torch.Tensor]:
    """An encoder whose rows do not depend on the batch: one product per image."""
    rows = torch.stack([WEIGHTS @ image.reshape(-1) for image in images])
    return {"backbone": rows, "projection": rows[:, :5]}


def images(count: int = 10, channels: int = 3, side: int = 6) -> torch.Tensor:
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with serving(linear) as running:
        yield running


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mi_core.encoders.remote.client.BACKOFF_SECONDS", 0.001)


def client_of(server: FaultyServer, meter: Meter | None = None, **settings: Any) -> Client:
    own = {key: settings.pop(key) for key in ("key", "cache", "identity", "widths") if key in settings}
    adapter = settings.get("adapter", "json")
    parameters = EndpointParameters(url=f"{server.url}{PATHS[adapter]}", **settings)
    return Client(parameters, meter or Meter(parameters.limits()), **own)


@pytest.mark.parametrize("channels", [1, 3])
def test_what_is_sent_is_the_rounded_image_without_loss(channels: int) -> None:
    given = images(5, channels, 7)
    given[0, 0, 0, :4] = torch.tensor([-0.1, 1.2, 0.5, 127.4 / 255])
    for one, data in zip(given, png_bytes(given), strict=True):
        read = np.asarray(Image.open(io.BytesIO(data)))
        expected = np.clip(np.rint(one.numpy() * np.float32(255)), 0, 255).astype(np.uint8)
        np.testing.assert_array_equal(read, expected[0] if channels == 1 else expected.transpose(1, 2, 0))


@pytest.mark.parametrize("adapter", sorted(ADAPTERS))
@pytest.mark.parametrize("batch", [3, 64])
def test_every_shape_gives_the_embeddings_of_the_encoder(server: FaultyServer, adapter: str, batch: int) -> None:
    """Every byte value occurs in the files, and 10 images do not fill requests of 3."""
    outputs = ("backbone", "projection") if adapter in ("json", "multipart") else ("backbone",)
    client = client_of(server, adapter=adapter, batch=batch, outputs=outputs)
    given = images(10)
    rounded = (given * 255).round() / 255
    found = Endpoint(client)(given)
    assert list(found) == list(outputs)
    for output in outputs:
        torch.testing.assert_close(found[output], linear(rounded)[output], rtol=0, atol=0)
    assert (server.requests, server.asked) == (10 if adapter in ALONE else -(-10 // batch), 10)


TEXT = base64.b64encode(b"\x89PNG").decode()
URL = f"data:image/png;base64,{TEXT}"


@pytest.mark.parametrize(
    ("adapter", "content"),
    [
        ("openai", {"input": [URL] * 2, "encoding_format": "float"}),
        ("voyage", {"inputs": [{"content": [{"type": "image_base64", "image_base64": URL}]}] * 2}),
        ("cohere", {"input_type": "image", "embedding_types": ["float"], "images": [URL] * 2}),
        ("jina", {"input": [{"image": TEXT}] * 2, "embedding_type": "float"}),
        ("titan", {"inputImage": TEXT}),
        ("vertex", {"instances": [{"image": {"bytesBase64Encoded": TEXT}}]}),
        ("gemini", {"content": {"parts": [{"inline_data": {"mime_type": "image/png", "data": TEXT}}]}}),
    ],
)
def test_requests_of_vendors_are_as_documented(adapter: str, content: dict[str, Any]) -> None:
    """Those of one image name the model in their address alone."""
    alone = adapter in ALONE
    sent = ADAPTERS[adapter].request([b"\x89PNG"] * (1 if alone else 2), {"model": "m"})
    assert sent == {"json": content | ({} if alone else {"model": "m"})}
    parameters = EndpointParameters(url="https://x.org", adapter=adapter, batch=64)
    assert parameters.images_per_request == (1 if alone else 64)


def test_openai_rows_come_in_any_order_and_each_once(server: FaultyServer) -> None:
    expected = client_of(server, adapter="openai").embed(png_bytes(images()))
    server.always = lambda reply: reply._replace(content={"data": reply.content["data"][::-1]})
    shuffled = client_of(server, adapter="openai").embed(png_bytes(images()))
    np.testing.assert_array_equal(shuffled["backbone"], expected["backbone"])
    server.always = lambda reply: reply._replace(content={"data": reply.content["data"][1:] * 2})
    with pytest.raises(ShapeError, match="do not have each index from 0 on once"):
        client_of(server, adapter="openai").embed(png_bytes(images()))
    assert client_of(server, adapter="openai", model="projection").parameters.model == "projection"
    server.always = None
    named = client_of(server, adapter="openai", model="projection").embed(png_bytes(images()))
    assert named["backbone"].shape == (10, 5)  # `outputs` says what an unnamed embedding is called


def test_connections_are_kept_and_no_more_requests_fly_than_allowed(server: FaultyServer) -> None:
    server.always = slow(0.03)
    client = client_of(server, batch=1, concurrency=3)
    for _ in range(2):
        client.embed(png_bytes(images(9)))
    assert server.requests == 18
    assert server.most_in_flight == 3
    assert len(server.connections) == 3


@pytest.mark.parametrize("fault", [status(429), status(500), status(502), status(503), status(504), reset, SLOW])
def test_what_passes_is_tried_again_and_charged_again(server: FaultyServer, fault: Any) -> None:
    server.faults = [fault, fault]
    meter = Meter(Limits(price_per_image=0.5))
    client = client_of(server, meter, retries=50, timeout_s=0.2 if fault is SLOW else 60)
    found = client.embed(png_bytes(images()))
    torch.testing.assert_close(torch.from_numpy(found["backbone"]), linear((images() * 255).round() / 255)["backbone"])
    sent = server.requests
    assert sent == 3 or (sent > 3 and fault is SLOW)  # on a busy machine any answer may be slow
    assert meter.spent == Spent(sent, 10 * sent, 5.0 * sent)


def test_a_server_that_stays_down_ends_in_one_line(server: FaultyServer) -> None:
    server.always = status(503)
    with pytest.raises(ConfigError, match=r"/json: failed 3 times, last: status 503, '\{\"error\": \"this is 503\"\}'"):
        client_of(server, retries=2).embed(png_bytes(images()))
    assert server.requests == 3
    server.server_close()
    with pytest.raises(ConfigError, match=r"failed 1 times, last: \w+Error:.*; the same command continues later"):
        client_of(server, retries=0).embed(png_bytes(images()))


@pytest.mark.parametrize("code", [400, 401, 404, 413, 302])
def test_a_refusal_is_told_at_once(server: FaultyServer, code: int) -> None:
    server.always = status(code)
    with pytest.raises(ConfigError, match=f"status {code}, .*this is {code}.*; check url, model and api_key_env"):
        client_of(server, batch=2, concurrency=1).embed(png_bytes(images()))
    assert server.requests == 1  # nor are the other requests sent


def test_retry_after_is_honoured(server: FaultyServer) -> None:
    server.faults = [status(429, Retry_After="1")]
    client_of(server).embed(png_bytes(images()))
    first, second = server.started
    assert second - first >= 1
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert retry_after(format_datetime(now + timedelta(seconds=90), usegmt=True), now) == 90
    assert retry_after(format_datetime(now - timedelta(seconds=90), usegmt=True), now) == 0
    assert retry_after("1e9", now) == retry_after("inf", now) == MOST_RETRY_AFTER_SECONDS
    assert [retry_after(header, now) for header in (None, "soon", "nan", "-3")] == [0, 0, 0, 0]


def with_row(row: int, value: Any) -> Any:
    return changed(lambda rows: [*rows[:row], value, *rows[row + 1 :]])


@pytest.mark.parametrize(
    ("fault", "message", "row"),
    [
        (with_row(2, [0.0] * 7), "backbone has 7 numbers instead of 8", 6),
        (with_row(3, [float("nan")] * 8), "backbone is NaN or infinite", 7),
        (with_row(3, [1e300] * 8), "backbone is NaN or infinite", 7),
        (with_row(0, [None] * 8), "backbone holds something else than numbers", 4),
        (with_row(0, ["1.5"] * 8), "backbone holds something else than numbers", 4),
        (with_row(0, [True] * 8), "backbone holds something else than numbers", 4),
        (with_row(2, [10**400] * 8), "backbone holds an integer that no float holds", 6),
        (with_row(1, "abc"), "backbone is no list of numbers", 5),
        (with_row(1, [[1.0]] * 8), "backbone holds something else than numbers", 5),
    ],
)
def test_a_bad_row_names_the_image(server: FaultyServer, fault: Any, message: str, row: int) -> None:
    """In the second request of four images."""
    server.faults = [None, fault]
    kept = Kept()
    with pytest.raises(AnswerError) as caught:
        client_of(server, batch=4, concurrency=1, cache=kept).embed(png_bytes(images(8)))
    assert message in str(caught.value)
    assert server.url in str(caught.value)
    assert caught.value.row == row
    assert len(kept.answers) == 4  # what came before is kept, what is wrong never


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (changed(lambda rows: rows[:-1]), "9 embeddings for 10 images"),
        (changed(lambda rows: [row[:5] for row in rows]), "has 5 numbers instead of 8"),
        (lambda reply: reply._replace(content=b"<html>busy</html>"), "the answer is no JSON: '<html>busy</html>'"),
        (lambda reply: reply._replace(content={"vectors": []}), "the answer has no .*embeddings"),
        (lambda reply: reply._replace(content=[1]), "the answer has no .*embeddings"),
        (lambda reply: reply._replace(content={"embeddings": {"pooled": [[1.0]]}}), "no output 'backbone'.* pooled"),
    ],
)
def test_a_bad_answer_is_one_line(server: FaultyServer, fault: Any, message: str) -> None:
    server.always = fault
    with pytest.raises((ShapeError, AnswerError), match=message) as caught:
        client_of(server, widths={"backbone": 8}).embed(png_bytes(images()))
    assert "\n" not in str(caught.value)
    assert server.requests == 1


def test_the_width_may_not_change(server: FaultyServer) -> None:
    client = client_of(server)
    client.embed(png_bytes(images()))
    server.always = changed(lambda rows: [row[:5] for row in rows])
    refused(AnswerError, "has 5 numbers instead of 8", client.embed, png_bytes(images()))


def test_an_extractor_names_the_sample(server: FaultyServer) -> None:
    """Row 7 of a request of 4 views per image is a view of the second sample."""
    server.always = with_row(7, [float("inf")] * 8)
    endpoint = Endpoint(client_of(server))
    plan = QueryPlan((PairwiseSimilarity(),), ("backbone",), views=4)
    extractor = Extractor({"target": endpoint}, plan, SimCLRAugmentation(), torch.device("cpu"))
    names = ["pool/a", "pool/b", "pool/c"]
    pixels = (images(3) * 255).to(torch.uint8)
    with pytest.raises(AnswerError, match=r"encoder target: http.*backbone is NaN or infinite for pool/b"):
        extractor(pixels, stream_keys(0, "train", "pool", ["a", "b", "c"]), names)


def test_views_are_drawn_at_the_size_of_the_endpoint(server: FaultyServer) -> None:
    endpoint = Endpoint(client_of(server, size=6))
    plan = QueryPlan((PairwiseSimilarity(), LpNorm()), ("backbone",), views=2)
    extractor = Extractor({"target": endpoint}, plan, SimCLRAugmentation(), torch.device("cpu"))
    pixels = (images(2, side=12) * 255).to(torch.uint8)
    found = extractor(pixels, stream_keys(0, "train", "pool", ["a", "b"]), ["pool/a", "pool/b"])
    assert np.isfinite(found["target"]["backbone.norm:2"]).all()  # another size would not fit the weights


class Kept:
    """A cache in memory."""

    def __init__(self) -> None:
        self.answers: dict[bytes, Mapping[str, Any]] = {}

    def get(self, keys: Sequence[bytes], outputs: Sequence[str]) -> dict[bytes, Mapping[str, Any]]:
        return {key: self.answers[key] for key in keys if key in self.answers}

    def put(self, answers: Mapping[bytes, Mapping[str, Any]]) -> None:
        self.answers |= answers


def test_what_is_cached_costs_nothing(server: FaultyServer) -> None:
    kept, meter = Kept(), Meter(Limits())
    client = client_of(server, meter, cache=kept, batch=4)
    first = client.embed(png_bytes(images(6)))
    again = client.embed(png_bytes(images(10)))
    assert meter.spent.images == server.asked == 10
    np.testing.assert_array_equal(again["backbone"][:6], first["backbone"])
    assert max(server.images.values()) == 1
    server.always = changed(lambda rows: [[1.0] * 8 for _ in rows])
    other = client.embed(png_bytes(images(6)), cached=False)
    assert (other["backbone"] == 1).all()
    np.testing.assert_array_equal(client.embed(png_bytes(images(6)))["backbone"], first["backbone"])  # not kept
    client_of(server, meter, cache=kept, identity="other weights").embed(png_bytes(images(6)))
    assert meter.spent.images == server.asked == 22


def test_equal_images_are_sent_once_where_answers_are_kept(server: FaultyServer) -> None:
    twice = png_bytes(images(6))[:3] * 2
    told = client_of(server, cache=Kept(), batch=2).embed(twice)
    assert server.asked == 3
    np.testing.assert_array_equal(told["backbone"][:3], told["backbone"][3:])
    client_of(server).embed(twice)
    assert server.asked == 3 + 6


def test_a_key_is_sent_and_told_to_nobody(server: FaultyServer) -> None:
    server.always = status(401)
    for header, expected in (("Authorization", "Bearer s3cret"), ("x-api-key", "s3cret")):
        with pytest.raises(ConfigError) as caught:
            client_of(server, key="s3cret", api_key_header=header).embed(png_bytes(images()))
        assert {name.lower(): value for name, value in server.headers[-1].items()}[header.lower()] == expected
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "ftp://host/x"}, "url = 'ftp://host/x', allowed: http://... or https://..."),
        ({"url": "http://[::1/x"}, "allowed: http://... or https://..."),
        ({"url": "http://host:99999/x"}, "allowed: http://... or https://..."),
        ({"url": "http://host/a b"}, "allowed: http://... or https://..."),
        ({"url": "https://user:hushed@host/x"}, "url holds a user or password, which would be shown"),
        ({"url": "ftp://user:hushed@host/x?a=hushed"}, "url = 'host/x', allowed: http"),
        ({"url": "https://host/sk-proj-hushed" + "a1" * 9 + "/x"}, "url holds a key of an API, which would be shown"),
        ({"url": "host/hf_hushed" + "a1" * 14}, "url holds a token of Hugging Face, which would be shown"),
        ({"query": {"sig": "hushed" + "a1" * 15}}, "query.sig holds a key of Azure, which .*variable in query_env.sig"),
        ({"url": "https://host/x?auth=hushed"}, "url holds something after https://host/x, which would be shown"),
        (
            {"url": "https://host/x?pw=hushed"},
            r"harmless as query, .* secret as query_env: \{NAME: ENVIRONMENT_VARIABLE",
        ),
        ({"url": "https://host/x?hushed"}, "url holds something after https://host/x"),
        ({"url": "https://host/x#hushed"}, "url holds something after https://host/x"),
        ({"query": {"v": "1"}, "query_env": {"v": "CODE"}}, "query and query_env both hold 'v'"),
        ({"query_env": {"code": "sk-hushed"}}, "query_env.code is no name of an environment variable"),
        ({"api_key_env": "sk-hushed"}, "api_key_env is no name of an environment variable; give the name"),
        ({"api_key_header": "X Key"}, "api_key_header = 'X Key' is no name of a header"),
        ({"adapter": "xml"}, "adapter = 'xml', allowed: cohere, gemini, jina, json, multipart, openai, titan, v"),
        ({"outputs": ()}, r"outputs = \[\], allowed: each of backbone"),
        ({"outputs": ("pooled",)}, "outputs = 'pooled', allowed: backbone"),
        ({"batch": 0}, "batch = 0"),
        ({"concurrency": 0}, "concurrency = 0"),
        ({"retries": -1}, "retries = -1"),
        ({"timeout_s": 0}, "timeout_s = 0"),
        ({"size": 0}, "size = 0"),
        ({"requests_per_second": 0}, "requests_per_second = 0"),
        ({"price_per_image": -1}, "price_per_image = -1"),
        ({"max_spend": 5}, "max_spend = 5 without a price"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        EndpointParameters(**({"url": "https://host/v1"} | settings))
    assert "hushed" not in str(caught.value)


def test_a_rate_holds_at_the_server(server: FaultyServer) -> None:
    """Two workers of four connections each: request k arrives no sooner than it may, however fast the answers come."""
    began, rate = time.monotonic(), 40
    meter = Meter(Limits(requests_per_second=rate))
    clients = [client_of(server, meter, batch=1, concurrency=4) for _ in range(2)]
    threads = [threading.Thread(target=client.embed, args=(png_bytes(images(6)),)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.requests == 12
    assert all(arrived - began >= k / rate for k, arrived in enumerate(sorted(server.started), start=1))


def test_what_was_never_sent_is_charged_back(server: FaultyServer) -> None:
    """A refusal while other requests wait for their turn."""
    server.always = status(400)
    meter = Meter(Limits(requests_per_second=4, price_per_image=1))
    refused(ConfigError, "status 400", client_of(server, meter, batch=2, concurrency=4).embed, png_bytes(images(8)))
    assert server.requests < 4
    assert meter.spent == Spent(server.requests, 2 * server.requests, 2.0 * server.requests)
    assert meter.in_flight == 0


def test_a_cap_ends_the_work_before_the_next_request(server: FaultyServer) -> None:
    kept = Kept()
    meter = Meter(Limits(price_per_image=0.1, max_spend=0.6))
    client = client_of(server, meter, cache=kept, batch=2, concurrency=1)
    with pytest.raises(ConfigError, match=r"max_spend = 0.6, of which 0.6 is spent on 3 requests with 6 images"):
        client.embed(png_bytes(images(10)))
    assert (server.asked, len(kept.answers)) == (6, 6)
    richer = Meter(Limits(price_per_image=0.1, max_spend=1.0), meter.spent)
    assert client_of(server, richer, cache=kept).embed(png_bytes(images(10)))["backbone"].shape == (10, 8)
    assert server.asked == 10
