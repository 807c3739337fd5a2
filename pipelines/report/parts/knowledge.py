"""The knowledge of the target that the owner of a shadow has, read off the two encoders of a config."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import AttackConfig
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import TrainedConfig
from pipelines.plan.rules import member_roles, shadows_of


def knowledge(config: RunConfig, attack: AttackConfig) -> dict[str, bool] | None:
    """Compare distribution, architecture and algorithm of shadow and target; None: there is no shadow."""
    shadows, target = shadows_of(config, attack), config.encoders[attack.target]
    if not shadows or not isinstance(target, TrainedConfig):
        return None
    shadow = config.encoders[shadows[0]]
    if not isinstance(shadow, TrainedConfig):
        return None
    return {
        "distribution": _distribution(config.data, member_roles(config, shadows[0]))
        == _distribution(config.data, member_roles(config, attack.target)),
        "architecture": shadow.backbone == target.backbone,
        "algorithm": shadow.objective == target.objective,
    }


def _distribution(data: DataConfig, roles: Sequence[str]) -> set[tuple[str, tuple[int, ...] | None]]:
    """Sources and classes that some roles are drawn from."""
    found = set()
    for name in roles:
        role = data.roles[name]
        parent = data.roles.get(role.source_name, role)
        found.add((parent.source_name, role.classes or parent.classes))
    return found
