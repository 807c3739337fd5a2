"""The upper limit of what attacks reach on the audited target, and on every defended encoder."""

from __future__ import annotations

from collections.abc import Sequence

from mi_core.records import Estimate
from mi_core.registration import OF_BOUND, attempts, is_after_looking
from mi_core.report.bounds import bound_parts
from mi_core.report.model.attacks import AttackResult
from mi_core.report.model.judgement import Bound
from mi_core.validity.bound import auc_limits
from pipelines.attack.results import Task, result_of
from pipelines.config.sections.encoders import DefendedConfig
from pipelines.report.parts.finished import FinishedRun
from pipelines.report.parts.verdict import counted_scores
from pipelines.run.registration import lines_of


def bounds(run: FinishedRun, results: Sequence[AttackResult]) -> tuple[Bound, ...]:
    """The limits of all attacks on the primary output at the last checkpoint, the audited target first.

    Args:
        run: with its scores.
        results: of the attacks that apply, in the order of the run's tasks.
    """
    lines, primary = lines_of(run.folder), run.primaries()[0].judge
    applied = [task for task in run.tasks() if "not_applicable" not in result_of(task)]
    measured = [
        (result, limits_of(task))
        for task, result in zip(applied, results, strict=True)
        if task.judge.last and task.judge.output == primary.output and _counts(run, result.target)
    ]
    return bound_parts(
        sorted(measured, key=lambda pair: pair[0].target != primary.attack.target),
        overlap=run.overlap,
        planned=attempts(lines, primary.output)[1],
        bound=run.config.validity.bound,
        registered=not is_after_looking(lines, OF_BOUND),
    )


def _counts(run: FinishedRun, target: str) -> bool:
    audited = run.primaries()[0].judge.attack.target
    return target == audited or isinstance(run.config.encoders[target], DefendedConfig)


def limits_of(task: Task) -> Estimate:
    """The limits of one attack in one seed."""
    found = counted_scores(task)
    return auc_limits(found["score"], found["member"], found.get("group"))
