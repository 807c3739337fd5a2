"""The data stage over a run and the points of its sweeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipelines.data import run as data_run
from pipelines.data.draw.splits import are_drawn
from pipelines.files import storage
from pipelines.plan.load import parse
from pipelines.run.folder import RunFolder
from pipelines.run.points import Run
from tests.conftest import small_config


def test_points_of_a_finished_run_use_its_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def one_by_one(
        function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], *, title: str, memory: int = 0
    ) -> list[Any]:
        if function.__name__ == "scan_item" or getattr(function, "func", function).__name__ == "scan_item":
            read.append(len(arguments))
        return [function(*one) for one in arguments]

    monkeypatch.setattr(data_run, "_as_ray_tasks", one_by_one)
    config = parse(small_config(), "x")
    whole, point = (Run(config, RunFolder(f"{tmp_path}/run{part}")) for part in ("", "/sweep/attacks.*.views/2"))
    data_run.draw_roles([whole])
    items = sum(read)
    assert items > 0
    data_run.draw_roles([whole, point])
    assert sum(read) == items
    assert are_drawn(point.folder.seed(0).path)
    assert not storage.exists(f"{point.folder.path}/scan")
    first, second = (storage.list_files(f"{one.folder.seed(0).path}/splits") for one in (whole, point))
    assert [name.rpartition("/")[2] for name in first] == [name.rpartition("/")[2] for name in second]
