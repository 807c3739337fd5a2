"""The results of attacks in the run folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

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
        return self.folder.attack(self.judge.name)

    @property
    def target_output(self) -> str:
        """The attacked output in words, for messages."""
        return f"the {self.judge.output} output of {self.judge.attack.target}"


def tasks(planned: Planned) -> list[Task]:
    """The judges of a plan."""
    return [Task(judge, planned.folder) for judge in planned.plan.judges]


def result_of(task: Task) -> dict[str, Any]:
    """Result of an attack.

    Raises:
        UserError: it has not run.
    """
    path = f"{task.path}/result.json"
    if not storage.exists(path):
        raise UserError(f"{path} is missing; run the attack stage first")
    result: dict[str, Any] = storage.read_json(path)
    return result


def settings_of(attack: AttackConfig, others: Iterable[AttackConfig]) -> str:
    """The settings that distinguish an attack from others of its name, target and reference; empty if it is alone."""
    same = [other for other in others if _entry(other) == _entry(attack)]
    return told_apart(attack, same, without=("outputs",))


def _entry(attack: AttackConfig) -> tuple[str, str, str]:
    return attack.attack, attack.target, attack.reference
