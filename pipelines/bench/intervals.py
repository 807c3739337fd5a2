"""How often the intervals hold the truth, and how often the verdict is a false leak (`mi_core.validity.coverage`)."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table

from mi_core.validity.coverage import REQUIRED, coverage_benchmark
from pipelines.run.folder import now, versions


def run(*, quick: bool = False) -> dict[str, Any]:
    """Simulate, and return what `mi_core.validity.coverage.coverage_benchmark` does, with date and versions."""
    return {**coverage_benchmark(quick=quick), "created": now(), "versions": versions()}


def table(result: dict[str, Any]) -> Group:
    """The cell of each interval that covers least, and the false leaks, for a terminal."""
    covered = _titled(f"Coverage of the 95 % intervals; required: {REQUIRED:.0%}", "interval", "cells", "least", "mean")
    for name in dict.fromkeys(_kind(cell) for cell in result["cells"]):
        found = [cell["coverage"] for cell in result["cells"] if _kind(cell) == name and cell.get("supported", True)]
        if found:
            covered.add_row(name, str(len(found)), f"{min(found):.4f}", f"{sum(found) / len(found):.4f}")
    leaks = _titled("False leaks where there is none", "scores", "n a side", "runs", "share", "95 % interval")
    for one in result["verdicts"]:
        low, high = one["ci95"]
        share = f"{one['leak'] / one['simulations']:.3f}"
        leaks.add_row(one["setting"], str(one["n"]), str(one["simulations"]), share, f"[{low:.3f}, {high:.3f}]")
    return Group(covered, leaks)


def _titled(title: str, *columns: str) -> Table:
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for number, name in enumerate(columns):
        shown.add_column(name, justify="right" if number else "left", no_wrap=number > 0)
    return shown


def passed(result: dict[str, Any]) -> bool:
    """Whether every supported cell covers enough, and false leaks stay below 5 % where there is no difference."""
    enough = all(cell["coverage"] >= REQUIRED for cell in result["cells"] if cell.get("supported", True))
    return enough and all(found["ci95"][1] <= 0.05 for found in result["verdicts"] if found["exchangeable"])


def _kind(cell: dict[str, Any]) -> str:
    setting = cell["setting"]
    groups = setting.get("groups", "none")
    runs = setting.get("runs", 1)
    interval: str = cell["interval"]
    return interval + ("" if groups == "none" else ", in groups") + (f", {runs} seeds" if runs > 1 else "")
