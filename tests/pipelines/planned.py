"""The passes and jobs of a run, as its extraction plans them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipelines.config.run_config import RunConfig
from pipelines.data.plans import plans_of
from pipelines.extract.chunk_size import Sizing
from pipelines.extract.division.jobs import ShardJob
from pipelines.extract.run import PlannedPass, plan_passes
from pipelines.run.folder import RunFolder
from pipelines.run.points import Run


def recorded_now(runs: Sequence[Run], sizing: Sizing | None = None) -> list[PlannedPass]:
    """The passes of a run and the points of its sweeps, written down."""
    passes = plan_passes(plans_of(runs), sizing, runs[0].config.queries.chunk)
    for planned in passes:
        planned.record()
    return passes


def jobs_of(config: RunConfig, folder: Path | str) -> list[ShardJob]:
    """All jobs of a run without sweeps, whose passes are written down."""
    return [job for planned in recorded_now([Run(config, RunFolder(str(folder)))]) for job in planned.jobs()]
