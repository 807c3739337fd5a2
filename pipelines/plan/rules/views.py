"""The queries of an attacker: views of her shadow, images crafted on it; and the outputs that she reads."""

from __future__ import annotations

from collections.abc import Sequence

from mi_core.augmentations import AUGMENTATIONS
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import AttackConfig
from pipelines.config.sections.parameters import complete
from pipelines.config.sections.queries import Recipe, crops_alone
from pipelines.plan.rules.encoders import shadows_of


def recipe_of(config: RunConfig, attack: AttackConfig) -> Recipe:
    """The views that an attacker draws: those of her shadow's training, on all encoders.

    A shadow that was trained by another algorithm than the target tells her nothing but crops.
    """
    target, shadows = config.encoders[attack.target], shadows_of(config, attack)
    own = config.encoders[shadows[0]] if shadows else target
    if own.objective != target.objective:
        return crops_alone(config.queries.crop_only)
    if isinstance(config.queries.augmentation, dict):
        return Recipe(target.objective, complete(AUGMENTATIONS[target.objective], config.queries.augmentation))
    return Recipe(own.objective, own.augmentation)


def crafter_of(config: RunConfig, attack: AttackConfig) -> str | None:
    """The encoder whose weights an attacker crafts images on: her shadow."""
    shadows = shadows_of(config, attack)
    crafts = any(measure.consumes == "adversarial" for measure in attack.needs())
    return shadows[0] if shadows and crafts else None


def outputs_of(config: RunConfig, attack: AttackConfig) -> tuple[str, ...]:
    """Outputs of an encoder that an attack reads."""
    return attack.outputs or attack.readable or config.queries.outputs


def outputs_on(config: RunConfig, name: str, outputs: Sequence[str]) -> tuple[str, ...]:
    """The outputs of an encoder in place of some of the target's: the same, or the backbone where it lacks them."""
    known = config.encoders[name].outputs
    return tuple(dict.fromkeys(one if known is None or one in known else "backbone" for one in outputs))


def primary_output(config: RunConfig) -> str:
    """The output that the verdict rests on: by default the first of those asked for that its attack reads."""
    read = outputs_of(config, config.attacks[config.validity.attack])
    return config.validity.output or next((name for name in config.queries.outputs if name in read), read[0])
