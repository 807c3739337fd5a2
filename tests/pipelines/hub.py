"""A stand-in for Hugging Face's Hub on this host: data sets from a folder, as ``hf://datasets/org/name`` reads them."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

COMMIT = "0" * 40


class _Hub(BaseHTTPRequestHandler):
    folder: Path

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        path = unquote(urlsplit(self.path).path)
        if match := re.fullmatch(r"/datasets/org/name/resolve/main/(.+)", path):
            return self._file(self.folder / match[1])
        if match := re.fullmatch(r"/api/datasets/org/name/tree/main/?(.*)", path):
            place = self.folder / match[1]
            return self._json([self._entry(one) for one in sorted(place.iterdir())]) if place.is_dir() else self._none()
        if path == "/api/datasets/org/name/paths-info/main":
            asked = json.loads(sent) if sent.startswith("{") else parse_qs(sent)
            return self._json(
                [self._entry(self.folder / one) for one in asked["paths"] if (self.folder / one).exists()]
            )
        if re.fullmatch(r"/api/datasets/org/name(/revision/main)?", path):
            return self._json({"id": "org/name", "sha": COMMIT, "siblings": [], "private": False, "tags": []})
        return self._none()

    def _entry(self, path: Path) -> dict[str, Any]:
        kind = "directory" if path.is_dir() else "file"
        size = 0 if path.is_dir() else path.stat().st_size
        return {"type": kind, "oid": COMMIT, "size": size, "path": str(path.relative_to(self.folder))}

    def _file(self, path: Path) -> None:
        if not path.is_file():
            return self._none()
        data = path.read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        start, stop = (int(asked[1]), int(asked[2] or len(data)) + 1) if asked else (0, len(data))
        return self._send(206 if asked else 200, data[start:stop], "application/octet-stream")

    def _json(self, content: Any) -> None:
        self._send(200, json.dumps(content).encode(), "application/json")

    def _none(self) -> None:
        self._send(404, b"", "text/plain", {"X-Error-Code": "RepoNotFound"})

    def _send(self, status: int, data: bytes, kind: str, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@contextmanager
def hub_of(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a data set whose files are those of a folder."""
    from huggingface_hub import HfFileSystem, constants

    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (_Hub,), {"folder": folder}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    patch.setattr(constants, "ENDPOINT", endpoint)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    HfFileSystem.clear_instance_cache()
    try:
        yield "hf://datasets/org/name"
    finally:
        HfFileSystem.clear_instance_cache()
        server.shutdown()
        server.server_close()
        thread.join()
