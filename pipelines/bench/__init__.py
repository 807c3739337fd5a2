"""Benchmarks: one module per command, each with `run` and `table`."""

from __future__ import annotations

import json
from typing import Any

from pipelines import storage


def save(result: dict[str, Any], path: str) -> None:
    """Write the result of a benchmark as JSON."""
    storage.write_atomic(path, (json.dumps(result, indent=2) + "\n").encode())
