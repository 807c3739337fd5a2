"""A block in a model card on the Hub: against a server of this host that takes commits as the Hub does."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest

from mi_core.adoption.hub import write_to_card
from mi_core.checks import ConfigError

constants = pytest.importorskip("huggingface_hub.constants")
NAME = "org/model"


class Cards:
    """The card of one model, and its commits."""

    def __init__(self, text: str | None) -> None:
        self.text, self.commits, self.parents = text, 0, list[Any]()

    @property
    def commit(self) -> str:
        return f"{self.commits:040d}"

    def take(self, lines: list[dict[str, Any]]) -> None:
        header, file = (line["value"] for line in lines)
        self.parents.append(header.get("parentCommit"))
        assert file["path"] == "README.md"
        self.text, self.commits = base64.b64decode(file["content"]).decode(), self.commits + 1


class _Handler(BaseHTTPRequestHandler):
    cards: Cards

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._card(with_body=False)

    def do_GET(self) -> None:
        if urlsplit(self.path).path.startswith("/api/"):
            return self._json({"id": NAME, "sha": self.cards.commit, "siblings": []})
        return self._card(with_body=True)

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        if "/preupload/" in self.path:
            return self._json({"files": [{"path": "README.md", "uploadMode": "regular", "shouldIgnore": False}]})
        if "/commit/" in self.path:
            if self.headers.get("Authorization") != "Bearer hf_right":
                return self._send(403, b'{"error": "no right to write"}', {})
            self.cards.take([json.loads(line) for line in sent.splitlines()])
            url = f"http://127.0.0.1/{NAME}/commit/{self.cards.commit}"
            return self._json({"commitUrl": url, "commitOid": self.cards.commit, "success": True})
        return self._json({"errors": [], "warnings": []})  # what the card says of its model is fine

    def _card(self, *, with_body: bool) -> None:
        if self.cards.text is None:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self.cards.commit})
        data = self.cards.text.encode()
        mark = hashlib.sha256(data).hexdigest()
        known = {"X-Repo-Commit": self.cards.commit, "ETag": f'"{mark}"', "Content-Length": str(len(data))}
        return self._send(200, data if with_body else b"", known)

    def _json(self, content: Any) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, more: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **more}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cards]:
    made = Cards(None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"cards": made}))
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    yield made
    server.shutdown()
    server.server_close()


def test_the_block_is_added_once_and_then_replaced(cards: Cards) -> None:
    cards.text = "---\nlicense: mit\n---\n# A model\n"
    assert write_to_card(NAME, "## Audit\n\none\n").endswith(f"/commit/{1:040d}")
    first = cards.text
    assert first.startswith("---\nlicense: mit\n---\n# A model\n\n<!-- encoder-audit: begin -->\n## Audit\n\none\n<!--")
    cards.text = first + "\n## Afterwards\n"
    write_to_card(NAME, "two")
    assert cards.text.count("encoder-audit: begin") == 1
    assert "one" not in cards.text
    assert cards.text.endswith("two\n<!-- encoder-audit: end -->\n## Afterwards\n")
    assert cards.parents == [f"{0:040d}", f"{1:040d}"]


def test_a_model_without_a_card_gets_one(cards: Cards) -> None:
    write_to_card(NAME, "block")
    assert cards.text == "<!-- encoder-audit: begin -->\nblock\n<!-- encoder-audit: end -->\n"


def test_who_may_not_write_is_told_in_a_line(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ConfigError, match="org/model: .*403") as told:
        write_to_card(NAME, "block")
    assert "\n" not in str(told.value)
    assert cards.text is None
