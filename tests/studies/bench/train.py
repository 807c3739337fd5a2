"""Training speed: ours beside a PIL DataLoader, lightly and the bare step of the network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from pipelines.console import say
from pipelines.data.read.sources import Source
from pipelines.errors import UserError
from pipelines.run.machine import cpus
from tests.studies.bench.cases import chosen_of, dated

CASES = {  # name in the result: case of tests.studies.bench.training, precision
    "small": ("small", "float32"),
    "small-bfloat16": ("small", "bfloat16"),
    "resnet18": ("resnet18", "float32"),
    "resnet18-bfloat16": ("resnet18", "bfloat16"),
}
IMAGES = 1000


def run(cases: Iterable[str] = (), *, data: str | None = None, threads: int | None = None) -> dict[str, Any]:
    """Measure the cases and return ``{"cases": {name: ratios and rates}, ...}``.

    Args:
        cases: keys of `CASES`; none: all.
        data: shards to take images from; None: smooth random ones, which cost the same.
        threads: cores to use; None: all.

    Raises:
        UserError: no such case, or too few images.
    """
    import torch

    from tests.studies.bench.training import training_benchmark

    chosen = chosen_of(cases, CASES)
    images = torch.from_numpy(_random_images() if data is None else _images(data))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cores = threads or cpus()
    results = {}
    for name in chosen:
        case, precision = CASES[name]
        results[name] = training_benchmark(case, images, precision=precision, threads=cores, device=device)
        ratios = {key: value for key, value in results[name].items() if key.startswith("ours_over")}
        say("bench", f"{name}: " + ", ".join(f"{key} {value}" for key, value in ratios.items()))
    return dated(cases=results, images=data or "random")


def table(result: dict[str, Any]) -> Table:
    """The result for a terminal."""
    title = "Training, images per second (median of the rounds, least to most)"
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    shown.add_column("case")
    shown.add_column("way")
    for name in ("images/s", "spread", "ours is"):
        shown.add_column(name, justify="right", no_wrap=True)
    ratios = {"PIL DataLoader": "pil_dataloader", "lightly": "lightly", "model step": "model_step"}
    for case, found in result["cases"].items():
        for way, rates in found["images_per_second"].items():
            ratio = found.get(f"ours_over_{ratios.get(way)}")
            shown.add_row(
                case if way == "ours" else "",
                f"{way} ({found['layouts'][way]})",
                f"{rates['median']:,.0f}",
                f"{rates['least']:,.0f} - {rates['most']:,.0f}",
                "" if ratio is None else f"{ratio:.2f} x",
            )
        shown.add_section()
    return shown


def _random_images() -> np.ndarray:
    """(N, 3, 32, 32) uint8: random colours, blurred by enlarging."""
    coarse = np.random.default_rng(0).integers(0, 256, (IMAGES, 3, 8, 8), dtype=np.uint8)
    return coarse.repeat(4, axis=2).repeat(4, axis=3)


def _images(pattern: str) -> np.ndarray:
    from mi_core.images import Decoder, decode
    from pipelines.config.sections.sources import SourceConfig

    source, decoder = SourceConfig(kind="shards", path=pattern), Decoder(32)
    found: list[np.ndarray] = []
    for item in Source(source).items():
        for sample in Source(source).read(item):
            found.append(decode(sample.image, decoder))
            if len(found) == IMAGES:
                return np.stack(found)
    raise UserError(f"{pattern} holds {len(found)} images, the benchmark needs {IMAGES}")
