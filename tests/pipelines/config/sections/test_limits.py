"""The section resources: what a cluster has to have."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.config.sections.limits import ResourcesConfig
from pipelines.errors import UserError
from tests.raising import refused


def test_too_few_cpus_for_readers_beside_actors() -> None:
    resources = ResourcesConfig(encoder_actors=2, actor_cpus=1.0)
    resources.check({"CPU": 2.25})
    refused(UserError, "= 2.25 CPUs, but Ray has 2: readers would never be scheduled", resources.check, {"CPU": 2})
    refused(UserError, "train_workers x train_cpus = 3 CPUs", ResourcesConfig(train_workers=3).check, {"CPU": 2})
    refused(UserError, "1 GPUs asked for, but Ray has 0", ResourcesConfig(gpus_per_actor=0.5).check, {"CPU": 2})


@pytest.mark.parametrize(("cpus", "decode", "tasks"), [(8.0, "fused", 0), (8.0, "apart", 7), (1.0, "apart", 1)])
def test_tasks_that_decode(cpus: float, decode: Any, tasks: int) -> None:
    assert ResourcesConfig(decode=decode).decoders(1, {"CPU": cpus}) == tasks
