"""Read the result of an attack from the run folder."""

from __future__ import annotations

from typing import Any

from pipelines.attack.tasks import Task
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import AttackConfig
from pipelines.config.sections.parameters import told_apart
from pipelines.errors import UserError
from pipelines.files import storage


def result_of(task: Task) -> dict[str, Any]:
    """Result of an attack.

    Raises:
        UserError: it has not run.
    """
    path = f"{task.folder.attack(task.name)}/result.json"
    if not storage.exists(path):
        raise UserError(f"{path} is missing; run the attack stage first")
    result: dict[str, Any] = storage.read_json(path)
    return result


def settings_of(config: RunConfig, attack: AttackConfig) -> str:
    """The settings that distinguish an attack from others of its name, target and reference; empty if it is alone."""
    same = [one for one in config.attacks if _entry(one) == _entry(attack)]
    return told_apart(attack, same, without=("outputs",))


def _entry(attack: AttackConfig) -> tuple[str, str, str]:
    return attack.attack, attack.target, attack.reference
