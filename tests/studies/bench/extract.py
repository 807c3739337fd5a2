"""Extraction speed: the published way, a hand-written loop and the bare encoder beside this pipeline through Ray.

Beside the speed stand the memory that ten times the shards take, and what eight workers are worth when the encoder is
one that lets wait.
"""

from __future__ import annotations

import statistics
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from pipelines.console import count_of, say
from pipelines.data.read.shard_paths import expand
from pipelines.run.machine import cpus
from tests.studies.bench import scale
from tests.studies.bench.cases import chosen_of, dated
from tests.studies.bench.extraction import EXTRACTION_CASES, VIEWS, crews, figures
from tests.studies.bench.pipeline import ROLES, Pipeline, query_config, smooth_shards

OTHERS = ("memory", "scaling")
IMAGES = 20_000  # of a turn through Ray, at most
TURN_SECONDS, CHUNK_SECONDS = 20.0, 1.25  # that a turn through Ray, and a chunk of a worker, takes about
BATCH_VIEWS = 256  # enough to draw views in good company, few enough for the caches of a core
TRIAL_SECONDS, WAY_SECONDS = 3.0, 6.0  # of a turn of the other ways


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
                result["memory"] = scale.memory(folder / "memory", cores)
            elif name == "scaling":
                result["scaling"] = scale.scaling(folder / "scaling", rounds)
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


def table(result: dict[str, Any]) -> Group:
    """The result for a terminal."""
    parts: list[RenderableType] = []
    for case, found in result["cases"].items():
        title = f"{case}: images per second, median of the rounds (least to most)"
        shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        shown.add_column("way", no_wrap=True)
        shown.add_column("images / s", justify="right", no_wrap=True)
        shown.add_column("Ray is", justify="right", no_wrap=True)
        shown.add_column("layout")
        for workers, turns in found["ray"].items():
            start = turns["start_seconds"]["median"]
            layout = f"{count_of(int(workers), 'worker', 'workers')}, started in {start:.0f} s"
            shown.add_row("Ray", _rates(turns), "", layout)
        for way in ("naive", "loop", "encoder_only"):
            ratio = f"{found[f'ray_over_{way}']:.2f} x"
            shown.add_row(way.replace("_", " "), _rates(found[way]), ratio, found[way]["layout"])
        parts.append(shown)
    if "memory" in result:
        one, ten = result["memory"]["peak_pss_mb"]
        ratio = result["memory"]["peak_rss_10x_over_1x"]
        parts.append(f"Peak memory at 10 times the shards: {ten:,.0f} MB, {ratio:.2f} x the {one:,.0f} MB at 1 time")
    if "scaling" in result:
        ratio = result["scaling"]["latency_bound_8_over_1"]
        parts.append(f"Eight workers that wait for their encoder: {ratio:.2f} x one")
    return Group(*parts)


def _rates(found: dict[str, Any]) -> str:
    rates = found["images_per_second"]
    return f"{rates['median']:,.1f} ({rates['least']:,.1f} to {rates['most']:,.1f})"
