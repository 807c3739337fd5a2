"""Fit the stopping rules of sequential attacks once, and keep them in the run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

from mi_core.features.sequential import StoppingRule
from pipelines.extract.division.jobs import ShardJob
from pipelines.files import storage
from pipelines.plan.items import Fit
from pipelines.run.folder import SeedFolder

RuleOf = Callable[[Fit, SeedFolder], StoppingRule]
"""Fits a sequential attack and returns its stopping rule."""


def with_rules(
    jobs: list[ShardJob], rule_of: RuleOf, map_over: Callable[[Callable[..., None], Iterable[Any]], None]
) -> list[ShardJob]:
    """Give jobs their stopping rules; missing rules are fitted, by ``map_over``.

    Raises:
        UserError, ConfigError, NumericError, ShapeError: an attack cannot be fitted on its reference.
    """
    stopped = {job.rule_path: job for job in jobs if job.query.stopping is not None}
    if not stopped:
        return jobs
    first = {path: (job, rule_of) for path, job in stopped.items() if not storage.exists(path)}
    map_over(_fit, first.values())
    rules = {path: StoppingRule(**storage.read_json(path)) for path in stopped}
    return [job if job.query.stopping is None else replace(job, rule=rules[job.rule_path]) for job in jobs]


def _fit(job: ShardJob, rule_of: RuleOf) -> None:
    """Fit and write a rule."""
    assert job.query.stopping is not None
    storage.write_json(job.rule_path, asdict(rule_of(job.query.stopping, job.folder)))
