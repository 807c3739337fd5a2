"""The page of `index` served to this machine alone: runs with their state, their reports, and two of them compared.

It answers only GET, only from the loopback address, and only for pages that the listing names: a request is looked up
among them and never becomes a path. A request under another host's name or from another origin is refused, so no page
of the web can read it (DNS rebinding).
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from rich.console import Console

from mi_core.report.page.index import Unread, render_index
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.report import compare
from pipelines.report.index import PAGE_OF_RUN, REPORT, seen_below

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"


@dataclass(frozen=True)
class Shown:
    """What is served of a folder: its page, and the folders of runs by the names that the page has for them."""

    page: str
    runs: Mapping[str, Path]

    @classmethod
    def from_folder(cls, folder: str) -> Shown:
        """As the folder is now. Raises UserError: as `pipelines.report.index.write`."""
        root = Path(storage.target(folder))
        found, unread = seen_below(folder, f"{root}/index.html")
        inside = {one.folder: root / one.folder for one in found if _is_within(root / one.folder, root)}
        entries = [
            replace(one, link=f"/{quote(one.folder)}/{PAGE_OF_RUN}" if one.link else "")
            for one in found
            if one.folder in inside
        ]
        why = "a file of it is missing or leads out of the folder"
        outside = [Unread(one.folder, why) for one in found if one.folder not in inside]
        page = render_index(entries, [*unread, *outside], folder, datetime.now(UTC), served=True)
        return cls(page, {one.folder: inside[one.folder] for one in entries if one.link})


def _is_within(place: Path, root: Path) -> bool:
    """Tell whether the report of a run lies within the folder, whatever links lead to it."""
    files = [place / name for name in (REPORT, PAGE_OF_RUN)]
    return all(one.is_file() and one.resolve().is_relative_to(root.resolve()) for one in files)


def serve(folder: str, *, port: int = 0) -> ThreadingHTTPServer:
    """A server that is ready: call ``serve_forever``.

    Args:
        folder: with runs in it, on this disk.
        port: 0: one that is free.

    Raises:
        UserError: the folder is not there, or on an object store.
    """
    if storage.is_uri(folder):
        raise UserError(f"--serve shows a folder of this disk, not {folder}; without it a page is written there")
    Shown.from_folder(folder)

    class Handler(BaseHTTPRequestHandler):
        """Answers one request."""

        error_message_format = "%(code)d: %(message)s\n"
        error_content_type = "text/plain; charset=utf-8"

        def do_GET(self) -> None:
            """The listing, a report, or a comparison."""
            here = f"127.0.0.1:{self.server.server_port}"  # type: ignore[attr-defined]
            origin = self.headers.get("Origin")
            if self.headers.get("Host") not in (here, here.replace("127.0.0.1", "localhost")):
                return self.send_error(HTTPStatus.FORBIDDEN, "another host")
            if origin is not None and origin != f"http://{self.headers['Host']}":
                return self.send_error(HTTPStatus.FORBIDDEN, "another origin")
            asked = urlsplit(self.path)
            shown = Shown.from_folder(folder)
            reports = {f"/{quote(name)}/{PAGE_OF_RUN}": place / PAGE_OF_RUN for name, place in shown.runs.items()}
            if asked.path == "/":
                return self.answer(shown.page)
            if asked.path == "/compare":
                return self.compare(parse_qs(asked.query).get("run", []), shown)
            if asked.path in reports:
                return self.answer(reports[asked.path].read_text("utf-8"))
            return self.send_error(HTTPStatus.NOT_FOUND, "no such page")

        def compare(self, names: list[str], shown: Shown) -> None:
            """Two runs side by side, as the command prints them."""
            if len(names) != 2 or not all(name in shown.runs for name in names):
                return self.send_error(HTTPStatus.BAD_REQUEST, "tick two runs that have a report")
            try:
                found = compare.compare(*(str(shown.runs[name]) for name in names))
            except UserError:
                return self.send_error(HTTPStatus.BAD_REQUEST, "tick two different runs")
            console = Console(record=True, width=120, file=io.StringIO())
            console.print(compare.table(found))
            return self.answer(console.export_html(inline_styles=True))

        def answer(self, page: str) -> None:
            """Send a page."""
            content = page.encode("utf-8", "backslashreplace")
            self.send_response(HTTPStatus.OK)
            for name, value in {
                "Content-Type": "text/html; charset=utf-8",
                "Content-Length": str(len(content)),
                "Content-Security-Policy": _POLICY,
                "X-Content-Type-Options": "nosniff",
                "Cache-Control": "no-store",
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            """Requests are not printed."""

    class Server(ThreadingHTTPServer):
        """Is silent about who went away."""

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Tell of a fault of ours alone."""
            if not isinstance(sys.exc_info()[1], ConnectionError):
                super().handle_error(request, client_address)

    return Server(("127.0.0.1", port), Handler)
