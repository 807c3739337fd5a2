"""What a run is: the sections of its config together, checked against each other, and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from mi_core.augmentations import AUGMENTATIONS
from mi_core.features import consumes
from pipelines.config.attacks import (
    ATTACK_CONFIGS,
    BANK_ROLE,
    CANDIDATE_ROLES,
    KNOWN,
    KNOWN_ROLES,
    NONMEMBERS,
    SHADOW_ROLES,
    TARGET_ROLES,
    UNLABELLED,
    UNLABELLED_ROLE,
    AttackConfig,
    AttributeInferenceConfig,
    UtilityConfig,
    ValidityConfig,
    each_attack,
    each_inference,
)
from pipelines.config.data import DataConfig
from pipelines.config.defenses import DefenseConfig, with_defenses
from pipelines.config.encoders import EncoderConfig, ForeignConfig, TrainedConfig
from pipelines.config.limits import BudgetConfig, PricesConfig, ResourcesConfig
from pipelines.config.parameters import complete
from pipelines.config.published import with_published
from pipelines.config.queries import QueriesConfig, Recipe, crops_alone
from pipelines.config.shape import check_shape
from pipelines.config.shorthands import spell_out
from pipelines.config.tuning import TuneConfig

if TYPE_CHECKING:
    AnyAttack = AttackConfig
else:
    AnyAttack = Annotated[Union[tuple(ATTACK_CONFIGS.values())], Field(discriminator="attack")]  # noqa: UP007


class RunConfig(BaseModel):
    """A whole run. Each section stands beside the stage that reads it."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)  # which may hold a secret

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
    checkpoints: Literal["all", "last"] = Field(
        default="all", description="checkpoints that are attacked and measured; points of a sweep: the last alone"
    )
    budget: BudgetConfig = BudgetConfig()
    prices: PricesConfig = PricesConfig()
    sweep: dict[str, tuple[dict[str, Any], ...]] = Field(
        default_factory=dict, description="fields to repeat the run with, see pipelines.config.sweeps"
    )
    tune: TuneConfig | None = Field(default=None, description="parameters of a defense to search for")
    fold: Literal["all", "search", "final"] = Field(
        default="all",
        description="images that are audited, and on which utility is tested; trials of a search: one half of them",
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

    @field_validator("attacks", mode="before")
    @classmethod
    def _spell_out(cls, value: Any) -> Any:
        return each_attack(value) if isinstance(value, list | tuple) else value

    @field_validator("attribute_inference", mode="before")
    @classmethod
    def _spell_out_inferences(cls, value: Any) -> Any:
        return each_inference(value) if isinstance(value, list | tuple) else value

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) != len(value):
            raise ValueError(f"seeds {list(value)} repeat; each seed runs once")
        return value

    def members_of(self, name: str) -> set[str]:
        """Roles that an encoder was trained on, with those of the encoders it started from."""
        seen: list[str] = []
        roles: set[str] = set()
        step: str | None = name
        while step is not None:
            if step in seen:
                raise ValueError(f"encoders.{name}.start goes in a circle: {' -> '.join((*seen, step))}")
            if step not in self.encoders:
                raise ValueError(f"encoders.{seen[-1]}.start = {step!r}, allowed: {', '.join(self.encoders)}")
            seen.append(step)
            encoder = self.encoders[step]
            roles |= set(encoder.train_on)
            step = encoder.start if isinstance(encoder, TrainedConfig) else None
        return roles

    def member_roles(self, name: str) -> tuple[str, ...]:
        """Roles whose membership is asked of an encoder: what it was trained on.

        Of a classifier that was built with other data on an encoder: what that was trained on.
        """
        encoder = self.encoders[name]
        members = all(role.endswith("-member") for role in encoder.train_on)
        start = encoder.start if isinstance(encoder, TrainedConfig) and not members else None
        return encoder.train_on if start is None else self.member_roles(start)

    def attacked_epochs(self, encoder: str) -> tuple[int, ...]:
        """Checkpoints of an encoder that are attacked and whose utility is measured."""
        kept = self.encoders[encoder].kept_epochs
        return kept if self.checkpoints == "all" else kept[-1:]

    def epoch_beside(self, encoder: str, epoch: int) -> int:
        """The checkpoint of another encoder that stands beside one of the target: the same epoch, else the last."""
        kept = self.encoders[encoder].kept_epochs
        return epoch if epoch in kept else kept[-1]

    def queried_epochs(self, encoder: str) -> tuple[int, ...]:
        """Checkpoints that are queried: those attacked, and those that stand beside an attacked one."""
        attacked = {epoch for attack in self.attacks for epoch in self.attacked_epochs(attack.target)}
        beside = {self.epoch_beside(encoder, epoch) for epoch in attacked}
        return tuple(sorted({*self.attacked_epochs(encoder), *beside}))

    @property
    def audited(self) -> tuple[str, str]:
        """The two roles that attacks tell apart: the one that may be members first."""
        candidates = set(CANDIDATE_ROLES) <= set(self.data.roles)
        return CANDIDATE_ROLES if candidates else TARGET_ROLES

    @property
    def asked(self) -> bool:
        """Whether candidates are audited: nobody knows which of them are members, so only the AUC means something."""
        return self.audited == CANDIDATE_ROLES

    @property
    def same_samples(self) -> bool:
        """Whether every seed audits the samples of another one: whole sources that the user gives, on either side."""
        return any(not self.data.roles[role].drawn for role in self.audited)

    def shadows(self, attack: AttackConfig) -> tuple[str, ...]:
        """Encoders of the attacker's own that an attack is fitted on: one, several trained on halves, or none."""
        if attack.reference in self.encoders:
            return (attack.reference,)
        return tuple(
            name
            for name, encoder in self.encoders.items()
            if isinstance(encoder, TrainedConfig)
            and encoder.half is not None
            and name == f"{attack.reference}-{encoder.half}"
        )

    def reference_roles(self, attack: AttackConfig) -> tuple[str, ...]:
        """Roles that an attack is fitted on; those of non-members end so.

        A shadow's non-members have the name of what it was trained on, ``x-nonmember`` beside ``x-member``.
        """
        fixed = {KNOWN: KNOWN_ROLES, NONMEMBERS: KNOWN_ROLES[1:], UNLABELLED: (UNLABELLED_ROLE, KNOWN_ROLES[1])}
        if attack.reference in fixed:
            return fixed[attack.reference]
        if attack.reference not in self.encoders:
            return self.audited
        trained = self.member_roles(attack.reference)
        unfit = [role for role in trained if not role.endswith("-member")]
        if unfit:
            raise ValueError(
                f"reference = {attack.reference!r} was trained on {unfit[0]!r}: call it x-member, and give x-nonmember"
            )
        pairs = [(role, role.removesuffix("-member") + "-nonmember") for role in trained]
        return tuple(role for pair in pairs for role in pair) or SHADOW_ROLES

    def fitted_on_target(self, attack: AttackConfig) -> tuple[str, ...]:
        """Roles of the target that an attack is fitted on and not judged on; none where it has shadows."""
        return () if self.shadows(attack) else self.reference_roles(attack)

    def outputs_of(self, attack: AttackConfig) -> tuple[str, ...]:
        """Outputs of an encoder that an attack reads."""
        return attack.outputs or attack.method().outputs or self.queries.outputs

    def recipe(self, attack: AttackConfig) -> Recipe:
        """The views that an attacker draws, from whichever encoder: those of her shadow's training, as she knows it.

        If the shadow was trained by another algorithm than the target she knows nothing of its views but crops.
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
        return shadows[0] if shadows and any(consumes(need) == "adversarial" for need in attack.needs()) else None

    def auxiliary_roles(self, inference: AttributeInferenceConfig) -> tuple[str, ...]:
        """Roles whose attribute an attacker knows."""
        return inference.auxiliary or self.encoders[inference.target].train_on

    @property
    def primary_output(self) -> str:
        """The output that the verdict rests on."""
        return self.validity.output or self.queries.outputs[0]

    @property
    def measured(self) -> tuple[str, ...]:
        """Encoders whose utility is measured: all, and in a trial those attacked."""
        return tuple(self.encoders) if self.fold == "all" else tuple(dict.fromkeys(one.target for one in self.attacks))

    def control_of(self, attack: AttackConfig) -> str | None:
        """The encoder on which an attack is repeated as a control: it saw none of the target's samples.

        A trial has none: its attacks are compared with those on the plain encoder.
        """
        if self.fold != "all":
            return None
        kin = sorted(
            self.encoders, key=lambda name: self.encoders[name].objective != self.encoders[attack.target].objective
        )
        candidates = [self.validity.control] if self.validity.control else [attack.reference, *kin]
        outputs = set(self.outputs_of(attack))
        for name in candidates:
            if name not in self.encoders or name == attack.target:
                continue
            known = self.encoders[name].outputs
            fits = self.validity.control or (self._saw_neither(name) and (known is None or outputs <= set(known)))
            if fits:
                return name
        return None

    def _saw_neither(self, name: str) -> bool:
        """Whether an encoder surely saw no audited sample: trained here on others, or with fresh weights."""
        encoder = self.encoders[name]
        if isinstance(encoder, ForeignConfig):
            return encoder.saw_nothing
        start = encoder.start is None or self._saw_neither(encoder.start)
        return start and not self.members_of(name) & {*self.audited, *KNOWN_ROLES}

    def utility_roles(self, encoder: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(bank, test) roles of the utility of an encoder; tested are only roles it was not trained on."""
        trained = self.encoders[encoder].train_on
        labelled = tuple(role for role in (BANK_ROLE,) if role in self.data.roles)
        bank = self.utility.bank or labelled or trained
        drawn = [name for name, role in self.data.roles.items() if role.source_name in self.data.sources]
        unseen = tuple(name for name in drawn if name not in {*trained, *bank})
        test = self.utility.test or (("downstream-test",) if "downstream-test" in self.data.roles else unseen)
        return (bank, test) if bank else ((), ())

    def classifier_roles(self, name: str) -> tuple[tuple[str, ...], ...]:
        """(trained on, unseen) roles on which a classifier trained here is judged; nothing for other encoders."""
        encoder = self.encoders[name]
        if not isinstance(encoder, TrainedConfig) or "logits" not in encoder.outputs:
            return ()
        _, test = self.utility_roles(name)
        return encoder.train_on, tuple(role for role in test if role not in self.members_of(name))

    def whole_roles(self, roles: Sequence[str]) -> list[str]:
        """Those of some roles that are not parts of audited ones, which are queried anyway."""
        return [role for role in roles if self.data.roles[role].source_name not in self.audited]
