"""Checks of a whole run, one function per part; each raises ValueError that names the field and the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from mi_core.adoption.published import check_architecture
from mi_core.checks import ConfigError, check_choice
from mi_core.defenses import DEFENSES
from mi_core.defenses.additive_noise import CONVEX
from mi_core.defenses.head import HeadDefense
from mi_core.defenses.sensitivity import LEAVE
from mi_core.encoders import parse_backbone
from mi_core.objectives import OBJECTIVES
from pipelines.config.mistakes import first_mistake
from pipelines.config.paths import check_name
from pipelines.config.roles import CALIBRATION_ROLE, CANARY_IN, CANARY_OUT, CANARY_ROLE, KNOWN_ROLES
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import AUDITED, GAUSSIAN, AttackConfig, AttributeInferenceConfig
from pipelines.config.sections.encoders import DefendedConfig, EndpointConfig, LoadedConfig, TrainedConfig, sealed
from pipelines.errors import UserError
from pipelines.plan.attack_checks import check_attack, check_roles
from pipelines.plan.items import Plan, Query, items_in
from pipelines.plan.resolve import queries_in
from pipelines.plan.rules import ThreatModel


def build(values: Mapping[str, Any]) -> RunConfig:
    """The run that plain values describe, checked as a whole; the only way to make one.

    Raises:
        ValueError: the first mistake, in one line.
    """
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        raise ValueError(first_mistake(error, RunConfig)) from error
    _check(ThreatModel(config))
    return config


def _check(threat: ThreatModel) -> None:
    config = threat.config
    if config.budget.money is not None and not config.prices.model_dump(exclude_none=True):
        raise ValueError(f"budget.money = {config.budget.money:g}, but prices are missing; give prices.cpu_hour, ...")
    for name, encoder in config.encoders.items():
        check_name("encoders", name)
        check_roles(f"encoders.{name}.train_on", encoder.train_on, config.data)
        threat.training_chain(name)
        if isinstance(encoder, TrainedConfig):
            check_training(threat, f"encoders.{name}", encoder)
        if isinstance(encoder, LoadedConfig):
            try:
                check_architecture(encoder.load, config.data.channels, config.data.image_size)
            except ConfigError as error:
                raise ValueError(f"encoders.{name}: {error}") from error
    check_roles("utility.bank", config.utility.bank, config.data)
    check_roles("utility.test", config.utility.test, config.data)
    classes: dict[str, type[Any]] = {}
    for position, attack in enumerate(config.attacks):
        check_attack(threat, f"attacks.{position}", attack)
        if classes.setdefault(attack.attack, attack.method()) is not attack.method():
            raise ValueError(f"attacks.{position}: two classes call themselves {attack.attack!r}; rename one")
    for position, inference in enumerate(config.attribute_inference):
        check_inference(threat, f"attribute_inference.{position}", inference)
    check_controls(threat)
    check_calibration(threat)
    check_dp_audit(threat)
    check_repeats(threat)
    if config.tune is not None:
        defended_of(config)
    queries = queries_in(config)
    for name, encoder in config.encoders.items():
        if encoder.outputs is not None:
            _check_outputs(name, encoder.outputs, queries)


def check_adopted(plan: Plan, name: str, outputs: Sequence[str]) -> None:
    """Raise UserError if attacks of a plan ask an encoder from elsewhere for outputs that it does not have."""
    _check_outputs(name, outputs, items_in(plan, Query))


def _check_outputs(name: str, outputs: Sequence[str], queries: Sequence[Query]) -> None:
    missing = sorted({query.output for query in queries if query.encoder.name == name} - set(outputs))
    if missing:
        raise UserError(
            f"queries.outputs asks for {missing[0]!r}, but the encoder {name!r} has {', '.join(outputs)}; "
            f"set queries.outputs=[{outputs[0]}]"
        )


def check_training(threat: ThreatModel, place: str, encoder: TrainedConfig) -> None:
    """Raise ValueError if an encoder cannot be trained with these settings on its members."""
    if why := sealed(threat.encoders.get(encoder.start or "")):
        raise ValueError(f"{place}.start = {encoder.start!r} {why}: there are no weights to start from")
    if encoder.attribute is not None and encoder.attribute not in threat.config.data.attributes:
        known = ", ".join(threat.config.data.attributes) or "none is declared"
        raise ValueError(f"{place}.attribute = {encoder.attribute!r}, data.attributes has: {known}")
    if isinstance(encoder, DefendedConfig):
        _check_defended(threat, place, encoder)
    values = encoder.parameters.get("values")
    names = () if encoder.attribute is None else threat.config.data.attributes[encoder.attribute].names
    if values is not None and values < len(names):
        raise ValueError(
            f"{place}.parameters.values = {values}, but data.attributes.{encoder.attribute} has {len(names)} values; "
            f"set {place}.parameters.values={len(names)}"
        )
    counts = [threat.roles[role].count for role in encoder.train_on]
    members = None if None in counts else sum(count or 0 for count in counts)
    if members is not None and encoder.half is not None:
        members //= 2
    if members is not None and encoder.batch_size > members:
        raise ValueError(f"{place}.batch_size = {encoder.batch_size} exceeds the {members} members; lower it")
    workers = threat.config.resources.train_workers
    if encoder.batch_size % workers:
        raise ValueError(
            f"{place}.batch_size = {encoder.batch_size} is not divisible by resources.train_workers = {workers}"
        )
    try:
        parse_backbone(encoder.backbone, threat.config.data.channels, encoder.size or threat.config.data.image_size)
        settings, size = encoder.pretraining().objective_parameters, encoder.batch_size
        OBJECTIVES[encoder.objective].check(settings, batch_size=size, images=members, workers=workers)
    except ConfigError as error:
        raise ValueError(f"{place}: {error}") from error


def _check_defended(threat: ThreatModel, place: str, encoder: DefendedConfig) -> None:
    """Raise ValueError if an encoder cannot be defended with these settings."""
    base = threat.encoders[encoder.defends]
    if type(base) is not TrainedConfig:
        raise ValueError(f"{place}.defends = {encoder.defends!r} is not trained here")
    if encoder.epoch is not None and encoder.epoch not in base.kept_epochs:
        kept = ", ".join(map(str, base.kept_epochs))
        raise ValueError(f"{place}.epoch = {encoder.epoch}, but {encoder.defends} keeps {kept}; add it to checkpoints")
    check_roles(f"{place}.outside", encoder.outside, threat.config.data)
    seen = sorted(set(encoder.outside) & threat.members_of(encoder.defends))
    if seen:
        raise ValueError(f"{place}.outside holds {seen[0]}, which {encoder.defends} was trained on")
    judged = sorted(set(encoder.outside) & set(threat.audited_roles))
    if judged:
        raise ValueError(f"{place}.outside holds {judged[0]}, which the audit judges; name other images")


def check_repeats(threat: ThreatModel) -> None:
    """Raise ValueError if queries are repeated although the first answer is kept."""
    repeats = threat.config.queries.repeats
    for name, encoder in threat.encoders.items():
        if repeats > 1 and isinstance(encoder, EndpointConfig) and encoder.parameters().cache:
            raise ValueError(
                f"queries.repeats = {repeats}, but answers of {name} are kept: nothing would be asked "
                f"again; set encoders.{name}.endpoint.cache=false"
            )


def check_inference(threat: ThreatModel, place: str, inference: AttributeInferenceConfig) -> None:
    """Raise ValueError if an attribute inference names a missing thing, or attacks samples that it knows."""
    if inference.attribute not in threat.config.data.attributes:
        known = ", ".join(threat.config.data.attributes) or "none; declare data.attributes"
        raise ValueError(f"{place}.attribute = {inference.attribute!r}, allowed: {known}")
    check_choice(f"{place}.target", inference.target, threat.encoders)
    auxiliary = threat.auxiliary_roles(inference)
    if not auxiliary:
        raise ValueError(f"{place}.auxiliary is missing: what {inference.target} was trained on is not known")
    check_roles(place, (*auxiliary, *inference.test), threat.config.data)
    both = set(auxiliary) & set(inference.test)
    both |= {role for role in auxiliary if threat.roles[role].source_name in inference.test}
    both |= {role for role in inference.test if threat.roles[role].source_name in auxiliary}
    if both:
        raise ValueError(f"{place}: {sorted(both)[0]!r} is both known to the attacker and attacked; keep them apart")


def check_calibration(threat: ThreatModel) -> None:
    """Raise ValueError if the members for the true-positive rate have another role too, or are no members."""
    role = threat.roles.get(CALIBRATION_ROLE)
    if role is None:
        return
    place = f"data.roles.{CALIBRATION_ROLE}"
    if role.source_name in threat.roles:
        raise ValueError(f"{place} is a part of {role.source_name}; take it from a source, apart from other roles")
    for name in dict.fromkeys(attack.target for attack in threat.config.attacks):
        if isinstance(threat.encoders[name], TrainedConfig) and CALIBRATION_ROLE not in threat.members_of(name):
            raise ValueError(f"{place}: {name} was not trained on it; add it to encoders.{name}.train_on")


def check_dp_audit(threat: ThreatModel) -> None:
    """Raise ValueError if guesses of canaries would say nothing of the promise that they are to test."""
    whole = {CANARY_ROLE, CANARY_OUT}
    spoiled = [name for name, encoder in threat.encoders.items() if whole & set(encoder.train_on)]
    if spoiled:
        raise ValueError(
            f"encoders.{spoiled[0]}.train_on holds canaries whose coin says out; train it on {CANARY_IN} alone"
        )
    chosen = threat.config.dp_audit
    if chosen is None:
        return
    check_roles("dp_audit", [CANARY_ROLE], threat.config.data)
    if chosen.attack >= len(threat.config.attacks):
        raise ValueError(f"dp_audit.attack = {chosen.attack}, but there are {len(threat.config.attacks)} attacks")
    if not threat.guessing_attacks:
        target = threat.config.attacks[chosen.attack].target
        raise ValueError(f"dp_audit: {target} was not trained on {CANARY_IN}; add it to encoders.{target}.train_on")
    canaries = threat.roles[CANARY_ROLE].count or 0
    most = max(chosen.guesses, default=2)
    if most > canaries:
        raise ValueError(f"dp_audit.guesses = {most} exceeds the {canaries} canaries; lower it")
    for position in threat.guessing_attacks:
        _check_guesser(threat, threat.config.attacks[position])
    promising = {name: threat.encoders[name] for name in sorted(threat.promising_encoders)}
    defended = {name: one for name, one in promising.items() if isinstance(one, DefendedConfig)}
    for name, encoder in defended.items():
        _check_adjacency(chosen.epsilon, name, encoder)
    for name, encoder in defended.items() if chosen.epsilon is None else ():
        if chosen.delta is not None and DEFENSES[encoder.defense].mechanism:
            raise ValueError(
                f"dp_audit.delta = {chosen.delta:g} without epsilon, but {name} promises an epsilon at a delta of its "
                "own; give dp_audit.epsilon too, or leave delta out"
            )
        _check_promised(threat, encoder)


def _check_guesser(threat: ThreatModel, attack: AttackConfig) -> None:
    """Raise ValueError if an attack cannot guess coins that it knows nothing of."""
    given = f"dp_audit.attack = {threat.config.dp_audit.attack if threat.config.dp_audit else 0} ({attack.attack})"
    output = threat.guessing_output(threat.config.attacks.index(attack))
    check_choice("dp_audit.output", output, threat.outputs_of(attack))
    if attack.count is not None:
        raise ValueError(
            f"{given} queries count = {attack.count} of each role; every canary is scored, so leave it out"
        )
    together = bool(threat.shadows_of(attack)) and attack.reference not in threat.encoders
    if together or attack.reference == AUDITED:
        raise ValueError(f"{given} does not score canaries by themselves; choose another attack")
    known = {role for name in threat.shadows_of(attack) for role in threat.members_of(name)}
    known |= set(threat.reference_roles(attack))
    if CANARY_IN in known:
        raise ValueError(f"{given} is fitted on {CANARY_IN}, so it knows the coins; fit it on other images")


def _check_adjacency(epsilon: float | None, name: str, encoder: DefendedConfig) -> None:
    """Raise ValueError if a promise about a replaced image would be judged by coins that leave an image out."""
    defense = encoder.method(0)
    if not defense.adjacencies or LEAVE in defense.adjacencies:
        return
    told, calibrated = encoder.settings, encoder.settings["head"] == CONVEX
    if calibrated:
        remedy = f"settings.scale in place of settings.epsilon = {told['epsilon']:g}, whose noise shows their number"
    else:
        remedy = f"settings.adjacency = {LEAVE!r} in place of {told['adjacency']!r}"
    if epsilon is None and not (calibrated and defense.mechanism == GAUSSIAN):
        raise ValueError(
            f"dp_audit: {name} promises an epsilon of a replaced image, but a coin leaves an image out; "
            f"give it {remedy}"
        )
    if epsilon is not None and told["epsilon"] and epsilon <= told["epsilon"]:
        raise ValueError(
            f"dp_audit.epsilon = {epsilon:g} is what {name} promises of a replaced image, but a coin leaves an "
            f"image out; give the epsilon of that, or give {name} {remedy}"
        )


def _check_promised(threat: ThreatModel, encoder: DefendedConfig) -> None:
    """Raise ValueError if a defense of the last layer would be blamed for what the layers before it have seen."""
    if not issubclass(DEFENSES[encoder.defense], HeadDefense):
        return
    chain = threat.training_chain(encoder.defends)
    below = {role for step in chain[1:] for role in threat.encoders[step].train_on}
    if CANARY_IN in below or not encoder.parameters.get("freeze_backbone", False):
        raise ValueError(
            f"dp_audit: {encoder.defense} promises something of the last layer alone, but the backbone of "
            f"{encoder.defends} was trained on {CANARY_IN} too; set "
            f"encoders.{encoder.defends}.parameters.freeze_backbone=true and start it from an encoder without "
            "canaries, or give dp_audit.epsilon"
        )


def defended_of(config: RunConfig) -> tuple[str, str]:
    """The encoder that a search measures, and the plain one that its utility is compared with.

    Raises:
        ValueError: the config does not say which, or there is no such encoder, or no attack on it; or the metric is an
            accuracy and candidates are audited.
    """
    tune = config.tune
    assert tune is not None
    attacked = list(dict.fromkeys(one.target for one in config.attacks))
    if ThreatModel(config).is_membership_unknown and tune.metric != "auc":
        raise ValueError(f"tune.metric = {tune.metric!r} needs known members, but candidates are audited; choose auc")
    target = tune.target
    if target is None:
        made = [name for name in attacked if isinstance(config.encoders[name], DefendedConfig)]
        if len(made) > 1:
            raise ValueError(f"tune.target is missing; choose one of {', '.join(made)}")
        target = (made or attacked)[0]
    encoder = config.encoders.get(target)
    plain = tune.plain or (encoder.defends if isinstance(encoder, DefendedConfig) else target)
    for field, name in (("target", target), ("plain", plain)):
        if name not in attacked:
            raise ValueError(f"tune.{field} = {name!r} is not attacked; choose one of {', '.join(attacked)}")
        if tune.hides == "attributes" and name not in {one.target for one in config.attribute_inference}:
            raise ValueError(f"tune.hides = 'attributes', but none is inferred from {name}; add to attribute_inference")
    return target, plain


def check_controls(threat: ThreatModel) -> None:
    """Raise ValueError if the verdict rests on a missing attack or output, or a reference is missing or saw a group."""
    position, attacks = threat.config.validity.attack, threat.config.attacks
    if position >= len(attacks):
        raise ValueError(f"validity.attack = {position}, but there are {len(attacks)} attacks")
    check_choice("validity.output", threat.primary_output, threat.outputs_of(threat.primary))
    for name in threat.config.validity.references:
        check_choice("validity.references", name, [*threat.encoders, *threat.shadow_families])
        halves = threat.shadow_families.get(name, ())
        seen = set() if halves else threat.members_of(name) & {*threat.audited_roles, *KNOWN_ROLES}
        if seen:
            raise ValueError(
                f"validity.references: {name!r} was trained on {', '.join(sorted(seen))}; a reference saw neither "
                "group, or it is made by halves of both"
            )
        one_sided = [half for half in halves if len(threat.members_of(half) & {*threat.audited_roles}) == 1]
        if one_sided:
            raise ValueError(
                f"validity.references: {name!r} was trained on halves of one group; give it both in train_on: "
                f"{', '.join(threat.audited_roles)}"
            )
