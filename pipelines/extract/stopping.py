"""Fit the stopping rules of sequential attacks once, and keep them in the run folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

from mi_core.features.sequential import StoppingRule
from pipelines.extract.jobs import ShardJob
from pipelines.files import storage
from pipelines.plan.items import Fit
from pipelines.run.folder import SeedFolder
from pipelines.run.ray_session import mapped

RuleOf = Callable[[Fit, SeedFolder], StoppingRule]
"""Fits a sequential attack and returns its stopping rule."""


def with_rules(jobs: list[ShardJob], rule_of: RuleOf, *, here: bool = False) -> list[ShardJob]:
    """Give jobs their stopping rules; missing rules are fitted as Ray tasks, or in this process with ``here``.

    Raises:
        UserError, ConfigError, NumericError, ShapeError: an attack cannot be fitted on its reference.
    """
    stopped = {job.rule_path: job for job in jobs if job.query.stopping is not None}
    if not stopped:
        return jobs
    first = {path: (job, rule_of) for path, job in stopped.items() if not storage.exists(path)}
    if here:
        for work in first.values():
            _fit(*work)
    else:
        mapped(_fit, first.values(), "rules", "stopping rules")
    rules = {path: StoppingRule(**storage.read_json(path)) for path in stopped}
    return [job if job.query.stopping is None else replace(job, rule=rules[job.rule_path]) for job in jobs]


def _fit(job: ShardJob, rule_of: RuleOf) -> None:
    """Fit and write a rule."""
    assert job.query.stopping is not None
    storage.write_json(job.rule_path, asdict(rule_of(job.query.stopping, job.folder)))
