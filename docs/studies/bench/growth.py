"""Whole runs on more and more images: what every stage costs a sample, and what the process that leads a run holds.

Images are tiny, encoders small and never trained: what is measured is all the rest. Every run has as many shards, so
that what grows with the samples is told from what grows with the shards. Beside the time of each stage stand the CPU
time and memory of the driver, those of the largest other process, and the requests that an object store sees.
"""

from __future__ import annotations

import io
import json
import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from docs.studies.bench.setting import dated
from pipelines.console import count_of, say
from pipelines.errors import UserError
from pipelines.run.folder import PROGRESS
from pipelines.run.machine import Process, cpus, descendants
from tests.conftest import S3_REQUESTS, one_at_a_time

SIZES = (100_000, 1_000_000)
SHARDS = 50  # of the candidates, and of the controls
ENCODERS = ("target", "control")
STAGES = ("data", "pretrain", "extract", "attack", "report")
_SIDE, _VIEWS = 8, 2
_EVERY = 0.2  # seconds between two looks at the processes
_STORED, _STORED_CHUNK = 2000, 50  # images of the run on an object store, and of one chunk


def run(sizes: Sequence[int] = SIZES, *, keep: str | None = None) -> dict[str, Any]:
    """Measure a run of every size.

    Args:
        sizes: numbers of images, half candidates and half controls.
        keep: a folder for data and runs, which stay; a run that stands there goes on. None: a temporary one.

    Raises:
        UserError: a run failed.
    """
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(keep or temporary)
        found = {size: _measured(place / str(size), size) for size in sizes}
        requests = _requests(place / "stored")
    small, large = found[min(sizes)], found[max(sizes)]
    driver = {
        "peak_mb": large["driver_peak_mb"],
        "peak_10x_over_1x": round(large["driver_peak_mb"] / small["driver_peak_mb"], 3),
        "us_per_sample": _driver_us(large),
    }
    if max(sizes) > min(sizes):
        more = max(sizes) * _driver_us(large) - min(sizes) * _driver_us(small)
        driver["us_per_further_sample"] = round(more / (max(sizes) - min(sizes)), 2)
    result: dict[str, Any] = {
        "driver": driver,
        "extract": large["extract"],
        "sizes": {str(size): entry for size, entry in found.items()},
        "shards": 2 * SHARDS,
    }
    return dated(**result, **({"object_store": requests} if requests else {}))


def _driver_us(entry: dict[str, Any]) -> float:
    """CPU microseconds of the driver for each image, its start included."""
    return round(sum(float(stage["driver_us"]) for stage in entry["stages"].values()), 2)


def _measured(folder: Path, images: int) -> dict[str, Any]:
    """A run in a process of its own, which is watched."""
    config, out = folder / "config.yaml", folder / "run"
    if not config.exists():
        started = time.perf_counter()
        _write_data(folder / "data", images, SHARDS)
        config.write_text(yaml.safe_dump(_config(folder / "data")))
        say("bench", f"{count_of(images, 'image', 'images')} written, {time.perf_counter() - started:.0f} s")
    seen = _run(config, str(out), Watch(out / PROGRESS))
    manifest = json.loads((out / "manifest.json").read_text())
    disk = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    stages = {stage: seen.stage_costs(stage, images, manifest["seconds"].get(stage, 0.0)) for stage in STAGES}
    entry = {
        "driver_peak_mb": max(stage["driver_peak_mb"] for stage in stages.values()),
        "stages": stages,
        "disk_bytes": round(disk / images, 1),
        "extract": _builds_and_decodes(manifest, images),
    }
    say("bench", f"{count_of(images, 'image', 'images')}: the driver holds {entry['driver_peak_mb']:.0f} MB at most")
    return entry


def _builds_and_decodes(manifest: dict[str, Any], images: int) -> dict[str, float]:
    """How often encoders were built and images decoded."""
    taken = manifest["extraction"]
    builds, decodes = (sum(one[name] for one in taken) for name in ("builds", "decodes"))
    return {
        "builds_per_encoder": round(builds / len(ENCODERS) / cpus() / len(taken), 3),
        "decodes_per_image": round(decodes / images, 3),
    }


@dataclass
class _Stage:
    """The costs of a stage: CPU seconds of the driver and of all processes, most bytes of driver and others."""

    driver: float = 0.0
    driver_peak: int = 0
    every: float = 0.0
    largest: int = 0
    title: str = ""


@dataclass
class Watch:
    """Looks at the processes of a run until it ends.

    Args:
        progress: the file in which the run says at which stage it is.
    """

    progress: Path
    stages: dict[str, _Stage] = field(default_factory=dict)
    _seen: dict[Process, float] = field(default_factory=dict)

    def look(self, pid: int) -> None:
        """Look once."""
        stage = self.stages.setdefault(self._stage(), _Stage())
        for process in [Process(pid, 0), *descendants(pid)]:
            spent = _cpu_seconds(process.pid)
            more = spent - self._seen.get(process, 0.0)
            self._seen[process] = spent
            stage.every += more
            size = _own_bytes(process.pid)
            if process.pid == pid:
                stage.driver += more
                stage.driver_peak = max(stage.driver_peak, size)
            elif size > stage.largest:
                stage.largest, stage.title = size, process.command()[:40].strip()

    def stage_costs(self, stage: str, images: int, wall: float) -> dict[str, Any]:
        """The costs of a stage, for each image where they are of time."""
        seen = self.stages.get(stage, _Stage())
        return {
            "wall_seconds": round(wall, 1),
            "cpu_us": round(seen.every / images * 1e6, 2),
            "driver_us": round(seen.driver / images * 1e6, 2),
            "driver_peak_mb": round(seen.driver_peak / 2**20, 1),
            "largest_process_mb": round(seen.largest / 2**20, 1),
            "largest_process": seen.title,
        }

    def _stage(self) -> str:
        with suppress(OSError, ValueError):
            return str(json.loads(self.progress.read_text())["stage"])
        return "start"


def _run(config: Path, out: str, seen: Watch, **environment: str) -> Watch:
    """Run an audit to its end and watch it.

    Raises:
        UserError: it failed.
    """
    command = [sys.executable, "-m", "pipelines.cli", "audit", str(config), "--out", out, "--yes"]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stderr=said, stdout=said, env={**os.environ, **environment})
        while process.poll() is None:
            seen.look(process.pid)
            time.sleep(_EVERY)
        if process.returncode:
            said.seek(0)
            raise UserError(f"the run of {config} failed: {said.read().decode(errors='replace')[-500:]}")
    return seen


def _own_bytes(pid: int) -> int:
    """Memory that a process shares with no other: neither the object store nor the code of libraries."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return 1024 * int(line.split()[1])
    return 0


def _cpu_seconds(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _requests(folder: Path) -> dict[str, float] | None:
    """Requests that an object store sees for every chunk, until all are written and when attacks read them.

    None without the packages of a local object store.
    """
    if find_spec("moto") is None or find_spec("boto3") is None:
        say("bench", "no requests are counted: the packages moto and boto3 are not installed")
        return None
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.yaml"
    _write_data(folder / "data", _STORED, 2)
    config.write_text(yaml.safe_dump(_config(folder / "data", chunk=_STORED_CHUNK)))
    with _object_store() as (environment, requests):
        _run(config, "s3://bucket/run", Watch(folder / "none"), **environment)
        chunks = len(ENCODERS) * _STORED // _STORED_CHUNK
    of_chunks = [one for one in requests if "/features/" in one and ("/attempts/" in one or "/epoch-" in one)]
    asked = max(at for at, one in enumerate(of_chunks) if one.startswith("PUT ")) + 1
    result = {
        "requests_per_chunk": round(asked / chunks, 2),
        "read_requests_per_chunk": round((len(of_chunks) - asked) / chunks, 2),
        "other_requests": len(requests) - len(of_chunks),
        "chunks": chunks,
    }
    say("bench", f"object store: {result['requests_per_chunk']:.2f} requests a chunk")
    return result


@contextmanager
def _object_store() -> Iterator[tuple[dict[str, str], list[str]]]:
    """A local S3 server with a bucket: the settings of its clients, and the requests that it sees."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    S3_REQUESTS.clear()
    try:
        serving: Any = server._server
        serving.app = one_at_a_time(serving.app)
        endpoint = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
        settings = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "local",
            "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        keys = {name.lower(): settings[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys).create_bucket(Bucket="bucket")
        yield settings, S3_REQUESTS
    finally:
        server.stop()


def _config(data: Path, **queries: Any) -> dict[str, Any]:
    """An audit of one tiny encoder with another as its control."""
    return {
        "name": "scale",
        "data": {
            "sources": {name: {"kind": "shards", "path": f"{data}/{name}"} for name in ("mine", "rest")},
            "image_size": _SIDE,
            "roles": {
                "candidate": {"from": "mine"},
                "control": {"from": "rest"},
                "known-nonmember": {"from": "control", "fraction": 0.1},
            },
        },
        "encoders": {name: {"load": "checkpoint:conv4", "fresh": True, "objective": "simclr"} for name in ENCODERS},
        "queries": {"views": _VIEWS, "outputs": ["backbone"], **queries},
        "attacks": [{"attack": "mean-cosine", "target": "target", "reference": "nonmembers"}],
        "validity": {"references": ["control"]},
        "resources": {"encoder_actors": cpus(), "actor_cpus": 0.75, "reader_cpus": 0.25},
    }


def _write_data(folder: Path, images: int, shards: int) -> None:
    """Shards of distinct images: so many of the candidates, and of the controls."""
    sources = list(enumerate(("mine", "rest")))
    for _, name in sources:
        (folder / name).mkdir(parents=True, exist_ok=True)
    work = [(number, f"{folder}/{name}", shard) for number, name in sources for shard in range(shards)]
    with ProcessPoolExecutor(cpus(), multiprocessing.get_context("spawn")) as pool:
        list(pool.map(partial(_write_shard, images // len(work)), work))


def _write_shard(images: int, work: tuple[int, str, int]) -> None:
    import webdataset

    number, folder, shard = work
    pixels = np.random.default_rng([number, shard]).integers(0, 256, (images, _SIDE, _SIDE, 3), dtype=np.uint8)
    with webdataset.TarWriter(f"{folder}/{shard:06d}.tar", encoder=False) as writer:
        for row, image in enumerate(pixels):
            buffer = io.BytesIO()
            Image.fromarray(image).save(buffer, "PNG", compress_level=0)
            writer.write({"__key__": f"{shard:06d}{row:07d}", "png": buffer.getvalue()})
