"""The rules of a threat model, each decided here alone, from a config: encoders, images, views, controls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mi_core.augmentations import AUGMENTATIONS
from mi_core.checks import check_choice
from mi_core.objectives import OBJECTIVES
from mi_core.validity.verdict import CHOICE, LOT
from pipelines.config.roles import (
    BANK_ROLE,
    CANARY_IN,
    CANARY_ROLE,
    CANDIDATE_ROLES,
    KNOWN_ROLES,
    POPULATION_ROLE,
    SHADOW_ROLES,
    TARGET_ROLES,
    TEST_ROLE,
    are_members,
    nonmembers_beside,
    without_canaries,
)
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import AUDITED, KNOWN, NONMEMBERS, AttackConfig, AttributeInferenceConfig
from pipelines.config.sections.encoders import DefendedConfig, EncoderConfig, ForeignConfig, LoadedConfig, TrainedConfig
from pipelines.config.sections.parameters import complete
from pipelines.config.sections.queries import Recipe, crops_alone


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


def audited_roles(config: RunConfig) -> tuple[str, str]:
    """The two roles that attacks tell apart: possible members first."""
    candidates = set(CANDIDATE_ROLES) <= set(config.data.roles)
    return CANDIDATE_ROLES if candidates else TARGET_ROLES


def is_membership_unknown(config: RunConfig) -> bool:
    """Tell whether candidates are audited: nobody knows which are members, so only the AUC means something."""
    return audited_roles(config) == CANDIDATE_ROLES


def reference_roles(config: RunConfig, attack: AttackConfig) -> tuple[str, ...]:
    """Roles that an attack is fitted on: those of its shadow with the non-members beside them, or known samples."""
    fixed = {KNOWN: KNOWN_ROLES, NONMEMBERS: KNOWN_ROLES[1:]}
    if attack.reference in fixed:
        return fixed[attack.reference]
    if attack.reference not in config.encoders:
        return audited_roles(config)
    trained = member_roles(config, attack.reference)
    return tuple(role for members in trained for role in (members, nonmembers_beside(members))) or SHADOW_ROLES


def population_roles(attack: AttackConfig) -> tuple[str, ...]:
    """The role whose images, seen by no encoder, an attack compares samples with; none if it compares with none."""
    return (POPULATION_ROLE,) if attack.method().populated else ()


def roles_fitted_on_target(config: RunConfig, attack: AttackConfig) -> tuple[str, ...]:
    """Roles of the target that an attack is fitted on and not judged on; none where it has shadows."""
    return () if shadows_of(config, attack) or attack.reference == AUDITED else reference_roles(config, attack)


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
