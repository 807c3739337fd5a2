"""Extraction: the same features for any number of workers and batch, after a kill, and with what is wrong told."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from mi_core.augmentations import AUGMENTATIONS
from mi_core.extraction import Extractor, QueryPlan
from mi_core.streams import stream_keys
from pipelines import audit, storage
from pipelines.artifacts import RunFolder
from pipelines.config import RunConfig, parse
from pipelines.errors import UserError
from pipelines.layers import load_features
from pipelines.methods import build
from pipelines.pretrain import describe
from pipelines.splits import Splits, load_images
from tests.conftest import small_config

ROLES = ("target-member", "target-nonmember")


def config_with(**sections: Any) -> RunConfig:
    return parse(small_config(**sections), "small.yaml")


@pytest.fixture
def folder(trained_run: Path, tmp_path: Path) -> Path:
    """A run whose encoders are trained and not yet queried."""
    shutil.copytree(trained_run, tmp_path / "run")
    return tmp_path / "run"


def features(config: RunConfig, folder: Path, output: str = "projection", epoch: int = 3) -> dict[str, np.ndarray]:
    place = RunFolder(str(folder)).seed(0)
    found = load_features(config, place, "target", epoch, output, ["pairwise:cosine", "norm:2"], ROLES)
    return {"ids": found.ids, **found.values}


def extraction(folder: Path, config: RunConfig) -> list[dict[str, Any]]:
    audit.run(config, str(folder), last="extract")
    entries: list[dict[str, Any]] = RunFolder(str(folder)).manifest["extraction"]
    return entries


def parquet_contents(folder: Path) -> dict[str, dict[str, list[Any]]]:
    """Every feature file with its rows by key."""
    contents = {}
    for path in sorted((folder / "seed-0" / "features").rglob("*.parquet")):
        rows = sorted(pq.read_table(path).to_pylist(), key=lambda row: row["key"])
        contents[str(path.relative_to(folder))] = {name: [row[name] for row in rows] for name in rows[0]}
    return contents


def assert_same(one: dict[str, dict[str, list[Any]]], two: dict[str, dict[str, list[Any]]]) -> None:
    assert list(one) == list(two)
    for name, columns in one.items():
        for column, values in columns.items():
            if column in ("key", "status"):
                assert values == two[name][column]
            else:
                np.testing.assert_allclose(values, two[name][column], atol=1e-5, err_msg=f"{name} {column}")


def test_features_equal_those_of_one_call_without_ray(finished_run: Path) -> None:
    """The whole road over shards, chunks and actors against the plain function on all images at once."""
    config = config_with()
    place = RunFolder(str(finished_run)).seed(0)
    splits = Splits.load(place.path)
    ids, images, _ = load_images(config.data, splits, ROLES)
    trained = describe(place, "target")
    import torch

    plain = Extractor(
        {"3": trained.load(3, 1)},
        QueryPlan(("norm:2", "pairwise:cosine"), ("backbone", "projection"), views=4, batch_views=10_000),
        build(AUGMENTATIONS["simclr"], trained.description["config"]["augmentation"]),
        torch.device("cpu"),
    )
    keys = [name.partition("/")[2] for name in ids]
    expected = plain(torch.from_numpy(images), stream_keys(0, "query", "digits", keys), ids)["3"]
    for output in ("projection", "backbone"):
        found = features(config, finished_run, output)
        assert found["ids"].tolist() == ids
        for need in ("pairwise:cosine", "norm:2"):
            np.testing.assert_allclose(found[need], expected[f"{output}.{need}"], atol=1e-5)
        assert found["pairwise:cosine"].shape == (120, 6)


@pytest.mark.parametrize(
    ("queries", "resources"),
    [
        ({"batch_views": 7}, {"encoder_actors": 1, "actor_cpus": 0.5}),
        ({"batch_views": 64, "chunk": 7}, {"encoder_actors": 4, "actor_cpus": 0.5}),
    ],
)
def test_batches_chunks_and_workers_do_not_matter(
    queries: dict[str, Any], resources: dict[str, Any], finished_run: Path, folder: Path
) -> None:
    config = config_with(queries={"views": 4, **queries}, resources=resources)
    extraction(folder, config)
    for output in ("projection", "backbone"):
        one, two = features(config_with(), finished_run, output), features(config, folder, output)
        assert one["ids"].tolist() == two["ids"].tolist()
        for need in ("pairwise:cosine", "norm:2"):
            np.testing.assert_allclose(one[need], two[need], atol=1e-5)


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """The command in a process group of its own, on a Ray of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.Popen(
        [sys.executable, "-m", "pipelines.extract", str(folder), *arguments],
        start_new_session=True,
        env=environment,
        stderr=subprocess.PIPE,
    )


def wait_until(condition: Any, process: subprocess.Popen[bytes], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
        assert time.monotonic() < end
        time.sleep(0.01)


def chunk_files(folder: Path) -> list[Path]:
    return [path for path in (folder / "seed-0" / "features").rglob("*.parquet") if path.stem.count("-") == 2]


def processes_of(folder: Path) -> list[int]:
    """Worker processes of a Ray whose jobs were started for a run folder (found by the parent's group)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"_EncodeChunks" in text:
                found.append(int(entry.name))
    return found


def session_of(pid: int) -> int:
    return os.getsid(pid)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to find processes")
def test_a_killed_extraction_continues_and_ends_the_same(finished_run: Path, folder: Path) -> None:
    config = config_with(queries={"views": 4, "chunk": 4})
    (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json", by_alias=True)))
    reference = folder.parent / "reference"
    shutil.copytree(folder, reference)
    whole = extraction(reference, config)[0]
    process = start(folder)
    wait_until(lambda: len(chunk_files(folder)) >= 6, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    settled = -1
    while settled != len(chunk_files(folder)):  # workers of a dead driver may finish the chunk they are at
        settled = len(chunk_files(folder))
        time.sleep(3)
    committed = sum(pq.read_table(path).num_rows for path in chunk_files(folder) if "epoch-0001" in str(path))
    partly = len(chunk_files(folder)) - 2 * sum("epoch-0003" in str(path) for path in chunk_files(folder))
    assert 0 < committed < whole["images"]
    resumed = extraction(folder, config)[-1]
    # every committed chunk is skipped; one that had only its first checkpoint written is done again
    assert resumed["images"] == whole["images"] - committed + 4 * partly
    assert_same(parquet_contents(folder), parquet_contents(reference))
    assert not chunk_files(folder)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to find processes")
def test_a_killed_actor_is_replaced_and_nothing_lost(folder: Path) -> None:
    config = config_with(queries={"views": 4, "chunk": 4})
    (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json", by_alias=True)))
    reference = folder.parent / "reference"
    shutil.copytree(folder, reference)
    before = set(processes_of(folder))
    process = start(folder)
    wait_until(lambda: len(chunk_files(folder)) >= 6, process)
    victims = set(processes_of(folder)) - before
    assert victims
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    process.wait(timeout=180)
    assert process.returncode == 0
    extraction(reference, config)
    assert_same(parquet_contents(folder), parquet_contents(reference))


def spoil(folder: Path, epoch: int = 3) -> None:
    """Make the target return NaN."""
    path = folder / "seed-0" / "encoders" / "target" / f"epoch-{epoch:04d}.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if name.endswith("weight"))
    weights[name] = np.full_like(weights[name], np.nan)
    save_file(weights, path)


def test_an_encoder_that_returns_nan_stops_the_run_naming_a_sample(folder: Path) -> None:
    spoil(folder)
    with pytest.raises(UserError, match=r"encoder 3, projection: embedding is NaN .* first digits/\d{4}"):
        extraction(folder, config_with())


def test_a_chunk_that_keeps_killing_its_worker_is_given_up_and_listed(folder: Path) -> None:
    """Markers of three attempts stand there, as after three deaths."""
    config = config_with(queries={"views": 4, "chunk": 1024})
    from pipelines.layers import shard_jobs

    place = RunFolder(str(folder)).seed(0)
    job = next(job for demand in config.demands() for job in shard_jobs(demand, config, place, plan=True))
    for number in (1, 2, 3):
        storage.write_atomic(job.attempt(0, number), b"")
    with pytest.raises(UserError, match=rf"{len(job.wanted)} of \d+ samples could not be queried"):
        extraction(folder, config)
    entry = RunFolder(str(folder)).manifest["extraction"][-1]
    assert entry["rejected"] == len(entry["rejected_samples"]) == len(job.wanted)
    assert entry["rejected_samples"][0]["reason"].startswith("crashed")


def test_a_shard_that_shrank_is_told(tmp_path: Path, local_ray: None) -> None:
    from tests.pipelines.tars import shard_bytes

    (tmp_path / "pool.tar").write_bytes(shard_bytes(range(80)))
    data = small_config()["data"]
    data["sources"] = {"digits": {"kind": "shards", "path": str(tmp_path / "pool.tar")}}
    for role in data["roles"].values():
        role["count"] = 15 if role["from"] == "digits" else 4
    encoders = small_config()["encoders"]
    encoders["target"] |= {"epochs": 1, "checkpoints": [], "batch_size": 15}
    config = config_with(data={**data, "channels": 3}, encoders=encoders)
    audit.run(config, str(tmp_path / "run"), last="pretrain")
    (tmp_path / "pool.tar").write_bytes(shard_bytes(range(30)))
    with pytest.raises(UserError, match=r"digits, shard pool: \d+ of \d+ samples found; it changed"):
        audit.run(config, str(tmp_path / "run"), last="extract")
