"""Sweeps: points whose names make no folder are refused in one line."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pipelines.mistakes import message


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sweep": {"..": [1]}}, "sweep.'..': makes the folder '..'; allowed are letters"),
        (
            {"sweep": {"x": [{"label": "..", "queries.views": 4}]}},
            "sweep.x, point '..': makes the folder '..'; allowed",
        ),
        ({"sweep": {"x": [{"label": "a" * 200, "queries.views": 4}]}}, "at most 120 bytes; give it a label"),
    ],
)
def test_mistakes_are_one_line(changes: dict[str, Any], expected: str) -> None:
    text = message(changes)
    assert text.startswith("run.yaml: ")
    assert expected in text
