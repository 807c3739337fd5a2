"""The encoders of a run: what each was trained on, its checkpoints, and the shadows of an attack."""

from __future__ import annotations

from mi_core.checks import check_choice
from pipelines.config.roles import are_members, without_canaries
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import AttackConfig
from pipelines.config.sections.encoders import ForeignConfig, TrainedConfig


def training_chain(config: RunConfig, name: str) -> tuple[str, ...]:
    """An encoder, the one that it starts from, and so on to one that starts from none.

    Raises:
        ValueError: they go in a circle, or there is no such encoder.
    """
    steps = [name]
    while (start := config.encoders[steps[-1]].start) is not None:
        if start in steps:
            raise ValueError(f"encoders.{name}.start goes in a circle: {' -> '.join((*steps, start))}")
        check_choice(f"encoders.{steps[-1]}.start", start, config.encoders)
        steps.append(start)
    return tuple(steps)


def members_of(config: RunConfig, name: str) -> set[str]:
    """Roles that an encoder was trained on, with those of the encoders it started from."""
    return {role for step in training_chain(config, name) for role in config.encoders[step].train_on}


def member_roles(config: RunConfig, name: str) -> tuple[str, ...]:
    """Roles whose membership is audited: those that an encoder was trained on.

    A classifier may be built with other data on an encoder: then the roles of that encoder.
    """
    trained = [without_canaries(config.encoders[step].train_on) for step in training_chain(config, name)]
    return next((roles for roles in trained if all(map(are_members, roles))), trained[-1])


def attacked_epochs(config: RunConfig, encoder: str) -> tuple[int, ...]:
    """Checkpoints of an encoder that are attacked and whose utility is measured."""
    kept = config.encoders[encoder].kept_epochs
    return kept if config.checkpoints == "all" else kept[-1:]


def epoch_beside(config: RunConfig, encoder: str, epoch: int) -> int:
    """The checkpoint of another encoder to compare with one of the target: the same epoch, else the last."""
    kept = config.encoders[encoder].kept_epochs
    return epoch if epoch in kept else kept[-1]


def queried_epochs(config: RunConfig, encoder: str) -> tuple[int, ...]:
    """Checkpoints that are queried: those attacked, and those compared with an attacked one."""
    attacked = {epoch for attack in config.attacks for epoch in attacked_epochs(config, attack.target)}
    beside = {epoch_beside(config, encoder, epoch) for epoch in attacked}
    return tuple(sorted({*attacked_epochs(config, encoder), *beside}))


def shadow_families(config: RunConfig) -> dict[str, tuple[str, ...]]:
    """Encoders that were made by ``halves``, by the name that they share."""
    families: dict[str, tuple[str, ...]] = {}
    for name, encoder in config.encoders.items():
        if isinstance(encoder, TrainedConfig) and encoder.half is not None:
            family = name.removesuffix(f"-{encoder.half}")
            families[family] = (*families.get(family, ()), name)
    return families


def shadows_of(config: RunConfig, attack: AttackConfig) -> tuple[str, ...]:
    """Encoders of the attacker's own that an attack is fitted on: one, several trained on halves, or none."""
    if attack.reference in config.encoders:
        return (attack.reference,)
    return shadow_families(config).get(attack.reference, ())[: attack.shadows]


def is_trained(config: RunConfig, name: str) -> bool:
    """Tell whether an encoder has learned anything: an untrained reference shows little of what others see."""
    first = config.encoders[training_chain(config, name)[-1]]
    return not (isinstance(first, ForeignConfig) and first.saw_nothing) or len(training_chain(config, name)) > 1


def measured_encoders(config: RunConfig) -> tuple[str, ...]:
    """Encoders whose utility is measured: all, and in a trial those attacked."""
    return (
        tuple(config.encoders) if config.fold == "all" else tuple(dict.fromkeys(one.target for one in config.attacks))
    )
