"""A run folder that a node cannot use, and an encoder that does not load, are told before the first query."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipelines.audit import run as audit
from pipelines.errors import UserError
from pipelines.extract import preflight
from pipelines.extract.preflight import Probe
from pipelines.plan.load import parse
from tests.conftest import small_config

pytestmark = pytest.mark.ray


def test_every_node_reads_and_writes_the_folder(local_ray: None, tmp_path: Path) -> None:
    (probe,) = preflight.probe_nodes(str(tmp_path))
    assert (probe.fault, probe.reads, probe.seen) == ("", True, True)
    assert list(tmp_path.iterdir()) == []
    preflight.judge(str(tmp_path), [probe])


@pytest.mark.parametrize(
    ("probe", "message"),
    [
        (Probe("b (2)", "[Errno 30] Read-only", False, False), r"/run: node b \(2\) cannot write there \(\[Errno 30\]"),
        (Probe("b (2)", "", False, False), r"/run: node b \(2\) has a folder of its own"),
        (Probe("b (2)", "", False, True), "has a folder of its own"),
        (Probe("b (2)", "", True, False), "has a folder of its own"),
    ],
)
def test_the_node_that_cannot_is_named(probe: Probe, message: str) -> None:
    with pytest.raises(UserError, match=message):
        preflight.judge("/run", [Probe("a (1)", "", True, True), probe])


def test_an_encoder_that_does_not_load_is_named_before_anything_is_asked(trained_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained_run, folder)
    (weights,) = (folder / "seed-0" / "encoders" / "target").glob("epoch-0003.safetensors")
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(UserError, match=r"encoders.target does not work in an encoder actor: \w+"):
        audit.run(parse(small_config(), "small.yaml"), str(folder), last="extract")
    assert not list((folder / "features").rglob("attempts"))


# A cluster whose second node has another home: "~/run" is a folder of its own there.
CLUSTER = """
import os, sys
from ray.cluster_utils import Cluster
import ray
from pipelines.extract import preflight
from pipelines.errors import UserError
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1, env_vars={"HOME": sys.argv[1]})
ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
try:
    preflight.judge("~/run", preflight.probe_nodes("~/run"))
except UserError as error:
    print(error)
else:
    print("fine")
probes = preflight.probe_nodes(sys.argv[2])
preflight.judge(sys.argv[2], probes)
print(len(probes), "nodes")
ray.shutdown()
cluster.shutdown()
"""
