"""The label-only attack's search: ours beside the Adversarial Robustness Toolbox's (`mi_core.bench.label_only`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.table import Table

from pipelines.bench.cases import chosen_of, dated
from pipelines.console import say


def run(cases: Iterable[str] = (), *, threads: int = 1) -> dict[str, Any]:
    """Measure the cases and return ``{"cases": {name: rates and ratios}, ...}``.

    Args:
        cases: keys of `LABEL_ONLY_CASES`; none: all.
        threads: cores to use.

    Raises:
        UserError: no such case.
    """
    import torch

    from mi_core.bench.label_only import LABEL_ONLY_CASES, label_only_benchmark

    chosen = chosen_of(cases, LABEL_ONLY_CASES)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    results = {}
    for name in chosen:
        found = results[name] = label_only_benchmark(name, threads=threads, device=device, reach=name == "small")
        say(
            "bench",
            f"{name}: {found['toolbox_over_ours']} times as fast, distances {found['distance_ratio']} of theirs",
        )
    return dated(cases=results)


def table(result: dict[str, Any]) -> Table:
    """The result for a terminal."""
    shown = Table(title="HopSkipJump, seven iterations", title_justify="left", box=box.SIMPLE_HEAD)
    shown.add_column("case", no_wrap=True)
    shown.add_column("way", no_wrap=True)
    for name in ("s / image", "queries / image", "us / query", "distance", "ours is"):
        shown.add_column(name, justify="right", no_wrap=True)
    for case, found in result["cases"].items():
        for way in ("ours", "toolbox"):
            of_way = found[way]
            shown.add_row(
                case if way == "ours" else f"n {found['images']}",
                way,
                f"{of_way['seconds_per_image']:.2f}",
                f"{of_way['queries_per_image']:,.0f}",
                f"{of_way['microseconds_per_query']['median']:,.0f}",
                f"{of_way['median_distance']:.3f}",
                f"{found['toolbox_over_ours']:.2f} x" if way == "toolbox" else "",
            )
        shown.add_section()
    return shown
