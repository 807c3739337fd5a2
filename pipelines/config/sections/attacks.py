"""The sections ``attacks``, ``attribute_inference``, ``utility`` and ``validity`` of a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, create_model, field_validator, model_validator

from mi_core.adoption.code import imported
from mi_core.attacks import ATTACKS
from mi_core.attacks.attribute_inference import AttributeInferenceParameters
from mi_core.attacks.base import Attack
from mi_core.checks import ConfigError, check_choice
from mi_core.encoders.checkpoint import OUTPUTS
from mi_core.features import Measure
from mi_core.plugins import class_fault, code_sha256
from mi_core.validity.verdict import FACTOR
from pipelines.config.paths import check_name
from pipelines.config.sections.parameters import build, combinations, complete, parameter_fields
from pipelines.config.sections.section import Names, Section, one_of

KNOWN, NONMEMBERS, AUDITED = SAMPLES = ("known", "nonmembers", "audited")
SHADOW, SHADOWS = "shadow", "shadows"
PYTHON = "python:"


class AttackConfig(Section):
    """One attack on one encoder; the parameters of its method stand beside these fields."""

    attack: str
    target: str = Field(default="target", description="encoder attacked")
    reference: str = Field(
        default="shadow",
        description="what it is fitted on: an encoder, encoders made by `halves`, known, nonmembers, or audited",
    )
    before: str | None = Field(
        default=None, description="earlier version of the target, for attacks that compare the two"
    )
    views: int | None = Field(default=None, ge=2, description="views it uses, the first of queries.views; default: all")
    outputs: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="outputs it reads; default: those of queries.outputs"
    )
    shadows: int | None = Field(
        default=None, ge=1, description="encoders made by `halves` that it is fitted on, the first; default: all"
    )
    reference_count: int | None = Field(
        default=None, ge=1, description="samples of each role it is fitted on, by rank of a hash; default: all"
    )
    count: int | None = Field(
        default=None, ge=1, description="samples of each role that are queried, by rank of a hash; default: all"
    )

    def method(self) -> type[Attack]:
        """The attack's class."""
        return ATTACKS[self.attack]

    def parameters(self) -> Any:
        """The attack's own parameters."""
        method = self.method()
        return build(method.Parameters, {field.name: getattr(self, field.name) for field in fields(method.Parameters)})

    @cached_property
    def needs(self) -> tuple[Measure, ...]:
        """Membership features the attack consumes; a copy has them too, as no copy changes a parameter."""
        return tuple(self.method()(self.parameters()).needs)

    @property
    def readable(self) -> tuple[str, ...] | None:
        """The only outputs that it can read, some of them because of its parameters; None: any."""
        only = tuple(dict.fromkeys(measure.output for measure in self.needs if measure.output))
        return self.method().outputs or only or None

    @property
    def draws_views(self) -> bool:
        """Tell whether it is fed by augmented views."""
        return any(measure.shares_views for measure in self.needs)

    @cached_property
    def bank_size(self) -> int:
        """Images of the role ``anchor`` that it compares every sample with, 0 for none."""
        return self.method()(self.parameters()).bank_size

    @model_validator(mode="after")
    def _check(self) -> AttackConfig:
        for output in self.outputs or ():
            check_choice("outputs", output, self.readable or OUTPUTS)
        if self.views is not None and not self.draws_views:
            raise ValueError(f"views = {self.views}, but {self.attack} draws no views")
        kinds = {self.reference} if self.reference in SAMPLES else {SHADOW, SHADOWS}  # the encoders decide which
        if not kinds & self.method().reference:
            fits = " or ".join(sorted(self.method().reference))
            raise ValueError(f"{self.attack} cannot be fitted on {self.reference!r}; it needs reference: {fits}")
        if self.method().updated and self.before is None:
            raise ValueError(f"{self.attack} compares two versions of an encoder: name the earlier one as before")
        if not self.method().updated and self.before is not None:
            raise ValueError(f"before = {self.before!r}, but {self.attack} reads one encoder; leave before out")
        if self.count is not None and (self.reference_count or 0) > self.count:
            raise ValueError(f"reference_count = {self.reference_count} exceeds count = {self.count}; raise count")
        self.parameters()
        return self


class CodeAttackConfig(AttackConfig):
    """An attack of a module that can be imported; the parameters of its class stand beside these fields."""

    model_config = ConfigDict(extra="allow")

    code: str = Field(description="where its class is: python:module:Class; attack is its name")
    trust_code: bool = Field(default=False, description="run the code of the module")
    code_sha256: str = Field(default="", description="digest of the code of the module's package; it is filled in")

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        """All parameters with their defaults, and the digest of the code: where it changes, another run begins."""
        if not isinstance(value, dict):
            return value
        method = trusted_class(value)
        if value["attack"] != method.name:
            raise ValueError(f"attack = {value['attack']!r}, but {value['code']} calls itself {method.name!r}")
        own = {name: one for name, one in value.items() if name not in cls.model_fields}
        code = code_sha256([str(value["code"]).split(":")[1]])
        return {**value, **complete(method.Parameters, own), "code_sha256": code}

    def method(self) -> type[Attack]:
        """The attack's class."""
        return trusted_class({"code": self.code, "trust_code": self.trust_code})

    def parameters(self) -> Any:
        """The attack's own parameters."""
        return build(self.method().Parameters, self.model_extra or {})


def trusted_class(entry: Mapping[str, Any]) -> type[Attack]:
    """The class that ``code`` of an entry of `attacks` names.

    Raises:
        ConfigError: the entry does not trust the code, or there is no such attack, or none that is complete.
        ValueError: the name of the attack is taken or cannot name a file.
    """
    code = str(entry["code"])
    place = f"attack = {code!r}"
    if entry.get("trust_code") is not True:
        raise ConfigError(f"{place} runs code; set trust_code: true beside it if you trust it")
    _, found = imported("attack", code.removeprefix(PYTHON))
    if fault := class_fault(found, Attack):
        raise ConfigError(f"{place} {fault}")
    method: type[Attack] = found
    if not is_dataclass(method.Parameters):
        raise ConfigError(f"{place}: its Parameters are no dataclass")
    known = [field.name for field in fields(method.Parameters) if field.name in CodeAttackConfig.model_fields]
    if known:
        raise ConfigError(f"{place}: its parameter {known[0]} has the name of a setting of every attack; rename it")
    if method.name in ATTACKS:
        raise ConfigError(f"{place}: its name {method.name!r} is taken; rename it")
    check_name(f"{place}: its name", method.name)
    return method


def _attack_model(name: str) -> type[AttackConfig]:
    own = {"attack": (Literal[name], name), **parameter_fields(ATTACKS[name].Parameters)}
    return create_model(name, __base__=AttackConfig, __module__=__name__, **own)


def each_attack(entries: Sequence[Any]) -> list[Any]:
    """Attacks one by one: an entry with lists under attack, target or reference stands for all combinations.

    One that names ``python:module:Class`` gets the name of that class.
    """
    return list(map(_named, combinations(entries, ("attack", "target", "reference"))))


def _named(entry: Any) -> Any:
    code = entry.get("attack") if isinstance(entry, dict) else None
    if not isinstance(code, str) or not code.startswith(PYTHON):
        return entry
    return {**entry, "code": code, "attack": trusted_class({**entry, "code": code}).name}


ATTACK_CONFIGS: dict[str, type[AttackConfig]] = {name: _attack_model(name) for name in ATTACKS}


class ValidityConfig(Section):
    """The result that the verdict rests on, and the reference encoders beside it."""

    attack: int = Field(default=0, ge=0, description="primary attack, as its position in `attacks`")
    output: str | None = Field(
        default=None, description="primary output; default: the first of queries.outputs that it reads"
    )
    references: Names = Field(
        default=(),
        description="encoders that saw neither group, on which the attack is repeated; or one made by `halves` of "
        "candidates and controls, where an image counts on those that did not see it; default: an encoder of the "
        "config that saw neither",
    )
    factor: float = Field(
        default=FACTOR,
        ge=1,
        description="groups that somebody chose: how many times as strong as anything the checks could have missed "
        "a hidden difference has to be before the verdict is leak",
    )
    bound: float | None = Field(
        default=None,
        gt=0.5,
        le=1,
        description="AUC that all attacks on the primary output are to stay under: the report says whether their upper "
        "95 % limits do; default: none",
    )
    fdr: float = Field(
        default=0.05, gt=0, lt=1, description="false discovery rate at which single candidates are flagged"
    )


class _Inference(Section):
    attribute: str = Field(description="attribute inferred, of data.attributes")
    target: str = Field(default="target", description="encoder whose embeddings are seen")
    output: Annotated[str, one_of("output", OUTPUTS)] = Field(default="backbone", description="embedding seen")
    auxiliary: Names = Field(
        default=(), description="roles whose attribute the attacker knows; default: those of the encoder's members"
    )
    test: Names = Field(default=("target-nonmember",), min_length=1, description="roles attacked")
    share: float = Field(default=1.0, gt=0, le=1, description="share of the auxiliary data that is used")

    @model_validator(mode="after")
    def _check(self) -> _Inference:
        self.parameters()
        return self

    def parameters(self) -> AttributeInferenceParameters:
        """The attack's own parameters."""
        own = {field.name: getattr(self, field.name) for field in fields(AttributeInferenceParameters)}
        return build(AttributeInferenceParameters, own)


if TYPE_CHECKING:
    AttributeInferenceConfig = _Inference
else:
    AttributeInferenceConfig = create_model(
        "AttributeInferenceConfig",
        __base__=_Inference,
        __module__=__name__,
        **parameter_fields(AttributeInferenceParameters),
    )


def each_inference(entries: Sequence[Any]) -> list[Any]:
    """Inferences one by one: an entry with lists under attribute, target or output stands for all combinations."""
    return combinations(entries, ("attribute", "target", "output"))


_LISTED = BeforeValidator(
    lambda value: (value,) if isinstance(value, int) else value, json_schema_input_type=int | tuple[int, ...]
)
"""A single number may stand without a list."""


class UtilityConfig(Section):
    """How useful an encoder is: kNN and a linear probe on the backbone's embedding of clean images."""

    k: Annotated[tuple[Annotated[int, Field(ge=1)], ...], _LISTED] = Field(
        default=(20,), min_length=1, description="neighbours; several are tried one by one"
    )
    bank: tuple[str, ...] = Field(
        default=(), description="labelled roles; default: downstream-train, else those of the encoder's members"
    )
    test: tuple[str, ...] = Field(default=(), description="roles tested; default: downstream-test, else all unseen")


APPROXIMATE, GAUSSIAN = "approximate", "gaussian"


class DpAuditConfig(Section):
    """The promise that is tested, and the guesses; all of it is fixed before the first query to the target.

    The attack scores all canaries of the target: on the encoder that is trained on canary-in, and on each defense of
    it. Canaries with the highest scores are guessed in, those with the lowest out.
    """

    attack: int = Field(default=0, ge=0, description="attack that scores the canaries, as its position in `attacks`")
    output: str | None = Field(default=None, description="output that it reads; default: its first one")
    epsilon: float | None = Field(
        default=None,
        gt=0,
        description="promised epsilon of an image that is there or not (leave-one-out), as a coin leaves an image "
        "out; of the defended encoders if there are any; default: what each defense promises of it",
    )
    delta: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="promised delta; default: 0 beside epsilon, else that of each defense, which then is not given",
    )
    guesses: Annotated[tuple[int, ...], _LISTED] = Field(
        default=(),
        description="number of guesses, half of them in; several share the error (Bonferroni); default: 10, 20, 50 and "
        "100 % of the canaries",
    )
    confidence: float = Field(default=0.95, gt=0, lt=1, description="of the lower bound")
    family: Literal["approximate", "gaussian"] = Field(
        default="approximate",
        description="approximate: any (epsilon, delta); gaussian: the promise is that of Gaussian noise on a fixed "
        "sensitivity, of which the same guesses show more; defenses with other noise get the approximate one",
    )

    @field_validator("guesses")
    @classmethod
    def _some_of_each(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(count < 1 for count in value) or len(set(value)) < len(value):
            raise ValueError(f"guesses = {list(value)}, allowed: numbers from 1, each once")
        return value

    @model_validator(mode="after")
    def _check(self) -> DpAuditConfig:
        if self.family == GAUSSIAN and self.epsilon is not None and not self.delta:
            raise ValueError("family = 'gaussian' has no epsilon at delta = 0; give delta")
        return self
