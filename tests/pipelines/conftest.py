"""A live server in front of the small run's target, a run that asks it, and places for files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.endpoints import FaultyServer, serving
from tests.pipelines.served import config_of, prepare, trained


@pytest.fixture
def server(trained_run: Path) -> Iterator[FaultyServer]:
    with serving(trained(trained_run)) as running:
        yield running


@pytest.fixture
def folder(trained_run: Path, server: FaultyServer, tmp_path: Path) -> Path:
    return prepare(tmp_path / "run", trained_run, config_of(server))


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where files are written: a disk and an object store."""
    if request.param == "disk":
        return f"{tmp_path}/run"
    return f"{request.getfixturevalue('s3')}/{tmp_path.name}"
