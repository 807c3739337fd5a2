"""Several nodes (raylets on this host), one of them killed while it works: the results are those of one node."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.config.run_config import RunConfig
from pipelines.encoders.stored import describe
from pipelines.plan.load import parse
from pipelines.run.folder import RunFolder
from tests.conftest import background, small_config, wait_until
from tests.pipelines.extract.test_run import assert_same, chunk_files, config_with, extraction, parquet_contents
from tests.pipelines.pretrain.test_run import train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to tell which node a process belongs to"),
]


@contextmanager
def nodes(head_cpus: int, *cpus: int) -> Iterator[tuple[str, list[int]]]:
    """Address of a cluster, and process ids of the raylets of its nodes, the head's first."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": head_cpus, "include_dashboard": False})
    try:
        made = [cluster.head_node, *(cluster.add_node(num_cpus=count) for count in cpus)]
        cluster.wait_for_nodes()
        yield cluster.address, [node.all_processes["raylet"][0].process.pid for node in made]
    finally:
        cluster.shutdown()


def nodes_with(kind: bytes, raylets: list[int]) -> list[int]:
    """The raylets that have processes of a kind, by what Ray calls these."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if kind in (entry / "cmdline").read_bytes():
                    found.add(int((entry / "stat").read_text().rpartition(")")[2].split()[1]))
    return sorted(found & set(raylets))


def written(config: RunConfig, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", by_alias=True)))
    return path


def finish(arguments: tuple[str, ...], ready: Callable[[], Any], act: Callable[[], None]) -> None:
    """Run a stage, do something to it once a condition holds, and see it end well."""
    with background(*arguments) as process:
        wait_until(ready, process)
        act()
        assert process.wait(timeout=400) == 0, process.stderr.read().decode() if process.stderr else ""


def test_extraction_over_three_nodes_survives_one(trained_run: Path, tmp_path: Path) -> None:
    resources = {"encoder_actors": 3, "actor_cpus": 0.75, "reader_cpus": 0.25}
    config = config_with(queries={"views": 4, "chunk": 2}, resources=resources)
    folders = [tmp_path / "run", tmp_path / "reference"]
    for folder in folders:
        shutil.copytree(trained_run, folder)
        written(config, folder / "config.yaml")
    with nodes(1, 1, 1) as (address, raylets):

        def kill() -> None:
            assert nodes_with(b"EncodeChunks", raylets) == sorted(raylets)  # an encoder actor on every node
            os.kill(raylets[1], signal.SIGKILL)

        arguments = ("pipelines.extract", str(folders[0]), "--address", address)
        finish(arguments, lambda: len(chunk_files(folders[0])) >= 12, kill)
    extraction(folders[1], config_with(queries={"views": 4, "chunk": 2}))  # by one actor
    assert_same(parquet_contents(folders[0]), parquet_contents(folders[1]))


def test_training_over_two_nodes_survives_one(local_ray: None, tmp_path: Path) -> None:
    """Two workers on two of three nodes; one node dies, and a third takes its place: the encoder of one node."""
    encoders = small_config()["encoders"]
    encoders["target"] |= {"epochs": 150, "checkpoints": [], "save_every": 10}
    encoders["shadow"] = {"like": "target", "train_on": "shadow-member", "epochs": 1}
    resources = {"train_workers": 2, "train_cpus": 1, "actor_cpus": 0.5}
    config = parse(small_config(encoders=encoders, resources=resources), "small.yaml")
    place = tmp_path / "run" / "seed-0" / "encoders" / "target"
    path = written(config, tmp_path / "small.yaml")
    with nodes(0, 1, 1, 1) as (address, raylets):

        def kill() -> None:
            working = nodes_with(b"ray::RayTrainWorker", raylets)
            assert len(working) == 2
            assert not (place / "encoder.json").exists()
            os.kill(working[0], signal.SIGKILL)

        arguments = ("pipelines.pretrain", str(path), "--out", str(tmp_path / "run"), "--address", address)
        finish(arguments, lambda: list(place.glob("state/*.pt")), kill)
    spread = describe(RunFolder(str(tmp_path / "run")).seed(0), "target").record
    whole = train(config, tmp_path / "whole")
    assert spread.losses == pytest.approx(whole.losses, abs=1e-6)
    assert spread.fingerprints == whole.fingerprints
