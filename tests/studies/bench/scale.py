"""Extraction at scale: its memory when there is ten times as much to do, and eight workers that wait."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipelines.console import say
from pipelines.data.read.shard_paths import expand
from pipelines.extract.stream import READERS_PER_ACTOR
from pipelines.run.machine import descendants
from tests.studies.bench import latency
from tests.studies.bench.extraction import VIEWS, ExtractionCase
from tests.studies.bench.pipeline import Pipeline, query_config, smooth_shards

LATENCY, LATENCY_CHUNKS = "tests.studies.bench.latency:answer", 8  # chunks per worker
SIDE, SHARD, CHUNK, QUERIES = 256, 240, 24, 2  # pixels, images per shard and per chunk, views


def scaling(folder: Path, rounds: int) -> dict[str, Any]:
    """Eight workers against one on an encoder that answers up to 64 views after 50 ms."""
    per_chunk = latency.REQUESTS * latency.VIEWS // VIEWS
    shards = expand(smooth_shards(folder / "data", 16, 8, LATENCY_CHUNKS * per_chunk))
    given: dict[str, Any] = {"load": f"python:{LATENCY}", "trust_code": True, "fresh": False, "mean": None, "std": None}
    ours = {}
    for workers in (1, 8):
        images = workers * LATENCY_CHUNKS * per_chunk
        config = query_config(
            ExtractionCase("conv4", 16), shards[:workers], images, per_chunk, workers, latency.VIEWS, **given
        )
        ours[workers] = Pipeline(config, folder / str(workers))
    for _ in range(rounds):
        for pipeline in ours.values():
            pipeline.turn()
    found = {workers: pipeline.figures() for workers, pipeline in ours.items()}
    ratio = found[8]["images_per_second"]["median"] / found[1]["images_per_second"]["median"]
    say("bench", f"scaling: 8 workers are {ratio:.2f} times as fast as one where the encoder lets wait")
    return {
        "latency_bound_8_over_1": round(ratio, 3),
        "workers": {str(workers): entry for workers, entry in found.items()},
        "requests_per_chunk": latency.REQUESTS,
    }


def memory(folder: Path, cores: int) -> dict[str, Any]:
    """Peak memory of all processes at ten times the shards over that at one times."""
    in_flight = (READERS_PER_ACTOR * 3 + 3) * cores * CHUNK
    few = -(-4 * in_flight // SHARD)
    shards = expand(smooth_shards(folder / "data", SIDE, 10 * few, SHARD))
    peaks, counts = [], []
    for times in (1, 10):
        images = times * few * SHARD
        config = query_config(ExtractionCase("conv4", SIDE), shards[: times * few], images, CHUNK, cores, 64, QUERIES)
        with peak_memory() as peak:
            Pipeline(config, folder / str(times)).turn()
        peaks.append(peak[0])
        counts.append(images)
    ratio = peaks[1] / peaks[0]
    say("bench", f"memory: {ratio:.2f} times the peak with {counts[1]:,} images of {SIDE} px as with {counts[0]:,}")
    return {
        "peak_rss_10x_over_1x": round(ratio, 3),
        "peak_pss_mb": [round(peak / 2**20, 1) for peak in peaks],
        "images": counts,
        "in_flight": in_flight,
    }


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """The highest sum of proportional set sizes of this process and its children during the block, in bytes."""
    own, peak, ended = os.getpid(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.25):
            peak[0] = max(peak[0], sum(map(_proportional_set_size, [own, *(child.pid for child in descendants(own))])))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def _proportional_set_size(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
