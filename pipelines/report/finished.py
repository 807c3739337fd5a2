"""A run whose stages are done: what every part of a report is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.attack.results import Result, Task, result_of, settings_of, tasks
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import AttackConfig
from pipelines.data.draw.parts import audited_overlap, overlap_of
from pipelines.data.plans import Planned, plan_of
from pipelines.plan.rules import ThreatModel
from pipelines.run.folder import RunFolder, SeedFolder


@dataclass(frozen=True)
class FinishedRun:
    """A config, the run folder, and the plans of all seeds."""

    config: RunConfig
    folder: RunFolder
    planned: tuple[Planned, ...]

    @classmethod
    def at(cls, config: RunConfig, folder: RunFolder) -> FinishedRun:
        """The run in a folder; its roles are drawn."""
        return cls(config, folder, tuple(plan_of(config, folder.seed(seed)) for seed in config.seeds))

    @classmethod
    def from_plans(cls, config: RunConfig, folder: RunFolder, planned: Sequence[Planned]) -> FinishedRun:
        """The run in a folder, whose plans are among those of several runs."""
        places = [folder.seed(seed) for seed in config.seeds]
        return cls(config, folder, tuple(one for one in planned if one.folder in places))

    @property
    def threat(self) -> ThreatModel:
        """The rules that its plans were made by."""
        return ThreatModel(self.config)

    @property
    def first(self) -> SeedFolder:
        """The folder of the first seed."""
        return self.folder.seed(self.config.seeds[0])

    @property
    def audited(self) -> list[str]:
        """The names of the two roles that are told apart, possible members first."""
        return [role.name for role in self.planned[0].plan.audited]

    @property
    def overlap(self) -> float:
        """The share of audited images that another seed has too, as `audited_overlap`."""
        return audited_overlap(self.config.data, self.config.seeds, self.first, self.audited)

    def overlap_of(self, roles: Sequence[str]) -> float:
        """The share of samples of some roles that another seed has too."""
        return overlap_of(self.config.data, self.config.seeds, self.first, roles)

    def tasks(self) -> list[Task]:
        """The attacks of all seeds."""
        return [task for planned in self.planned for task in tasks(planned)]

    def applying(self) -> list[tuple[Task, Result]]:
        """The attacks of all seeds that found something to read, with their results."""
        found = ((task, result_of(task)) for task in self.tasks())
        return [(task, result) for task, result in found if result.not_applicable is None]

    def primaries(self) -> list[Task]:
        """For each seed the attack at the last checkpoint that the verdict rests on."""
        return [task for task in self.tasks() if task.judge.primary and task.judge.last]

    def settings(self, attack: AttackConfig) -> str | None:
        """The settings that tell an attack from others of this run; None: it is alone."""
        return settings_of(attack, self.config.attacks) or None

    def tried(self, task: Task) -> dict[str, Any]:
        """What tells an attack from others, as the parts of a report have it."""
        judge, attack = task.judge, task.judge.attack
        told = {"attack": attack.attack, "target": attack.target, "output": judge.output, "seed": judge.seed}
        return told | {"settings": self.settings(attack)}
