"""A live server in front of the small run's target, and a run that asks it."""

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
