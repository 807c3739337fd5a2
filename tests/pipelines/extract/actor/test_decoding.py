"""Where images are decoded is without effect on what is found."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.config.sections.limits import ResourcesConfig


@pytest.mark.parametrize(("cpus", "decode", "tasks"), [(8.0, "fused", 0), (8.0, "apart", 7), (1.0, "apart", 1)])
def test_tasks_that_decode(cpus: float, decode: Any, tasks: int) -> None:
    assert ResourcesConfig(decode=decode).decoders(1, {"CPU": cpus}) == tasks
