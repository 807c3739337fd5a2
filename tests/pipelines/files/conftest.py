"""Where files are written: a disk and an object store."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return f"{tmp_path}/run"
    return f"{request.getfixturevalue('s3')}/{tmp_path.name}"
