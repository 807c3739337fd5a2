"""Fixtures of the tests of statements: runs that are stated."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipelines.report.statement import write
from tests.pipelines.report.made import made_run


@pytest.fixture(scope="session")
def stated_run(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a finished run with its statement."""
    run = tmp_path_factory.mktemp("stated") / "run"
    shutil.copytree(finished_run, run)
    write(str(run))
    return run


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two seeds without Ray, with its statement; look, do not touch."""
    run = made_run(tmp_path_factory.mktemp("made") / "run", leak=True, seeds=[0, 1])
    write(str(run))
    return run


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"
