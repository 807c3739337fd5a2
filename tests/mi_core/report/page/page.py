"""A page of HTML as a reader gets it: its text and its tags, and whether they are nested as they should."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

from rich.console import Console

from mi_core.report.model.report import report_from_json as typed
from mi_core.report.terminal import terminal_table

VOID = {"meta", "img", "input", "link", "br", "hr"}


class Page(HTMLParser):
    """Checks nesting and collects text and tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(re.sub(r'<span class="whole">(.*?)</span>', r"\1", page))
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).replace("\u00a0", " ").split())


def said(report: Mapping[str, Any], width: int = 80, *, whole: bool = True) -> str:
    console = Console(width=width, color_system=None, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(terminal_table(typed(report), whole=whole))
    return capture.get()


def flat(text: str) -> str:
    """The words in one line, without the frame around them."""
    return " ".join(text.replace("│", " ").split())
