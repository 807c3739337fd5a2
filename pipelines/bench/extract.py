"""Extraction speed: the published way, a hand-written loop and the bare encoder beside this pipeline through Ray.

Beside the speed stand the memory that ten times the shards take, and what eight workers are worth when the encoder is
one that lets wait.
"""

from __future__ import annotations

import io
import os
import statistics
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich import box
from rich.table import Table

from mi_core.extraction_benchmark import (
    EXTRACTION_CASES,
    MEAN,
    RECIPE,
    STD,
    VIEWS,
    ExtractionCase,
    spread,
    without_ray,
)
from pipelines import audit, extract, storage
from pipelines.artifacts import RunFolder, now, versions
from pipelines.bench import chosen_of
from pipelines.config import RunConfig
from pipelines.config_file import parse
from pipelines.console import say
from pipelines.errors import UserError
from pipelines.paths import expand
from pipelines.ray_runtime import ray_cluster

OTHERS = ("memory", "scaling")
ROLES = ("target-member", "target-nonmember", "known-member", "known-nonmember")
TURN_SECONDS = 12.0  # that a turn through Ray takes about
CHUNK_SECONDS = 1.0  # that a worker takes for a chunk about
LATENCY, LATENCY_CHUNKS = "pipelines.bench.latency:answer", 5  # chunks per worker
MEMORY_SIDE, MEMORY_SHARD, MEMORY_CHUNK = 256, 240, 24  # pixels, images per shard, images per chunk


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
    chosen = chosen_of(cases, [*EXTRACTION_CASES, *OTHERS], "--case") if cases else [*usual, *OTHERS]
    cores = threads or os.cpu_count() or 1
    result: dict[str, Any] = {"cases": {}}
    with tempfile.TemporaryDirectory() as place, ray_cluster(None, object_store_mb=1000):
        folder = Path(place)
        for name in chosen:
            if name == "memory":
                result["memory"] = _memory(folder / "memory", cores)
            elif name == "scaling":
                result["scaling"] = _scaling(folder / "scaling")
            else:
                case = EXTRACTION_CASES[name]
                shards = _shards(folder / f"{case.image_size}", case.image_size, 10, 1000) if data is None else data
                result["cases"][name] = _case(name, shards, folder / name, cores, rounds)
    return {**result, "images": data or "random", "created": now(), "versions": versions()}


def _case(name: str, shards: str, folder: Path, cores: int, rounds: int) -> dict[str, Any]:
    found = without_ray(name, expand(shards), threads=cores, rounds=rounds)
    loop = found["loop"]["images_per_second"]["median"]
    images = max(8 * cores, int(loop * TURN_SECONDS))
    chunk = max(8, min(256, int(loop * CHUNK_SECONDS / cores)))
    case = EXTRACTION_CASES[name]
    through: dict[int, list[dict[str, float]]] = {}
    for workers in [2**power for power in range(cores.bit_length()) if 2**power <= cores]:
        config = _config(case, shards, images, chunk, workers)
        through[workers] = [_turn(config, folder / f"{workers}-{number}") for number in range(rounds)]
    best = max(through, key=lambda workers: statistics.median(turn["steady"] for turn in through[workers]))
    rate = statistics.median(turn["steady"] for turn in through[best])
    found["ray"] = {
        str(workers): {
            "images_per_second": spread([turn["steady"] for turn in turns]),
            "start_seconds": spread([turn["started"] for turn in turns]),
        }
        for workers, turns in through.items()
    }
    ratios = {
        f"ray_over_{way}": round(rate / found[way]["images_per_second"]["median"], 3)
        for way in ("naive", "loop", "encoder_only")
    }
    say("bench", f"{name}: {rate:.0f} images/s, " + ", ".join(f"{key} {value}" for key, value in ratios.items()))
    return ratios | found | {"views_per_second": round(rate * VIEWS, 1), "workers": best, "chunk": chunk}


def _config(case: ExtractionCase, shards: str, images: int, chunk: int, workers: int, **encoder: Any) -> RunConfig:
    """A run that queries one fresh encoder with the views of some images."""
    stated: dict[str, Any] = {
        "name": "bench",
        "data": {
            "sources": {"pool": {"kind": "shards", "path": shards}},
            "image_size": case.image_size,
            "roles": {role: {"from": "pool", "count": images // len(ROLES)} for role in ROLES},
        },
        "encoders": {
            "target": {
                "load": f"checkpoint:{case.backbone}",
                "fresh": True,
                "mean": MEAN,
                "std": STD,
                "augmentation": RECIPE,
            }
            | encoder
        },
        "queries": {
            "views": VIEWS,
            "outputs": ["backbone"],
            "chunk": chunk,
            "batch_views": 128,
            "precision": case.precision,
        },
        "attacks": [{"attack": "encodermi-t", "target": "target", "reference": "known"}],
        "resources": {
            "encoder_actors": workers,
            "actor_cpus": min(0.75, 0.75 * (os.cpu_count() or 1) / workers),
            "reader_cpus": 0.25,
        },
    }
    return parse(stated, "bench")


def _turn(config: RunConfig, folder: Path) -> dict[str, float]:
    """What extraction through Ray took: see `extract.Throughput`."""
    run_folder = RunFolder(storage.absolute(str(folder)))
    audit.run(config, run_folder.path, last="pretrain")
    extract.run([(config, run_folder)])
    taken: dict[str, float] = run_folder.manifest["extraction"][-1]
    if not taken["steady"]:
        raise UserError(f"{folder.name}: too few chunks for a steady rate; give more images")
    return taken


def _scaling(folder: Path) -> dict[str, Any]:
    """Eight workers against one on an encoder that answers up to 64 views after 50 ms."""
    from pipelines.bench import latency

    case = ExtractionCase("conv4", 16)
    per_chunk = latency.REQUESTS * latency.VIEWS // VIEWS
    shards = _shards(folder / "data", 16, 8, LATENCY_CHUNKS * per_chunk)
    rates = {}
    for workers in (1, 8):
        images = workers * LATENCY_CHUNKS * per_chunk
        given = {"load": f"python:{LATENCY}", "trust_code": True, "fresh": False, "mean": None, "std": None}
        config = _config(case, shards, images, per_chunk, workers, **given)
        queries = config.queries.model_copy(update={"batch_views": latency.VIEWS})
        config = config.model_copy(update={"queries": queries})
        rates[workers] = _turn(config, folder / str(workers))["steady"]
    ratio = round(rates[8] / rates[1], 3)
    say("bench", f"scaling: 8 workers {ratio} times as fast as one where the encoder lets wait")
    rate = {str(workers): value for workers, value in rates.items()}
    return {"latency_bound_8_over_1": ratio, "images_per_second": rate, "requests_per_chunk": latency.REQUESTS}


def _memory(folder: Path, cores: int) -> dict[str, Any]:
    """Peak memory of all processes at ten times the shards over that at one times."""
    case = ExtractionCase("conv4", MEMORY_SIDE)
    in_flight = (extract.READERS_PER_ACTOR * 3 + 3) * cores * MEMORY_CHUNK
    shards = -(-4 * in_flight // MEMORY_SHARD)
    data = _shards(folder / "data", MEMORY_SIDE, 10 * shards, MEMORY_SHARD)
    peaks, counts = [], []
    for number, times in enumerate((1, 10, 1, 10)):
        images = times * shards * MEMORY_SHARD
        config = _config(case, data, images, MEMORY_CHUNK, cores)
        queries = config.queries.model_copy(update={"views": 2})
        config = config.model_copy(update={"queries": queries})
        run_folder = RunFolder(storage.absolute(str(folder / str(number))))
        audit.run(config, run_folder.path, last="pretrain")
        with _peak_memory() as peak:
            extract.run([(config, run_folder)])
        if number > 1:  # the first two fill caches and pools
            peaks.append(peak[0])
            counts.append(images)
    ratio = round(peaks[1] / peaks[0], 3)
    say("bench", f"memory: {ratio} times the peak at ten times the shards ({counts[1]:,} images of {MEMORY_SIDE} px)")
    return {
        "peak_rss_10x_over_1x": ratio,
        "peak_pss_mb": [round(peak / 2**20, 1) for peak in peaks],
        "images": counts,
        "in_flight": in_flight,
    }


@contextmanager
def _peak_memory() -> Iterator[list[int]]:
    """The highest sum of proportional set sizes of this process and its children during the block, in bytes."""
    peak, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.25):
            peak[0] = max(peak[0], sum(map(_proportional_set_size, _family(os.getpid()))))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def _family(root: int) -> set[int]:
    """A process and all that descend from it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    family = {root}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def _proportional_set_size(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _shards(folder: Path, side: int, count: int, images: int) -> str:
    """Write shards of smooth random JPEG images; returns their pattern."""
    import webdataset

    if not folder.exists():
        folder.mkdir(parents=True)
        for number in range(count):
            generator = np.random.default_rng(number)
            with webdataset.TarWriter(f"{folder}/{number:06d}.tar", encoder=False) as writer:
                for row in range(images):
                    coarse = Image.fromarray(generator.integers(0, 256, (4, 4, 3), dtype=np.uint8))
                    buffer = io.BytesIO()
                    coarse.resize((side, side), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
                    writer.write({"__key__": f"{number:06d}{row:06d}", "jpg": buffer.getvalue()})
    return f"{folder}/{{000000..{count - 1:06d}}}.tar"


def table(result: dict[str, Any]) -> Table:
    """The result for a terminal."""
    title = "Extraction, images per second (median of the rounds, least to most)"
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    shown.add_column("case")
    shown.add_column("way", no_wrap=True)
    shown.add_column("images / s", justify="right", no_wrap=True)
    shown.add_column("ours is", justify="right", no_wrap=True)
    shown.add_column("layout")
    for case, found in result["cases"].items():
        for workers, turns in found["ray"].items():
            first = workers == next(iter(found["ray"]))
            start = turns["start_seconds"]["median"]
            shown.add_row(
                case if first else "", "Ray", _rates(turns), "", f"{workers} workers, started in {start:.0f} s"
            )
        for way in ("naive", "loop", "encoder_only"):
            ratio = f"{found[f'ray_over_{way}']:.2f} x"
            shown.add_row("", way.replace("_", " "), _rates(found[way]), ratio, found[way]["layout"])
        shown.add_section()
    return shown


def _rates(found: dict[str, Any]) -> str:
    rates = found["images_per_second"]
    return f"{rates['median']:,.1f} ({rates['least']:,.1f} to {rates['most']:,.1f})"
