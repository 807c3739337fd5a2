"""A stand-in for Hugging Face's Hub on this host: data sets and files of models, from folders."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.endpoints import running

COMMIT = "0" * 40


class _Hub(BaseHTTPRequestHandler):
    repositories: Mapping[str, Path]

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
        path = unquote(urlsplit(self.path).path).strip("/")
        found = re.fullmatch(r"(?P<api>api/(?:models/)?)?(?P<name>(?:datasets/)?[^/]+/[^/]+)(?P<rest>(?:/.*)?)", path)
        folder = self.repositories.get(found["name"]) if found else None
        if found is None or folder is None:
            return self._none("RepoNotFound")
        rest = found["rest"]
        if match := re.fullmatch(rf"/resolve/(?:main|{COMMIT})/(.+)", rest):
            return self._file(folder / match[1])
        if match := re.fullmatch(rf"/tree/(?:main|{COMMIT})/?(.*)", rest):
            place = folder / match[1]
            return (
                self._json([_entry(one, folder) for one in sorted(place.iterdir())])
                if place.is_dir()
                else self._none("EntryNotFound")
            )
        if re.fullmatch(rf"/paths-info/(?:main|{COMMIT})", rest):
            asked = json.loads(sent) if sent.startswith("{") else parse_qs(sent)
            return self._json([_entry(folder / one, folder) for one in asked["paths"] if (folder / one).exists()])
        if re.fullmatch(rf"(/revision/(?:main|{COMMIT}))?", rest):
            name = found["name"].removeprefix("datasets/")
            return self._json({"id": name, "sha": COMMIT, "siblings": [], "private": False, "tags": []})
        return self._none("EntryNotFound")

    def _file(self, path: Path) -> None:
        if not path.is_file():
            return self._none("EntryNotFound")
        data = path.read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        start, stop = (int(asked[1]), int(asked[2] or len(data)) + 1) if asked else (0, len(data))
        known = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        return self._send(206 if asked else 200, data[start:stop], "application/octet-stream", known)

    def _json(self, content: Any) -> None:
        self._send(200, json.dumps(content).encode(), "application/json")

    def _none(self, code: str) -> None:
        self._send(404, b"", "text/plain", {"X-Error-Code": code, "X-Repo-Commit": COMMIT})

    def _send(self, status: int, data: bytes, kind: str, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _entry(path: Path, folder: Path) -> dict[str, Any]:
    kind = "directory" if path.is_dir() else "file"
    size = 0 if path.is_dir() else path.stat().st_size
    return {"type": kind, "oid": COMMIT, "size": size, "path": str(path.relative_to(folder))}


@contextmanager
def hub_at(repositories: Mapping[str, Path]) -> Iterator[str]:
    """The address of a Hub on this host, for HF_ENDPOINT.

    Args:
        repositories: folders by name, ``org/name`` of a model and ``datasets/org/name`` of a data set.
    """
    here = type("Here", (_Hub,), {"repositories": repositories})
    with running(ThreadingHTTPServer(("127.0.0.1", 0), here)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def ask_there(endpoint: str, patch: pytest.MonkeyPatch) -> None:
    """Let this process ask another Hub."""
    from huggingface_hub import constants

    patch.setattr(constants, "ENDPOINT", endpoint)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")


@contextmanager
def hub_of(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a data set whose files are those of a folder."""
    from huggingface_hub import HfFileSystem

    with hub_at({"datasets/org/name": folder}) as endpoint:
        ask_there(endpoint, patch)
        HfFileSystem.clear_instance_cache()
        try:
            yield "hf://datasets/org/name"
        finally:
            HfFileSystem.clear_instance_cache()
