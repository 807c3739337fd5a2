"""The estimated costs of a run beside `budget.cpu_hours`, `.gpu_hours` and `.money`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict

from mi_core.costs import Range
from mi_core.provenance import now
from mi_core.report.words.numbers import plain
from pipelines.config.sections.limits import BudgetConfig
from pipelines.console import console, say
from pipelines.errors import UserError
from pipelines.estimate.run import Estimate, estimate
from pipelines.files.digest import digest
from pipelines.run.points import Run

UNITS = {"cpu_hours": "CPU-hours", "gpu_hours": "GPU-hours", "money": "money"}


def confirm(runs: Sequence[Run], stages: Sequence[str], *, yes: bool) -> None:
    """Compare the estimated costs of a run with its budget before it starts; without a budget nothing is measured.

    A config with stages that were once within the budget or confirmed is not estimated again.

    Args:
        runs: a run and the points of its sweeps; Ray is connected.
        stages: those that will run.
        yes: spend more than the budget without a question.

    Raises:
        UserError: the estimate exceeds the budget and nobody confirms.
    """
    config, folder = runs[0]
    if not config.budget.estimated:
        return
    asked = digest([of_run.model_dump(mode="json", by_alias=True) for of_run, _ in runs], list(stages))
    if asked in [entry["asked"] for entry in folder.manifest.get("estimates", [])]:
        return
    costs = estimate(runs)
    above = exceeded(costs, config.budget, stages)
    for line in above:
        say("estimate", line)
    if above and not yes:
        _ask(above)
    spent = {name: asdict(costs.spent(name, stages)) for name in config.budget.estimated}
    folder.append_manifest("estimates", {"asked": asked, "at": now(), **spent, "confirmed": bool(above)})


def exceeded(costs: Estimate, budget: BudgetConfig, stages: Sequence[str]) -> list[str]:
    """The costs above the budget, a line each; the value of an estimate counts, not its interval."""
    return [
        f"{_words(name, costs.spent(name, stages))}, more than budget.{name} = {most:g}"
        for name, most in budget.estimated.items()
        if costs.spent(name, stages).value > most
    ]


def _words(name: str, spent: Range) -> str:
    return f"about {plain(spent.value)} {UNITS[name]} ({plain(spent.low)} to {plain(spent.high)})"


def _ask(above: Sequence[str]) -> None:
    refusal = f"the run would take {'; '.join(above)}; raise the budget, ask for less, or confirm with --yes"
    if not sys.stdin.isatty():
        raise UserError(refusal)
    if console.input("Go on? [y/N] ").strip().lower() not in ("y", "yes"):
        raise UserError(refusal)
