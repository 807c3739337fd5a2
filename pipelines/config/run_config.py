"""A run: the sections of its config together, and all that follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from mi_core.augmentations import AUGMENTATIONS
from mi_core.checks import check_choice
from mi_core.validity.verdict import CHOICE, LOT
from pipelines.config.gradients import may_read_captions, why_unfit
from pipelines.config.published import with_published
from pipelines.config.roles import (
    ANCHOR_ROLE,
    BANK_ROLE,
    CANARY_IN,
    CANARY_ROLE,
    CANDIDATE_ROLES,
    KNOWN_ROLES,
    POPULATION_ROLE,
    SHADOW_ROLES,
    TARGET_ROLES,
    TEST_ROLE,
    UNLABELLED_ROLE,
    nonmembers_beside,
    of_members,
    without_canaries,
)
from pipelines.config.sections.attacks import (
    ATTACK_CONFIGS,
    AUDITED,
    KNOWN,
    NONMEMBERS,
    UNLABELLED,
    AttackConfig,
    AttributeInferenceConfig,
    UtilityConfig,
    ValidityConfig,
    each_attack,
    each_inference,
)
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.defenses import DefenseConfig, with_defenses
from pipelines.config.sections.dp_audit import DpAuditConfig
from pipelines.config.sections.encoders import DefendedConfig, EncoderConfig, ForeignConfig, TrainedConfig
from pipelines.config.sections.limits import BudgetConfig, PricesConfig, ResourcesConfig
from pipelines.config.sections.parameters import complete
from pipelines.config.sections.queries import QueriesConfig, Recipe, crops_alone
from pipelines.config.sections.section import Section
from pipelines.config.sections.shorthands import spell_out
from pipelines.config.sections.tuning import TuneConfig
from pipelines.config.shape import check_shape

if TYPE_CHECKING:
    AnyAttack = AttackConfig
else:
    AnyAttack = Annotated[Union[tuple(ATTACK_CONFIGS.values())], Field(discriminator="attack")]  # noqa: UP007


class RunConfig(Section):
    """A whole run."""

    model_config = ConfigDict(hide_input_in_errors=True)  # it may hold a secret

    name: str = Field(min_length=1)
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1, description="the whole chain once per seed")
    data: DataConfig
    encoders: dict[str, EncoderConfig] = Field(min_length=1)
    queries: QueriesConfig = QueriesConfig()
    attacks: tuple[AnyAttack, ...] = Field(min_length=1)
    attribute_inference: tuple[AttributeInferenceConfig, ...] = Field(
        default=(), description="attributes that an attacker infers from embeddings"
    )
    defenses: tuple[DefenseConfig, ...] = Field(
        default=(), description="defenses of what is attacked, each with all attacks on it"
    )
    utility: UtilityConfig = UtilityConfig()
    validity: ValidityConfig = ValidityConfig()
    dp_audit: DpAuditConfig | None = Field(
        default=None, description="a promise of differential privacy to hold against the role canary"
    )
    checkpoints: Literal["all", "last"] = Field(
        default="all", description="checkpoints that are attacked and measured; of the points of a sweep: the last"
    )
    budget: BudgetConfig = BudgetConfig()
    prices: PricesConfig = PricesConfig()
    sweep: dict[str, tuple[dict[str, Any], ...]] = Field(
        default_factory=dict, description="fields to repeat the run with, see pipelines.config.reading.sweeps"
    )
    tune: TuneConfig | None = Field(default=None, description="parameters of a defense to search for")
    fold: Literal["all", "search", "final"] = Field(
        default="all",
        description="images on which attacks and utility are measured; in the trials of a search: one half of them",
    )
    resources: ResourcesConfig = ResourcesConfig()

    @model_validator(mode="before")
    @classmethod
    def _defend(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        check_shape(value)
        return with_published(with_defenses(value))

    @field_validator("encoders", mode="before")
    @classmethod
    def _inherit(cls, value: Any) -> Any:
        return spell_out(value) if isinstance(value, dict) else value

    @field_validator("attacks", "attribute_inference", mode="before")
    @classmethod
    def _one_by_one(cls, value: Any, info: ValidationInfo) -> Any:
        each = each_attack if info.field_name == "attacks" else each_inference
        return each(value) if isinstance(value, list | tuple) else value

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) != len(value):
            raise ValueError(f"seeds {list(value)} repeat; each seed runs once")
        return value

    def plain(self) -> dict[str, Any]:
        """The run as plain values, without its sweeps and its search."""
        return self.model_dump(mode="json", by_alias=True, exclude={"sweep", "tune"})

    def chain(self, name: str) -> tuple[str, ...]:
        """An encoder, the one that it starts from, and so on to one that starts from none.

        Raises:
            ValueError: they go in a circle, or there is no such encoder.
        """
        chain = [name]
        while (start := self.encoders[chain[-1]].start) is not None:
            if start in chain:
                raise ValueError(f"encoders.{name}.start goes in a circle: {' -> '.join((*chain, start))}")
            check_choice(f"encoders.{chain[-1]}.start", start, self.encoders)
            chain.append(start)
        return tuple(chain)

    def members_of(self, name: str) -> set[str]:
        """Roles that an encoder was trained on, with those of the encoders it started from."""
        return {role for step in self.chain(name) for role in self.encoders[step].train_on}

    def member_roles(self, name: str) -> tuple[str, ...]:
        """Roles whose membership is audited: those that an encoder was trained on.

        A classifier may be built with other data on an encoder: then the roles of that encoder.
        """
        trained = [without_canaries(self.encoders[step].train_on) for step in self.chain(name)]
        return next((roles for roles in trained if all(map(of_members, roles))), trained[-1])

    def attacked_epochs(self, encoder: str) -> tuple[int, ...]:
        """Checkpoints of an encoder that are attacked and whose utility is measured."""
        kept = self.encoders[encoder].kept_epochs
        return kept if self.checkpoints == "all" else kept[-1:]

    def epoch_beside(self, encoder: str, epoch: int) -> int:
        """The checkpoint of another encoder to compare with one of the target: the same epoch, else the last."""
        kept = self.encoders[encoder].kept_epochs
        return epoch if epoch in kept else kept[-1]

    def queried_epochs(self, encoder: str) -> tuple[int, ...]:
        """Checkpoints that are queried: those attacked, and those compared with an attacked one."""
        attacked = {epoch for attack in self.attacks for epoch in self.attacked_epochs(attack.target)}
        beside = {self.epoch_beside(encoder, epoch) for epoch in attacked}
        return tuple(sorted({*self.attacked_epochs(encoder), *beside}))

    @property
    def audited(self) -> tuple[str, str]:
        """The two roles that attacks tell apart: possible members first."""
        candidates = set(CANDIDATE_ROLES) <= set(self.data.roles)
        return CANDIDATE_ROLES if candidates else TARGET_ROLES

    @property
    def asked(self) -> bool:
        """Whether candidates are audited: nobody knows which are members, so only the AUC means something."""
        return self.audited == CANDIDATE_ROLES

    @property
    def dp_audits(self) -> tuple[int, ...]:
        """Positions of the attacks that guess canaries: the chosen one, and the same on other encoders with canaries.

        Each encoder has one: the first.
        """
        chosen = self.dp_audit
        if chosen is None or chosen.attack >= len(self.attacks) or self.fold != "all":
            return ()
        same = [attack.model_copy(update={"target": "", "reference": ""}) for attack in self.attacks]
        found: dict[str, int] = {}
        for position, attack in enumerate(self.attacks):
            if same[position] == same[chosen.attack] and CANARY_IN in self.members_of(attack.target):
                found.setdefault(attack.target, position)
        return tuple(found.values())

    @property
    def promising(self) -> set[str]:
        """Encoders that a promised epsilon of the config is about: those defended, or all, of those with canaries."""
        targets = {self.attacks[position].target for position in self.dp_audits}
        return {name for name in targets if isinstance(self.encoders[name], DefendedConfig)} or targets

    def dp_output(self, position: int) -> str:
        """The output that is read to guess canaries."""
        chosen = None if self.dp_audit is None else self.dp_audit.output
        return chosen or self.outputs_of(self.attacks[position])[0]

    def shadows(self, attack: AttackConfig) -> tuple[str, ...]:
        """Encoders of the attacker's own that an attack is fitted on: one, several trained on halves, or none."""
        if attack.reference in self.encoders:
            return (attack.reference,)
        return self.families.get(attack.reference, ())[: attack.shadows]

    @property
    def families(self) -> dict[str, tuple[str, ...]]:
        """Encoders that were made by ``halves``, by the name that they share."""
        families: dict[str, tuple[str, ...]] = {}
        for name, encoder in self.encoders.items():
            if isinstance(encoder, TrainedConfig) and encoder.half is not None:
                family = name.removesuffix(f"-{encoder.half}")
                families[family] = (*families.get(family, ()), name)
        return families

    def reference_roles(self, attack: AttackConfig) -> tuple[str, ...]:
        """Roles that an attack is fitted on: those of its shadow with the non-members beside them, or known samples."""
        fixed = {KNOWN: KNOWN_ROLES, NONMEMBERS: KNOWN_ROLES[1:], UNLABELLED: (UNLABELLED_ROLE, KNOWN_ROLES[1])}
        if attack.reference in fixed:
            return fixed[attack.reference]
        if attack.reference not in self.encoders:
            return self.audited
        trained = self.member_roles(attack.reference)
        return tuple(role for members in trained for role in (members, nonmembers_beside(members))) or SHADOW_ROLES

    def population_roles(self, attack: AttackConfig) -> tuple[str, ...]:
        """The role whose images, seen by no encoder, an attack compares samples with; none if it compares with none."""
        return (POPULATION_ROLE,) if attack.method().populated else ()

    def fitted_on_target(self, attack: AttackConfig) -> tuple[str, ...]:
        """Roles of the target that an attack is fitted on and not judged on; none where it has shadows."""
        return () if self.shadows(attack) or attack.reference == AUDITED else self.reference_roles(attack)

    def outputs_of(self, attack: AttackConfig) -> tuple[str, ...]:
        """Outputs of an encoder that an attack reads."""
        return attack.outputs or attack.readable or self.queries.outputs

    def recipe(self, attack: AttackConfig) -> Recipe:
        """The views that an attacker draws: those of her shadow's training, on all encoders.

        A shadow that was trained by another algorithm than the target tells her nothing but crops.
        """
        target, shadows = self.encoders[attack.target], self.shadows(attack)
        own = self.encoders[shadows[0]] if shadows else target
        if own.objective != target.objective:
            return crops_alone(self.queries.crop_only)
        if isinstance(self.queries.augmentation, dict):
            return Recipe(target.objective, complete(AUGMENTATIONS[target.objective], self.queries.augmentation))
        return Recipe(own.objective, own.augmentation)

    def crafter(self, attack: AttackConfig) -> str | None:
        """The encoder whose weights an attacker crafts images on: her shadow."""
        shadows = self.shadows(attack)
        return shadows[0] if shadows and any(measure.consumes == "adversarial" for measure in attack.needs()) else None

    def bank_role(self, attack: AttackConfig) -> str | None:
        """The role of the bank that an attack compares samples with."""
        return ANCHOR_ROLE if attack.bank_size else None

    def auxiliary_roles(self, inference: AttributeInferenceConfig) -> tuple[str, ...]:
        """Roles whose attribute an attacker knows."""
        return inference.auxiliary or self.encoders[inference.target].train_on

    @property
    def primary_output(self) -> str:
        """The output that the verdict rests on: by default the first of those asked for that its attack reads."""
        read = self.outputs_of(self.attacks[self.validity.attack])
        return self.validity.output or next((name for name in self.queries.outputs if name in read), read[0])

    @property
    def measured(self) -> tuple[str, ...]:
        """Encoders whose utility is measured: all, and in a trial those attacked."""
        return tuple(self.encoders) if self.fold == "all" else tuple(dict.fromkeys(one.target for one in self.attacks))

    @property
    def by(self) -> str:
        """How the two audited groups came about, as `mi_core.validity.verdict` has it.

        By lot: both were drawn in the same way from one source or role, and the target was trained here on one of them
        afterwards. A draw after somebody else's training is none: whoever named the files chose who is drawn.
        """
        inside, outside = (self.data.roles[role] for role in self.audited)
        drawn = all(role.drawn for role in (inside, outside)) and inside.classes == outside.classes
        here = inside.source_name == outside.source_name
        trained = self.members_of(self.attacks[self.validity.attack].target)
        return LOT if drawn and here and self.audited[0] in trained and self.audited[1] not in trained else CHOICE

    @property
    def audits_others(self) -> bool:
        """Whether an attacked encoder comes from elsewhere, so that somebody may have fitted images to its views."""
        return any(isinstance(self.encoders[attack.target], ForeignConfig) for attack in self.attacks)

    def references_of(self, attack: AttackConfig) -> tuple[str, ...]:
        """The encoders on which an attack is repeated, because they saw none of the samples that it is judged on.

        A trial of a search has none: its attacks are compared with those on the plain encoder. Where `validity` names
        none, it is the first that has what the attack needs.
        """
        fitting = [name for name, lack in self._references(attack) if not lack]
        return tuple(fitting if self.validity.references else fitting[:1])

    @property
    def classified_on(self) -> tuple[str, ...]:
        """The references on whose embeddings the audited images are classified; by lot this check is of no use."""
        return self.references_of(self.attacks[self.validity.attack]) if self.by == CHOICE else ()

    def passed_over(self, attack: AttackConfig) -> tuple[str, str] | None:
        """First encoder rejected as a reference for an attack, and the missing capability; None: none is."""
        first = next(self._references(attack), None)
        return first if first is not None and first[1] else None

    def _references(self, attack: AttackConfig) -> Iterator[tuple[str, str]]:
        """Encoders that saw none of the target's samples, the preferred first, each with why it is unfit, if it is."""
        if self.fold != "all":
            return
        named = [one for name in self.validity.references for one in self.families.get(name, (name,))]
        objective = self.encoders[attack.target].objective
        kin = sorted(self.encoders, key=lambda name: self.encoders[name].objective != objective)
        outputs = set(self.outputs_of(attack))
        for name in named or [attack.reference, *kin]:
            if name not in self.encoders or name == attack.target:
                continue
            known = self.encoders[name].outputs
            if named or (self._saw_neither(name) and (known is None or outputs <= set(known))):
                silent = attack.reads_captions and not may_read_captions(self.encoders[name])
                yield name, "has no text tower" if silent else why_unfit(attack, self.encoders[name])

    def outputs_on(self, name: str, outputs: Sequence[str]) -> tuple[str, ...]:
        """The outputs of an encoder in place of some of the target's: the same, or the backbone where it lacks them."""
        known = self.encoders[name].outputs
        return tuple(dict.fromkeys(one if known is None or one in known else "backbone" for one in outputs))

    def is_trained(self, name: str) -> bool:
        """Whether an encoder has learned anything: an untrained reference shows little of what others see."""
        first = self.encoders[self.chain(name)[-1]]
        return not (isinstance(first, ForeignConfig) and first.saw_nothing) or len(self.chain(name)) > 1

    def _saw_neither(self, name: str) -> bool:
        """Whether an encoder surely saw no audited sample: trained here on others, or with fresh weights."""
        first = self.encoders[self.chain(name)[-1]]
        known = first.saw_nothing if isinstance(first, ForeignConfig) else True
        return known and not self.members_of(name) & {*self.audited, *KNOWN_ROLES}

    def utility_roles(self, encoder: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(bank, test) roles of the utility of an encoder; it was trained on none of the tested ones by default."""
        trained = without_canaries(self.encoders[encoder].train_on)
        bank = self.utility.bank or ((BANK_ROLE,) if BANK_ROLE in self.data.roles else trained)
        drawn = [name for name, role in self.data.roles.items() if role.source_name in self.data.sources]
        unseen = tuple(name for name in drawn if name not in {*trained, *bank, CANARY_ROLE})
        test = self.utility.test or ((TEST_ROLE,) if TEST_ROLE in self.data.roles else unseen)
        return (bank, test) if bank else ((), ())

    def classifier_roles(self, name: str) -> tuple[tuple[str, ...], ...]:
        """(trained on, unseen) roles on which a classifier trained here is tested; nothing for other encoders."""
        encoder = self.encoders[name]
        if not isinstance(encoder, TrainedConfig) or "logits" not in encoder.outputs:
            return ()
        _, test = self.utility_roles(name)
        return without_canaries(encoder.train_on), tuple(role for role in test if role not in self.members_of(name))

    def whole_roles(self, roles: Sequence[str]) -> list[str]:
        """Some roles without the parts of audited ones, which are queried anyway."""
        return [role for role in roles if self.data.roles[role].source_name not in self.audited]
