"""A run folder to query."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folder(trained_run: Path, tmp_path: Path) -> Path:
    """A run whose encoders are trained and not yet queried."""
    return Path(shutil.copytree(trained_run, tmp_path / "run"))
