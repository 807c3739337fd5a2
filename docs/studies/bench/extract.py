"""Extraction speed: the published way, a hand-written loop and the bare encoder beside this pipeline through Ray.

Beside the speed stand the memory that ten times the shards take, and what eight workers are worth when the encoder is
one that lets wait.
"""

from __future__ import annotations

import os
import statistics
import tarfile
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from docs.studies.bench.extraction import EXTRACTION_CASES, VIEWS, ExtractionCase, crews, figures
from docs.studies.bench.pipeline import ROLES, Pipeline, query_config, smooth_shards
from docs.studies.bench.setting import LATENCY_REQUESTS, LATENCY_VIEWS, chosen_of, dated
from pipelines.console import count_of, say
from pipelines.data.read.shard_paths import expand
from pipelines.extract.stream import READERS_PER_ACTOR
from pipelines.run.machine import cpus, descendants

OTHERS = ("memory", "scaling")
IMAGES = 20_000  # of a turn through Ray, at most
TURN_SECONDS, CHUNK_SECONDS = 20.0, 1.25  # that a turn through Ray, and a chunk of a worker, takes about
BATCH_VIEWS = 256  # enough to draw views in good company, few enough for the caches of a core
TRIAL_SECONDS, WAY_SECONDS = 3.0, 6.0  # of a turn of the other ways
LATENCY, LATENCY_CHUNKS = "docs.studies.bench.setting:slow_answer", 8  # chunks per worker
SIDE, SHARD, CHUNK, QUERIES = 256, 240, 24, 2  # pixels, images per shard and per chunk, views


def run(
    cases: Iterable[str] = (), *, data: str | None = None, threads: int | None = None, rounds: int = 3
) -> dict[str, Any]:
    """Measure the cases and return ``{"cases": {name: rates and ratios}, "memory": ..., "scaling": ...}``.

    Args:
        cases: keys of `EXTRACTION_CASES`, ``memory`` or ``scaling``; none: those of 32 pixels and these two.
        data: shards to query with; None: smooth random images, written as shards for the time being.
        threads: cores to use; None: all.
        rounds: turns of every way.

    Raises:
        UserError: no such case.
    """
    usual = [name for name, case in EXTRACTION_CASES.items() if case.image_size <= 32]
    chosen = chosen_of(cases or [*usual, *OTHERS], [*EXTRACTION_CASES, *OTHERS])
    cores = threads or cpus()
    result: dict[str, Any] = {"cases": {}}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in chosen:
            if name == "memory":
                result["memory"] = memory(folder / "memory", cores)
            elif name == "scaling":
                result["scaling"] = scaling(folder / "scaling", rounds)
            else:
                result["cases"][name] = _case(name, data, folder / name, cores, rounds)
    return dated(**result, images=data or "random")


def _case(name: str, data: str | None, folder: Path, cores: int, rounds: int) -> dict[str, Any]:
    """All ways in turn, so that a slow minute of the machine meets them all; Ray runs during its own turns only."""
    case = EXTRACTION_CASES[name]
    shards = _enough(smooth_shards(folder / "data", case.image_size, 8, 2500) if data is None else data)
    with crews(name, shards, threads=cores) as others:
        for crew in others.values():
            crew.turn(TRIAL_SECONDS)
        loop = others["loop"]
        images = min(IMAGES, max(8 * cores, int(loop.rates[0] * TURN_SECONDS))) // len(ROLES) * len(ROLES)
        chunk = max(8, min(1000, int(loop.rates[0] * CHUNK_SECONDS / cores)))
        ours = {}
        for workers in [2**power for power in range(cores.bit_length()) if 2**power <= cores]:
            config = query_config(case, shards, images, chunk, workers, BATCH_VIEWS)
            ours[workers] = Pipeline(config, folder / str(workers))
        for crew in others.values():
            crew.rates.clear()
        for number in range(rounds):
            for crew in others.values():
                crew.turn(WAY_SECONDS)
            for pipeline in ours.values():
                pipeline.turn()
            rates = [f"{way.replace('_', ' ')} {crew.rates[-1]:.1f}" for way, crew in others.items()]
            rates += [f"{count_of(n, 'worker', 'workers')} of Ray {p.steady[-1]:.1f}" for n, p in ours.items()]
            say("bench", f"{name}, round {number + 1} of {rounds}, images/s: {', '.join(rates)}")
        found = figures(others)
    best = max(ours, key=lambda workers: statistics.median(ours[workers].steady))
    rate = statistics.median(ours[best].steady)
    ratios = {f"ray_over_{way}": round(rate / entry["images_per_second"]["median"], 3) for way, entry in found.items()}
    how = {"backbone": case.backbone, "precision": case.precision, "views": VIEWS, "threads": cores, "chunk": chunk}
    ray = {str(workers): pipeline.figures() for workers, pipeline in ours.items()}
    return ratios | found | {"ray": ray, "workers": best, "views_per_second": round(rate * VIEWS, 1)} | how


def _enough(pattern: str) -> list[str]:
    """The first of some shards that hold as many images as a turn may take."""
    found, images = [], 0
    for path in expand(pattern):
        found.append(path)
        with tarfile.open(path) as tar:
            images += sum(name.endswith((".jpg", ".jpeg", ".png")) for name in tar.getnames())
        if images >= IMAGES:
            break
    return found


def scaling(folder: Path, rounds: int) -> dict[str, Any]:
    """Eight workers against one on an encoder that answers up to 64 views after 50 ms."""
    per_chunk = LATENCY_REQUESTS * LATENCY_VIEWS // VIEWS
    shards = expand(smooth_shards(folder / "data", 16, 8, LATENCY_CHUNKS * per_chunk))
    given: dict[str, Any] = {"load": f"python:{LATENCY}", "trust_code": True, "fresh": False, "mean": None, "std": None}
    ours = {}
    for workers in (1, 8):
        images = workers * LATENCY_CHUNKS * per_chunk
        config = query_config(
            ExtractionCase("conv4", 16), shards[:workers], images, per_chunk, workers, LATENCY_VIEWS, **given
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
        "requests_per_chunk": LATENCY_REQUESTS,
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
