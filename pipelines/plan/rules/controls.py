"""The controls of an attack: reference encoders that saw none of the images, and how the groups came about."""

from __future__ import annotations

from collections.abc import Iterator

from mi_core.objectives import OBJECTIVES
from mi_core.validity.verdict import CHOICE, LOT
from pipelines.config.roles import KNOWN_ROLES
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import AttackConfig
from pipelines.config.sections.encoders import EncoderConfig, ForeignConfig, LoadedConfig, TrainedConfig
from pipelines.plan.rules.encoders import members_of, shadow_families, training_chain
from pipelines.plan.rules.roles import audited_roles
from pipelines.plan.rules.views import outputs_of


def groups_by(config: RunConfig) -> str:
    """How the two audited groups came about, as `mi_core.validity.verdict` has it.

    By lot: both were drawn in the same way from one source or role, and the target was trained here on one of them
    afterwards. A draw after somebody else's training is none: whoever named the files chose who is drawn.
    """
    inside, outside = (config.data.roles[role] for role in audited_roles(config))
    drawn = all(role.is_drawn for role in (inside, outside)) and inside.classes == outside.classes
    here = inside.source_name == outside.source_name
    trained = members_of(config, config.attacks[config.validity.attack].target)
    return (
        LOT
        if drawn and here and audited_roles(config)[0] in trained and audited_roles(config)[1] not in trained
        else CHOICE
    )


def audits_others(config: RunConfig) -> bool:
    """Tell whether an attacked encoder comes from elsewhere, so that somebody may have fitted images to its views."""
    return any(isinstance(config.encoders[attack.target], ForeignConfig) for attack in config.attacks)


def references_of(config: RunConfig, attack: AttackConfig) -> tuple[str, ...]:
    """The encoders on which an attack is repeated, because they saw none of the samples that it is judged on.

    A trial of a search has none: its attacks are compared with those on the plain encoder. Where `validity` names
    none, it is the first that has what the attack needs.
    """
    fitting = [name for name, lack in _references(config, attack) if not lack]
    return tuple(fitting if config.validity.references else fitting[:1])


def classifying_references(config: RunConfig) -> tuple[str, ...]:
    """The references on whose embeddings the audited images are classified; by lot this check is of no use."""
    return references_of(config, config.attacks[config.validity.attack]) if groups_by(config) == CHOICE else ()


def passed_over(config: RunConfig, attack: AttackConfig) -> tuple[str, str] | None:
    """First encoder rejected as a reference for an attack, and the missing capability; None: none is."""
    first = next(_references(config, attack), None)
    return first if first is not None and first[1] else None


def _references(config: RunConfig, attack: AttackConfig) -> Iterator[tuple[str, str]]:
    """Encoders that saw none of the target's samples, the preferred first, each with why it is unfit, if it is."""
    if config.fold != "all":
        return
    named = [one for name in config.validity.references for one in shadow_families(config).get(name, (name,))]
    objective = config.encoders[attack.target].objective
    kin = sorted(config.encoders, key=lambda name: config.encoders[name].objective != objective)
    outputs = set(outputs_of(config, attack))
    for name in named or [attack.reference, *kin]:
        if name not in config.encoders or name in (attack.target, attack.before):
            continue
        known = config.encoders[name].outputs
        if named or (_saw_neither(config, name) and (known is None or outputs <= set(known))):
            yield name, _lack(attack, config.encoders[name])


def _lack(attack: AttackConfig, encoder: EncoderConfig) -> str:
    """The lack of an encoder that an attack needs, in words; empty: none, as far as its settings tell."""
    if attack.reads_captions and not _may_read_captions(encoder):
        return "has no text tower"
    needed = {measure.output for measure in attack.needs() if measure.output}
    lacking = sorted(needed - set(encoder.outputs or needed))
    return f"has no output {lacking[0]}" if lacking else ""


def _may_read_captions(encoder: EncoderConfig) -> bool:
    """Tell whether an encoder has a text tower, as far as its settings tell."""
    if isinstance(encoder, LoadedConfig):
        return encoder.load.startswith(("open_clip:", "transformers:"))
    return isinstance(encoder, TrainedConfig) and OBJECTIVES[encoder.objective].target == "caption"


def _saw_neither(config: RunConfig, name: str) -> bool:
    """Tell whether an encoder surely saw no audited sample: trained here on others, or with fresh weights."""
    first = config.encoders[training_chain(config, name)[-1]]
    known = first.saw_nothing if isinstance(first, ForeignConfig) else True
    return known and not members_of(config, name) & {*audited_roles(config), *KNOWN_ROLES}
