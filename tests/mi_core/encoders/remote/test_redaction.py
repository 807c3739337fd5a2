"""A key is sent and told to nobody: not in messages, not in tracebacks, not in logs, however a server echoes it."""

from __future__ import annotations

import base64
import html
import json
import logging
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mi_core.checks import AnswerError, ConfigError, ShapeError
from mi_core.encoders.remote.client import HIDDEN, Client, Redaction
from mi_core.encoders.remote.meter import Meter
from mi_core.encoders.remote.parameters import EndpointParameters
from tests.endpoints import raw

KEY = "k3y+of/mine&0123456789="
CODE = "c0de-of mine%9876543210"
ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "upper": str.upper,
    "bearer": lambda key: f"Bearer {key}",
    "address": lambda key: quote(key, safe=""),
    "json": lambda key: json.dumps({"authorization": key}),
    "html": html.escape,
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 of the header": lambda key: base64.b64encode(f"Bearer {key}".encode()).decode(),
    "base64 of a pair": lambda key: base64.urlsafe_b64encode(f"u:{key}:x".encode()).decode(),
    "cut": lambda key: key[:-5],
}


@settings(max_examples=40)
@given(st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=6), st.text(), st.text())
def test_no_secret_survives_any_encoding(secret: str, before: str, after: str) -> None:
    """Oracle: what is hidden decodes to nothing of it; what holds no secret stays."""
    hidden = Redaction([secret])
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        shown = hidden.hide(f"[{encode(f'{before}{secret}{after}'.encode()).decode()}]")
        assert shown == f"[{HIDDEN}]"
    for form in (secret, quote(secret), json.dumps(secret), html.escape(secret), repr(secret)):
        assert secret not in hidden.hide(f"{before} {form} {after}").replace(HIDDEN, "")


def test_what_is_no_secret_stays() -> None:
    text = "status 401: dW5hdXRob3JpemVk, ask for access"
    assert Redaction(["s3cret", ""]).hide(text) == text
    assert Redaction([]).hide(text) == text


def respond(status: str, body: str, *headers: str) -> bytes:
    data = body.encode()
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(data)}", *headers, "", ""]).encode() + data


ANSWERS: dict[str, Callable[[str], bytes]] = {
    "refusal": lambda echo: respond("401 No", f"no such key: {echo}"),
    "late in the text": lambda echo: respond("401 No", " " * 200 + "x" * 110 + " " + echo),
    "down": lambda echo: respond("503 Busy", echo),
    "no JSON": lambda echo: respond("200 OK", f"<p>{echo}</p>"),
    "another shape": lambda echo: respond("200 OK", json.dumps({"got": echo})),
    "another output": lambda echo: respond("200 OK", json.dumps({"embeddings": {echo: [[1.0]]}})),
    "redirect": lambda echo: respond("302 Found", "", f"Location: http://127.0.0.1:1/{quote(echo)}?k={quote(echo)}"),
    "header": lambda echo: respond("200 OK", "", f"bad header {quote(echo, safe=' /+=')}"),
    "encoding": lambda echo: respond("200 OK", "", f"Content-Encoding: {quote(echo, safe=' /+=')}"),
}


def letters(text: str) -> str:
    return "".join(one for one in text.lower() if one.isalnum())


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("header", ["Authorization", "x-api-key"])
def test_a_server_that_echoes_the_key(answer: str, header: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    echoed: Iterator[str] = iter(ENCODINGS)

    def reply(connection: Any) -> None:
        secret = ENCODINGS[next(echoed)]
        connection.sendall(ANSWERS[answer](f"{secret(KEY)} {secret(CODE)}"))

    with raw(reply) as server:
        parameters = EndpointParameters(server.url, retries=0, api_key_header=header, query={"api-version": "2026"})
        client = Client(parameters, Meter(parameters.limits()), key=KEY, query={"code": CODE})
        for encoding in ENCODINGS:
            with pytest.raises((AnswerError, ConfigError, ShapeError)) as caught:
                client.embed([b"image"])
            shown = "".join(traceback.format_exception(caught.value)) + caplog.text
            for secret in (KEY, CODE):
                for form in ENCODINGS.values():
                    assert letters(form(secret))[-14:-2] not in letters(shown), (encoding, shown)
        sent = server.requests[-1].decode()
        assert f"{header}: {'Bearer ' if header == 'Authorization' else ''}{KEY}" in sent
        assert "POST /json?api-version=2026&code=c0de" in sent


@pytest.mark.parametrize("key", ["k3y-of-mine\n", " k3y-of-mine", "k3y-\x00of-mine", "k3y-öf-mine"])
def test_a_key_that_no_header_takes_is_told_and_not_shown(key: str) -> None:
    parameters = EndpointParameters("http://127.0.0.1:1/json", retries=0, api_key_env="MINE")
    with pytest.raises(ConfigError, match="the key holds a line break, .* set MINE to the key alone") as caught:
        Client(parameters, Meter(parameters.limits()), key=key)
    assert "of-mine" not in str(caught.value)
