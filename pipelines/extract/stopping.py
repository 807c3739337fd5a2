"""Fit the stopping rules of sequential attacks once, and keep them in the run folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from mi_core.features.sequential import StoppingRule
from pipelines.config.demands import Stopping
from pipelines.config.run_config import RunConfig
from pipelines.extract.jobs import ShardJob
from pipelines.files import storage
from pipelines.run.folder import SeedFolder
from pipelines.run.points import Run
from pipelines.run.ray_session import mapped

RuleOf = Callable[[RunConfig, SeedFolder, Stopping], StoppingRule]
"""Fits a sequential attack and returns its stopping rule."""


def fitted(jobs: list[ShardJob], runs: Sequence[Run], rule_of: RuleOf, *, here: bool = False) -> list[ShardJob]:
    """Give jobs their stopping rules; missing rules are fitted as Ray tasks, or in this process with ``here``.

    Raises:
        UserError, ConfigError, NumericError, ShapeError: an attack cannot be fitted on its reference.
    """
    stopped = [job for job in jobs if job.query.asking.stopping is not None]
    if not stopped:
        return jobs
    configs = {of_run.seed(seed): config for config, of_run in runs for seed in config.seeds}
    first = {job.rule_path: (configs[job.folder], job, rule_of) for job in stopped if not storage.exists(job.rule_path)}
    if here:
        for work in first.values():
            _fit(*work)
    else:
        mapped(_fit, first.values(), "rules", "stopping rules")
    rules = {path: StoppingRule(**storage.read_json(path)) for path in {job.rule_path for job in stopped}}
    return [job if job.query.asking.stopping is None else replace(job, rule=rules[job.rule_path]) for job in jobs]


def _fit(config: RunConfig, job: ShardJob, rule_of: RuleOf) -> None:
    """Fit and write a rule."""
    assert job.query.asking.stopping is not None
    storage.write_json(job.rule_path, asdict(rule_of(config, job.folder, job.query.asking.stopping)))
