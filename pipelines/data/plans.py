"""The plans of some runs, resolved from their configs and the roles that were drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pipelines.config.run_config import RunConfig
from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.splits import Splits
from pipelines.plan.items import Plan, Role
from pipelines.plan.resolve import resolve
from pipelines.run.folder import SeedFolder
from pipelines.run.points import Run


class Planned(NamedTuple):
    """The plan of one seed of one run, and the folder that its results go to."""

    plan: Plan
    folder: SeedFolder


def plans_of(runs: Sequence[Run]) -> list[Planned]:
    """The plans of all seeds of some runs, whose roles are drawn."""
    return [plan_of(run.config, run.folder.seed(seed)) for run in runs for seed in run.config.seeds]


def plan_of(config: RunConfig, folder: SeedFolder) -> Planned:
    """The plan of one seed of a run, whose roles are drawn."""
    return Planned(resolve(config, folder.seed, drawn_roles(Splits.load(folder.path), config.data)), folder)


def drawn_roles(splits: Splits, data: DataConfig) -> dict[str, Role]:
    """All roles and parts by name."""
    parts = {name: role.source_name for name, role in data.roles.items() if role.source_name in data.roles}
    return {
        name: Role(name, count, splits.role_digest(name), parts.get(name, ""))
        for name, count in splits.counts().items()
    }
