"""What tests of statements share: the check of a run, and ways to damage one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mi_core.registration import file_of, line_digest
from pipelines.cli import app as cli
from pipelines.report.statement import FAILS, Check, verify

A = "a" * 64


def faults(checks: list[Check]) -> list[str]:
    return [f"{check.about}: {check.text}" for check in checks if check.outcome == FAILS]


def called(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["encoder-audit", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def checked(run: Path) -> list[Check]:
    return verify(f"{run}/statement.json", str(run))


@contextmanager
def flipped(path: Path, offset: int, bit: int) -> Iterator[None]:
    before = path.read_bytes()
    after = bytearray(before)
    after[offset] ^= 1 << bit
    path.write_bytes(after)
    try:
        yield
    finally:
        path.write_bytes(before)


def edited(path: Path, place: str, change: Callable[[Any], Any]) -> None:
    """Change a value in a JSON file."""
    content = json.loads(path.read_text())
    *above, last = place.split(".")
    inner = content
    for name in above:
        inner = inner[int(name) if isinstance(inner, list) else name]
    key = int(last) if isinstance(inner, list) else last
    inner[key] = change(inner[key])
    path.write_text(json.dumps(content))


def reregistered(run: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Write the registration anew with other content, as somebody could who writes the whole chain anew."""
    lines: list[dict[str, Any]] = []
    for line in map(json.loads, (run / "registration.jsonl").read_text().splitlines()):
        changed = line | change(line) | {"previous": lines[-1]["sha256"] if lines else "0" * 64}
        lines.append(changed | {"sha256": line_digest(changed)})
    (run / "registration.jsonl").write_bytes(file_of(lines))
