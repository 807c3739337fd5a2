"""The attacks that guess the coins of canaries, and the promise of privacy that they test."""

from __future__ import annotations

from pipelines.config.roles import CANARY_IN
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.encoders import DefendedConfig
from pipelines.plan.rules.encoders import members_of
from pipelines.plan.rules.views import outputs_of


def guessing_attacks(config: RunConfig) -> tuple[int, ...]:
    """Positions of the attacks that guess canaries: the chosen one, and the same on other encoders with canaries.

    Each encoder has one: the first.
    """
    chosen = config.dp_audit
    if chosen is None or chosen.attack >= len(config.attacks) or config.fold != "all":
        return ()
    same = [attack.model_copy(update={"target": "", "reference": ""}) for attack in config.attacks]
    found: dict[str, int] = {}
    for position, attack in enumerate(config.attacks):
        if same[position] == same[chosen.attack] and CANARY_IN in members_of(config, attack.target):
            found.setdefault(attack.target, position)
    return tuple(found.values())


def promising_encoders(config: RunConfig) -> set[str]:
    """Encoders that a promised epsilon of the config is about: those defended, or all, of those with canaries."""
    targets = {config.attacks[position].target for position in guessing_attacks(config)}
    return {name for name in targets if isinstance(config.encoders[name], DefendedConfig)} or targets


def guessing_output(config: RunConfig, position: int) -> str:
    """The output that is read to guess canaries."""
    chosen = None if config.dp_audit is None else config.dp_audit.output
    return chosen or outputs_of(config, config.attacks[position])[0]
