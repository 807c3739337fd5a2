"""Fixtures shared by all tests: one local Ray per test run, and the CIFAR-10 shards or a stand-in."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One local Ray for all tests that need it: small object store, four logical CPUs, always shut down."""
    from pipelines.ray_runtime import QUIET

    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    ray.init(
        address="local",
        num_cpus=4,
        object_store_memory=200 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()
