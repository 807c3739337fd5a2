"""What an encoder behind an API is charged: one rate and one ledger for all, budgets, and that a kill loses nothing."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from mi_core.encoders.remote.encoder import png_bytes
from mi_core.encoders.remote.meter import Limits, Spent
from mi_core.encoders.remote.parameters import EndpointParameters
from pipelines.audit import run as audit
from pipelines.encoders.access import Access, Meters, access_to, certain, spent, tell_of_a_kill
from pipelines.encoders.adopt import CHECKED
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.plan.load import parse
from pipelines.run.folder import RunFolder
from tests.conftest import background, wait_until
from tests.endpoints import FaultyServer, slow
from tests.pipelines.columns import feature_files
from tests.pipelines.served import ASKED, PROBE, charged, config_of, features, prepare, raw_config

pytestmark = pytest.mark.ray


def test_a_budget_holds_the_probe(server: FaultyServer, folder: Path) -> None:
    short = config_of(server, budget={"queries": PROBE - 1})
    with pytest.raises(UserError, match=f"budget.queries = {PROBE - 1} is too small: checking .* {PROBE} qu"):
        audit.run(short, str(folder), last="extract")
    assert server.asked == 0
    config = config_of(server, budget={"queries": PROBE + ASKED - 1})
    with pytest.raises(UserError, match=f"the attacks need {PROBE + ASKED} queries of target"):
        audit.run(config, str(folder), last="extract")
    assert server.asked == PROBE


def test_one_address_has_one_limit(server: FaultyServer, folder: Path) -> None:
    config = raw_config(server, {"requests_per_second": 5})
    other = {**config["encoders"]["target"]["endpoint"], "requests_per_second": 6}
    config["encoders"]["other"] = {**config["encoders"]["target"], "endpoint": other}
    with (
        pytest.raises(UserError, match="encoders.target and encoders.other ask http.*/json within different limits"),
        access_to([(parse(config, "served.yaml"), RunFolder(str(folder)))]),
    ):
        pass


def test_meters_go_on_from_the_ledger(tmp_path: Path) -> None:
    limits = {"http://a/x": Limits(price_per_image=1, max_spend=100), "http://b/x": Limits()}
    meters = Meters(str(tmp_path), limits)
    permits = [meters.reserve("http://a/x", 10) for _ in range(3)]
    assert [permit[:2] for permit in permits] == [(0, "")] * 3
    meters.reserve("http://b/x", 7)
    crashed = Meters(str(tmp_path), limits)  # nothing was settled
    assert crashed.meters["http://a/x"].spent == Spent(3, 30, 30.0)
    meters.close("http://a/x", permits[0].ticket, sent=False)
    crashed.close("http://a/x", permits[0].ticket, sent=False)  # of another meter: it is not charged back there
    assert crashed.meters["http://a/x"].spent == Spent(3, 30, 30.0)
    meters.settle()
    settled = Meters(str(tmp_path), limits)
    assert settled.meters["http://a/x"].spent == Spent(2, 20, 20.0)
    assert settled.meters["http://b/x"].spent == Spent(1, 7, 0.0)
    while not (permit := settled.reserve("http://a/x", 10)).refusal:
        pass
    assert settled.meters["http://a/x"].spent == Spent(10, 100, 100.0)
    assert "max_spend = 100, of which 100 is spent" in permit.refusal
    (tmp_path / "spend").chmod(0o500)
    full = Meters(str(tmp_path / "file"), limits)
    (tmp_path / "file").write_text("")
    assert "ledger of what is spent cannot be written" in full.reserve("http://a/x", 1).refusal
    (tmp_path / "spend").chmod(0o700)
    assert (settled.stop(), settled.stop()) == (8, 0)
    assert "the run is stopping" in settled.reserve("http://b/x", 1).refusal


def test_meters_work_on_object_stores(s3: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where saving is slow it is done in blocks; the next start says what of them may not have been sent."""
    folder = f"{s3}/metered"
    meters = Meters(folder, {"http://a/x": Limits(price_per_request=2)})
    ticket = meters.reserve("http://a/x", 10).ticket
    assert spent(folder, "http://a/x") == Spent(32, 320, 64.0)
    assert certain(folder, "http://a/x") == Spent()
    tell_of_a_kill(folder, "http://a/x")
    told = " ".join(capsys.readouterr().err.split())
    assert "earlier start was killed; at most 32 requests with 320 images count as spent (64 in money)" in told
    meters.close("http://a/x", ticket, sent=True)
    meters.settle()
    assert spent(folder, "http://a/x") == certain(folder, "http://a/x") == Spent(1, 10, 2.0)
    tell_of_a_kill(folder, "http://a/x")
    assert capsys.readouterr().err == ""
    parameters = EndpointParameters("http://a/x")
    assert Access(folder, None).client("target", parameters, identity="x").cache is None


_KILLED = """
import os, signal, sys
from mi_core.encoders.remote.meter import Limits
from pipelines.encoders.access import Meters
meters = Meters(sys.argv[1], {"http://a/x": Limits(price_per_image=1, max_spend=1000)})
for _ in range(4):
    meters.close("http://a/x", meters.reserve("http://a/x", 10).ticket, True)
meters.reserve("http://a/x", 10)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_wastes_nothing_of_the_cap_on_a_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert spent(str(tmp_path), "http://a/x") == Spent(5, 50, 50.0)
    tell_of_a_kill(str(tmp_path), "http://a/x")
    assert "at most 1 request with 10 images counts as spent (10 in money)" in " ".join(capsys.readouterr().err.split())


def ask(server_url: str, access: Access, seed: int) -> None:
    parameters = EndpointParameters(f"{server_url}/json", batch=1, concurrency=2)
    images = torch.rand(10, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    access.client("target", parameters).embed(png_bytes(images))


def ask_and_keep(server_url: str, access: Access) -> None:
    parameters = EndpointParameters(f"{server_url}/json", outputs=("backbone",), batch=1, concurrency=2)
    images = torch.rand(10, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    access.client("target", parameters, identity="kept").embed(png_bytes(images))


def test_a_run_that_stops_waits_for_the_answers_that_it_pays_for(
    server: FaultyServer, local_ray: None, tmp_path: Path
) -> None:
    """Nothing is sent any more, and what is in flight is kept before anything ends."""
    import ray

    server.always = slow(1.0)
    config = config_of(server, {"price_per_image": 1})
    with pytest.raises(UserError, match="something else"), access_to([(config, RunFolder(str(tmp_path)))]) as shared:
        assert shared is not None
        work = ray.remote(num_cpus=0.5)(ask_and_keep).remote(server.url, shared)
        while server.asked < 2:
            time.sleep(0.01)
        raise UserError("something else")
    assert (server.in_flight, server.asked) == (0, 2)
    (kept,) = (tmp_path / "answers").glob("*.sqlite")
    with closing(sqlite3.connect(kept)) as database:
        assert database.execute("SELECT count(*) FROM answers").fetchone() == (2,)
    assert charged(tmp_path, server) == certain(str(tmp_path), f"{server.url}/json") == Spent(2, 2, 2.0)
    with pytest.raises(ray.exceptions.RayTaskError, match="the run is stopping; run the same command again"):
        ray.get(work)


def encoder_actors() -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if b"(EncodeChunks)" in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


KILLS: dict[str, Callable[[Any], set[int]]] = {
    "worker": lambda process: encoder_actors(),
    "driver": lambda process: {process.pid},
}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to find processes")
@pytest.mark.parametrize("victim", sorted(KILLS))
def test_a_kill_loses_no_sample_and_no_charge(
    server: FaultyServer, folder: Path, trained_run: Path, tmp_path: Path, victim: str
) -> None:
    chunks = {"views": 4, "chunk": 8}
    config = config_of(server, {"batch": 4, "price_per_image": 1}, queries=chunks)
    (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json", by_alias=True)))
    reference = prepare(tmp_path / "reference", trained_run, config)
    audit.run(config, str(reference), last="extract")
    undisturbed = server.asked
    assert undisturbed == charged(reference, server).images
    server.images.clear()
    server.always = slow(0.05)
    before = encoder_actors()
    with background("pipelines.extract", str(folder)) as process:
        wait_until(lambda: len(feature_files(folder, "target")) >= 3, process)
        for pid in KILLS[victim](process) - before:
            os.kill(pid, signal.SIGKILL)
        if victim == "worker":
            assert process.wait(timeout=300) == 0
    server.always = None
    if victim == "driver":
        settled = -1
        while settled != server.asked:  # workers of a dead driver may finish the chunk they are at
            settled = server.asked
            time.sleep(3)
        assert settled < undisturbed
    audit.run(config, str(folder), last="extract")
    checks = CHECKED if victim == "driver" else 0
    again = server.asked - undisturbed - checks  # what was in flight and not yet kept
    assert 0 <= again <= 4 * 4 * (1 + len(encoder_actors()))
    assert server.asked <= charged(folder, server).images <= server.asked + 4 * 4 * 2  # in flight at the kill
    for output in ("backbone", "projection"):
        one, two = features(config, folder, output, 0), features(config, reference, output, 0)
        for need, values in one.items():
            np.testing.assert_allclose(values, two[need], rtol=1e-5, atol=1e-6)
    rows = [sum(pq.read_table(path).num_rows for path in feature_files(run, "target")) for run in (folder, reference)]
    assert rows[0] == rows[1] > 0
    assert storage.list_files(f"{folder}/spend")
