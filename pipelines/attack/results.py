"""The results of attacks in the run folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mi_core.metrics.membership import MembershipMetrics
from mi_core.records import Estimate
from mi_core.report.build import SetTest
from mi_core.report.model.as_json import part_as_json, part_from_json
from mi_core.report.model.attacks import AttackQueries
from pipelines.config.sections.attacks import AttackConfig
from pipelines.config.sections.parameters import told_apart
from pipelines.data.plans import Planned
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.plan.items import Judge
from pipelines.run.folder import SeedFolder


@dataclass(frozen=True)
class Task:
    """A judge, and the folder of the seed that its result goes to."""

    judge: Judge
    folder: SeedFolder

    @property
    def path(self) -> str:
        """The folder of the result."""
        return f"{self.folder.path}/attacks/{self.judge.name}"

    @property
    def target_output(self) -> str:
        """The attacked output in words, for messages."""
        return f"the {self.judge.output} output of {self.judge.attack.target}"


def tasks(planned: Planned) -> list[Task]:
    """The judges of a plan."""
    return [Task(judge, planned.folder) for judge in planned.plan.judges]


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of an attack, as its file in the run folder has it.

    Args:
        attack, target, reference, output, epoch, seed, position, parameters: what was tried.
        queries: spent.
        scored: samples; metrics: of those that are judged, None where the attack does not apply.
        evidence: of the candidates as a set; memorisation: the mean; None where it was not measured.
        seconds: of fit and scores; seconds_fit: of the fit.
        not_applicable: why there is nothing to read; control_not_applicable: the same on the reference encoders.
    """

    attack: str = ""
    target: str = ""
    reference: str = ""
    output: str = ""
    epoch: int = 0
    seed: int | None = None
    position: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    queries: AttackQueries | None = None
    control_not_applicable: str | None = None
    scored: int = 0
    evidence: SetTest | None = None
    memorisation: Estimate | None = None
    seconds: float | None = None
    seconds_fit: float | None = None
    metrics: MembershipMetrics | None = None
    not_applicable: str | None = None


def write_result(task: Task, result: Result) -> None:
    """Write the result of an attack."""
    storage.write_json(f"{task.path}/result.json", part_as_json(result))


def result_of(task: Task) -> Result:
    """Result of an attack.

    Raises:
        UserError: it has not run.
        TypeError: the file is damaged.
    """
    path = f"{task.path}/result.json"
    if not storage.exists(path):
        raise UserError(f"{path} is missing; run the attack stage first")
    return part_from_json(Result, storage.read_json(path))


def settings_of(attack: AttackConfig, others: Iterable[AttackConfig]) -> str:
    """The settings that distinguish an attack from others of its name, target and reference; empty if it is alone."""
    return told_apart(attack, [other for other in others if _entry(other) == _entry(attack)], without=("outputs",))


def _entry(attack: AttackConfig) -> tuple[str, str, str]:
    return attack.attack, attack.target, attack.reference
