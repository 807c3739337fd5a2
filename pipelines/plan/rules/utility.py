"""On which images the use of an encoder is measured, and those whose attribute an attacker knows."""

from __future__ import annotations

from pipelines.config.roles import BANK_ROLE, CANARY_ROLE, TEST_ROLE, without_canaries
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import AttributeInferenceConfig
from pipelines.config.sections.encoders import TrainedConfig
from pipelines.plan.rules.encoders import members_of


def utility_roles(config: RunConfig, encoder: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(bank, test) roles of the utility of an encoder; it was trained on none of the tested ones by default."""
    trained = without_canaries(config.encoders[encoder].train_on)
    bank = config.utility.bank or ((BANK_ROLE,) if BANK_ROLE in config.data.roles else trained)
    drawn = [name for name, role in config.data.roles.items() if role.source_name in config.data.sources]
    unseen = tuple(name for name in drawn if name not in {*trained, *bank, CANARY_ROLE})
    test = config.utility.test or ((TEST_ROLE,) if TEST_ROLE in config.data.roles else unseen)
    return (bank, test) if bank else ((), ())


def classifier_roles(config: RunConfig, name: str) -> tuple[tuple[str, ...], ...]:
    """(trained on, unseen) roles on which a classifier trained here is tested; nothing for other encoders."""
    encoder = config.encoders[name]
    if not isinstance(encoder, TrainedConfig) or "logits" not in encoder.outputs:
        return ()
    _, test = utility_roles(config, name)
    return without_canaries(encoder.train_on), tuple(role for role in test if role not in members_of(config, name))


def auxiliary_roles(config: RunConfig, inference: AttributeInferenceConfig) -> tuple[str, ...]:
    """Roles whose attribute an attacker knows."""
    return inference.auxiliary or config.encoders[inference.target].train_on
