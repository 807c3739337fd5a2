"""The rules of a threat model, each decided here alone, from a config: encoders, images, views, controls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from mi_core.augmentations import AUGMENTATIONS
from mi_core.checks import check_choice
from mi_core.objectives import OBJECTIVES
from mi_core.validity.verdict import CHOICE, LOT
from pipelines.config import roles as config_roles
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import AUDITED, KNOWN, NONMEMBERS, AttackConfig, AttributeInferenceConfig
from pipelines.config.sections.data import RoleConfig
from pipelines.config.sections.encoders import DefendedConfig, EncoderConfig, ForeignConfig, LoadedConfig, TrainedConfig
from pipelines.config.sections.parameters import complete
from pipelines.config.sections.queries import Recipe, crops_alone


@dataclass(frozen=True)
class ThreatModel:
    """What a config decides about attacker, target and controls; ``config``: of the run."""

    config: RunConfig

    @property
    def encoders(self) -> Mapping[str, EncoderConfig]:
        """All encoders by name."""
        return self.config.encoders

    @property
    def roles(self) -> Mapping[str, RoleConfig]:
        """All roles by name."""
        return self.config.data.roles

    @property
    def primary(self) -> AttackConfig:
        """The attack that the verdict rests on."""
        return self.config.attacks[self.config.validity.attack]

    def training_chain(self, name: str) -> tuple[str, ...]:
        """An encoder, the one that it starts from, and so on to one that starts from none.

        Raises:
            ValueError: they go in a circle, or there is no such encoder.
        """
        steps = [name]
        while (start := self.encoders[steps[-1]].start) is not None:
            if start in steps:
                raise ValueError(f"encoders.{name}.start goes in a circle: {' -> '.join((*steps, start))}")
            check_choice(f"encoders.{steps[-1]}.start", start, self.encoders)
            steps.append(start)
        return tuple(steps)

    def members_of(self, name: str) -> set[str]:
        """Roles that an encoder was trained on, with those of the encoders it started from."""
        return {role for step in self.training_chain(name) for role in self.encoders[step].train_on}

    def member_roles(self, name: str) -> tuple[str, ...]:
        """Roles whose membership is audited: those that an encoder was trained on.

        A classifier may be built with other data on an encoder: then the roles of that encoder.
        """
        trained = [config_roles.without_canaries(self.encoders[step].train_on) for step in self.training_chain(name)]
        return next((roles for roles in trained if all(map(config_roles.are_members, roles))), trained[-1])

    def attacked_epochs(self, encoder: str) -> tuple[int, ...]:
        """Checkpoints of an encoder that are attacked and whose utility is measured."""
        kept = self.encoders[encoder].kept_epochs
        return kept if self.config.checkpoints == "all" else kept[-1:]

    def epoch_beside(self, encoder: str, epoch: int) -> int:
        """The checkpoint of another encoder to compare with one of the target: the same epoch, else the last."""
        kept = self.encoders[encoder].kept_epochs
        return epoch if epoch in kept else kept[-1]

    def last_queried_epoch(self, encoder: str) -> int:
        """The last checkpoint that is queried: attacked, or compared with an attacked one."""
        attacked = {epoch for attack in self.config.attacks for epoch in self.attacked_epochs(attack.target)}
        return max([*self.attacked_epochs(encoder), *(self.epoch_beside(encoder, epoch) for epoch in attacked)])

    @property
    def shadow_families(self) -> dict[str, tuple[str, ...]]:
        """Encoders that were made by ``halves``, by the name that they share."""
        families: dict[str, tuple[str, ...]] = {}
        for name, encoder in self.encoders.items():
            if isinstance(encoder, TrainedConfig) and encoder.half is not None:
                family = name.removesuffix(f"-{encoder.half}")
                families[family] = (*families.get(family, ()), name)
        return families

    def shadows_of(self, attack: AttackConfig) -> tuple[str, ...]:
        """Encoders of the attacker's own that an attack is fitted on: one, several trained on halves, or none."""
        if attack.reference in self.encoders:
            return (attack.reference,)
        return self.shadow_families.get(attack.reference, ())[: attack.shadows]

    def is_trained(self, name: str) -> bool:
        """Tell whether an encoder has learned anything: an untrained reference shows little of what others see."""
        *later, first = self.training_chain(name)
        return bool(later) or not _is_fresh(self.encoders[first])

    @property
    def audited_roles(self) -> tuple[str, str]:
        """The two roles that attacks tell apart: possible members first."""
        return (
            config_roles.CANDIDATE_ROLES
            if set(config_roles.CANDIDATE_ROLES) <= set(self.roles)
            else config_roles.TARGET_ROLES
        )

    @property
    def is_membership_unknown(self) -> bool:
        """Tell whether candidates are audited: nobody knows which are members, so only the AUC means something."""
        return self.audited_roles == config_roles.CANDIDATE_ROLES

    def reference_roles(self, attack: AttackConfig) -> tuple[str, ...]:
        """Roles that an attack is fitted on: those of its shadow with the non-members beside them, or known samples."""
        fixed = {KNOWN: config_roles.KNOWN_ROLES, NONMEMBERS: config_roles.KNOWN_ROLES[1:]}
        if attack.reference in fixed:
            return fixed[attack.reference]
        if attack.reference not in self.encoders:
            return self.audited_roles
        trained = self.member_roles(attack.reference)
        return (
            tuple(role for members in trained for role in (members, config_roles.nonmembers_beside(members)))
            or config_roles.SHADOW_ROLES
        )

    def roles_fitted_on_target(self, attack: AttackConfig) -> tuple[str, ...]:
        """Roles of the target that an attack is fitted on and not judged on; none where it has shadows."""
        return () if self.shadows_of(attack) or attack.reference == AUDITED else self.reference_roles(attack)

    def judged_counts(self, counts: Mapping[str, float]) -> tuple[int, int]:
        """Candidates and controls that the verdict rests on; ``counts``: samples by role."""
        left = {role: counts[role] for role in self.audited_roles}
        for role in self.roles_fitted_on_target(self.primary):
            whole = self.roles[role].source_name
            if whole in left:
                left[whole] -= counts[role]
        members, others = (int(left[role]) for role in self.audited_roles)
        return members, others

    def recipe_of(self, attack: AttackConfig) -> Recipe:
        """The views that an attacker draws: those of her shadow's training, on all encoders.

        A shadow that was trained by another algorithm than the target tells her nothing but crops.
        """
        target, shadows = self.encoders[attack.target], self.shadows_of(attack)
        own = self.encoders[shadows[0]] if shadows else target
        if own.objective != target.objective:
            return crops_alone(self.config.queries.crop_only)
        if isinstance(self.config.queries.augmentation, dict):
            return Recipe(target.objective, complete(AUGMENTATIONS[target.objective], self.config.queries.augmentation))
        return Recipe(own.objective, own.augmentation)

    def crafter_of(self, attack: AttackConfig) -> str | None:
        """The encoder whose weights an attacker crafts images on: her shadow."""
        shadows = self.shadows_of(attack)
        return shadows[0] if shadows and any(measure.consumes == "adversarial" for measure in attack.needs) else None

    def outputs_of(self, attack: AttackConfig) -> tuple[str, ...]:
        """Outputs of an encoder that an attack reads."""
        return attack.outputs or attack.readable or self.config.queries.outputs

    def outputs_on(self, name: str, outputs: Sequence[str]) -> tuple[str, ...]:
        """The outputs of an encoder in place of some of the target's: the same, or the backbone where it lacks them."""
        known = self.encoders[name].outputs
        return tuple(dict.fromkeys(one if known is None or one in known else "backbone" for one in outputs))

    @property
    def primary_output(self) -> str:
        """The output that the verdict rests on: by default the first of those asked for that its attack reads."""
        read = self.outputs_of(self.primary)
        usual = next((name for name in self.config.queries.outputs if name in read), read[0])
        return self.config.validity.output or usual

    @property
    def groups_by(self) -> str:
        """How the two audited groups came about, as `mi_core.validity.verdict` has it.

        By lot: both were drawn in the same way from one source or role, and the target was trained here on one of them
        afterwards. A draw after somebody else's training is none: whoever named the files chose who is drawn.
        """
        inside, outside = (self.roles[role] for role in self.audited_roles)
        drawn = all(role.is_drawn for role in (inside, outside)) and inside.classes == outside.classes
        here = inside.source_name == outside.source_name
        trained = self.members_of(self.primary.target)
        one_side = self.audited_roles[0] in trained and self.audited_roles[1] not in trained
        return LOT if drawn and here and one_side else CHOICE

    @property
    def audits_others(self) -> bool:
        """Tell whether an attacked encoder comes from elsewhere: somebody may have fitted images to its views."""
        return any(isinstance(self.encoders[attack.target], ForeignConfig) for attack in self.config.attacks)

    def references_of(self, attack: AttackConfig) -> tuple[str, ...]:
        """The encoders on which an attack is repeated, because they saw none of the samples that it is judged on.

        A trial of a search has none: its attacks are compared with those on the plain encoder. Where `validity` names
        none, it is the first that has what the attack needs.
        """
        fitting = (name for name, lack in self._references(attack) if not lack)
        return tuple(islice(fitting, None if self.config.validity.references else 1))

    @property
    def classifying_references(self) -> tuple[str, ...]:
        """The references on whose embeddings the audited images are classified; by lot this check is of no use."""
        return self.references_of(self.primary) if self.groups_by == CHOICE else ()

    def passed_over(self, attack: AttackConfig) -> tuple[str, str] | None:
        """First encoder rejected as a reference for an attack, and the missing capability; None: none is."""
        return next((first for first in islice(self._references(attack), 1) if first[1]), None)

    def _references(self, attack: AttackConfig) -> Iterator[tuple[str, str]]:
        """Encoders that saw none of the target's samples, the preferred first, each with why it is unfit, if it is."""
        if self.config.fold != "all":
            return
        named = [one for name in self.config.validity.references for one in self.shadow_families.get(name, (name,))]
        objective = self.encoders[attack.target].objective
        kin = sorted(self.encoders, key=lambda name: self.encoders[name].objective != objective)
        outputs = set(self.outputs_of(attack))
        for name in named or [attack.reference, *kin]:
            if name not in self.encoders or name in (attack.target, attack.before):
                continue
            known = self.encoders[name].outputs
            if named or (self._saw_neither(name) and (known is None or outputs <= set(known))):
                yield name, _lack(attack, self.encoders[name])

    def _saw_neither(self, name: str) -> bool:
        """Tell whether an encoder surely saw no audited sample: trained here on others, or with fresh weights."""
        first = self.encoders[self.training_chain(name)[-1]]
        known = isinstance(first, TrainedConfig) or _is_fresh(first)
        return known and not self.members_of(name) & {*self.audited_roles, *config_roles.KNOWN_ROLES}

    def utility_roles(self, encoder: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(bank, test) roles of the utility of an encoder; it was trained on none of the tested ones by default."""
        trained = config_roles.without_canaries(self.encoders[encoder].train_on)
        bank = self.config.utility.bank or (
            (config_roles.BANK_ROLE,) if config_roles.BANK_ROLE in self.roles else trained
        )
        drawn = [name for name, role in self.roles.items() if role.source_name in self.config.data.sources]
        unseen = tuple(name for name in drawn if name not in {*trained, *bank, config_roles.CANARY_ROLE})
        test = self.config.utility.test or (
            (config_roles.TEST_ROLE,) if config_roles.TEST_ROLE in self.roles else unseen
        )
        return (bank, test) if bank else ((), ())

    def classifier_roles(self, name: str) -> tuple[tuple[str, ...], ...]:
        """(trained on, unseen) roles on which a classifier trained here is tested; nothing for other encoders."""
        encoder = self.encoders[name]
        if not isinstance(encoder, TrainedConfig) or "logits" not in encoder.outputs:
            return ()
        _, test = self.utility_roles(name)
        return config_roles.without_canaries(encoder.train_on), tuple(
            role for role in test if role not in self.members_of(name)
        )

    def auxiliary_roles(self, inference: AttributeInferenceConfig) -> tuple[str, ...]:
        """Roles whose attribute an attacker knows."""
        return inference.auxiliary or self.encoders[inference.target].train_on

    @property
    def guessing_attacks(self) -> tuple[int, ...]:
        """Positions of the attacks that guess canaries: the chosen one, and the same on other encoders with canaries.

        Each encoder has one: the first.
        """
        chosen = self.config.dp_audit
        if chosen is None or chosen.attack >= len(self.config.attacks) or self.config.fold != "all":
            return ()
        same = [attack.model_copy(update={"target": "", "reference": ""}) for attack in self.config.attacks]
        found: dict[str, int] = {}
        for position, attack in enumerate(self.config.attacks):
            if same[position] == same[chosen.attack] and config_roles.CANARY_IN in self.members_of(attack.target):
                found.setdefault(attack.target, position)
        return tuple(found.values())

    @property
    def promising_encoders(self) -> set[str]:
        """Encoders that a promised epsilon is about: those defended, or all, of those with canaries."""
        targets = {self.config.attacks[position].target for position in self.guessing_attacks}
        return {name for name in targets if isinstance(self.encoders[name], DefendedConfig)} or targets

    def guessing_output(self, position: int) -> str:
        """The output that is read to guess canaries."""
        chosen = None if self.config.dp_audit is None else self.config.dp_audit.output
        return chosen or self.outputs_of(self.config.attacks[position])[0]


def population_roles(attack: AttackConfig) -> tuple[str, ...]:
    """The role whose images, seen by no encoder, an attack compares samples with; none if it compares with none."""
    return (config_roles.POPULATION_ROLE,) if attack.method().populated else ()


def _is_fresh(encoder: EncoderConfig) -> bool:
    """Tell whether an encoder from elsewhere has fresh weights, so that it saw nothing."""
    return isinstance(encoder, LoadedConfig) and encoder.fresh


def _lack(attack: AttackConfig, encoder: EncoderConfig) -> str:
    """The lack of an encoder that an attack needs, in words; empty: none, as far as its settings tell."""
    if isinstance(encoder, LoadedConfig):
        reads = encoder.load.startswith(("open_clip:", "transformers:"))
    else:
        reads = isinstance(encoder, TrainedConfig) and OBJECTIVES[encoder.objective].target == "caption"
    if any(measure.captions for measure in attack.needs) and not reads:
        return "has no text tower"
    needed = {measure.output for measure in attack.needs if measure.output}
    lacking = sorted(needed - set(encoder.outputs or needed))
    return f"has no output {lacking[0]}" if lacking else ""
