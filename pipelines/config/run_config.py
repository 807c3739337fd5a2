"""A run: the sections of its config together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from mi_core.adoption.model_folder import folder_kind
from mi_core.adoption.published import PUBLISHED, check_architecture, published
from mi_core.checks import ConfigError
from pipelines.config.paths import check_name, shortened
from pipelines.config.sections import attacks as attack_sections
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.defenses import DefenseConfig, with_defenses
from pipelines.config.sections.encoders import EncoderConfig
from pipelines.config.sections.limits import BudgetConfig, PricesConfig, ReportConfig, ResourcesConfig
from pipelines.config.sections.queries import QueriesConfig
from pipelines.config.sections.section import Section, spell_out
from pipelines.config.sections.tuning import TuneConfig

_CODE = "python:module:Class"


def _tag(value: Any) -> Any:
    entry = vars(value) if isinstance(value, attack_sections.AttackConfig) else value
    return _CODE if "code" in entry else entry["attack"]


if TYPE_CHECKING:
    AnyAttack = attack_sections.AttackConfig
else:
    _MODELS = attack_sections.ATTACK_CONFIGS | {_CODE: attack_sections.CodeAttackConfig}
    AnyAttack = Annotated[
        Union[tuple(Annotated[model, Tag(name)] for name, model in _MODELS.items())],  # noqa: UP007
        Discriminator(_tag),
    ]


class RunConfig(Section):
    """A whole run."""

    model_config = ConfigDict(hide_input_in_errors=True)  # it may hold a secret

    name: str = Field(min_length=1)
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1, description="the whole chain once per seed")
    data: DataConfig
    encoders: dict[str, EncoderConfig] = Field(min_length=1)
    queries: QueriesConfig = QueriesConfig()
    attacks: tuple[AnyAttack, ...] = Field(min_length=1)
    attribute_inference: tuple[attack_sections.AttributeInferenceConfig, ...] = Field(
        default=(), description="attributes that an attacker infers from embeddings"
    )
    defenses: tuple[DefenseConfig, ...] = Field(
        default=(), description="defenses of what is attacked, each with all attacks on it"
    )
    utility: attack_sections.UtilityConfig = attack_sections.UtilityConfig()
    validity: attack_sections.ValidityConfig = attack_sections.ValidityConfig()
    dp_audit: attack_sections.DpAuditConfig | None = Field(
        default=None, description="a promise of differential privacy to hold against the role canary"
    )
    checkpoints: Literal["all", "last"] = Field(
        default="all", description="checkpoints that are attacked and measured; of the points of a sweep: the last"
    )
    budget: BudgetConfig = BudgetConfig()
    prices: PricesConfig = PricesConfig()
    sweep: dict[str, tuple[dict[str, Any], ...]] = Field(
        default_factory=dict, description="fields to repeat the run with, see pipelines.plan.load"
    )
    tune: TuneConfig | None = Field(default=None, description="parameters of a defense to search for")
    fold: Literal["all", "search", "final"] = Field(
        default="all",
        description="images on which attacks and utility are measured; in the trials of a search: one half of them",
    )
    resources: ResourcesConfig = ResourcesConfig()
    report: ReportConfig = ReportConfig()

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
        each = attack_sections.each_attack if info.field_name == "attacks" else attack_sections.each_inference
        return each(value) if isinstance(value, list | tuple) else value

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) != len(value):
            raise ValueError(f"seeds {list(value)} repeat; each seed runs once")
        return value

    def with_queries(self, **settings: Any) -> RunConfig:
        """The same run with other settings of its queries, which are not checked again."""
        return self.model_copy(update={"queries": self.queries.model_copy(update=settings)})

    def plain(self) -> dict[str, Any]:
        """The run as plain values, without its sweeps and its search."""
        return self.model_dump(mode="json", by_alias=True, exclude={"sweep", "tune"})


def with_published(raw: dict[str, Any]) -> dict[str, Any]:
    """A config whose data section decodes as the first loaded encoder's publisher does, if it names no image size.

    Raises:
        ValueError: that encoder's name or tag is unknown, or its package is missing.
    """
    data, encoders = raw.get("data"), raw.get("encoders")
    if not isinstance(data, dict) or not isinstance(encoders, dict) or data.get("image_size") is not None:
        return raw
    for name, settings in encoders.items():
        load = settings.get("load") if isinstance(settings, dict) else None
        if not isinstance(load, str) or load.partition(":")[0] not in PUBLISHED or folder_kind(load):
            continue
        own = {part: settings[part] for part in ("size", "interpolation") if settings.get(part) is not None}
        given = {part: value for part, value in data.items() if value is not None}
        try:
            check_architecture(load, channels=3, image_size=0)  # of these kinds the name alone is looked up
            found = published(load)
        except ConfigError as error:
            raise ValueError(f"encoders.{name}: {error}") from error
        assert found is not None
        return {**raw, "data": found.preprocessing.changed(own).decoding() | given}
    return raw


_ENTRIES = {
    "attacks": ("attack", "target", "reference"),
    "attribute_inference": ("attribute", "target", "output", "auxiliary", "test"),
    "defenses": ("defense", "of", "without"),
}
"""Sections that are lists: the fields of an entry that hold text, or a list of it."""
_ONE_TEXT = {
    "encoders": ("like", "defends", "start", "load", "objective"),
    "defenses": ("label", "beside", "attribute"),
}
_NEEDED = {"attacks": "attack", "attribute_inference": "attribute", "defenses": "defense"}
_SECTIONS = {"encoders": ("endpoint",), "defenses": ("settings", "outside")}
_TEXTS = ("train_on", "outside")  # of encoders


def check_shape(config: Mapping[str, Any]) -> None:
    """Check the shape that the shorthands of a config rest on; the models check all else.

    Raises:
        ValueError: a section, entry or name has a wrong type; the message names it and the allowed type.
    """
    if isinstance(config.get("name"), str):
        check_name("name", config["name"])
    for name, settings in _section("encoders", config.get("encoders") or {}).items():
        check_name("encoders", name)
        _check_entry(f"encoders.{name}", _section(f"encoders.{name}", settings), "encoders", _TEXTS)
    for listed, texts in _ENTRIES.items():
        entries = config.get(listed) or ()
        if not isinstance(entries, list | tuple):
            raise _wrong(listed, entries, "a list of entries, as [{...}, {...}]")
        for position, entry in enumerate(entries):
            place = f"{listed}.{position}"
            _check_entry(place, _section(place, entry), listed, texts)
            if not isinstance(entry, BaseModel) and _NEEDED[listed] not in entry:
                raise ValueError(f"{place}.{_NEEDED[listed]} is missing")


def _check_entry(place: str, entry: Mapping[str, Any], section: str, texts: Sequence[str]) -> None:
    for field in _ONE_TEXT.get(section, ()):
        if not isinstance(entry.get(field, ""), str | None):
            raise _wrong(f"{place}.{field}", entry[field], "text; put it in quotes")
    for field in _SECTIONS.get(section, ()):
        _section(f"{place}.{field}", entry.get(field) or {})
    for field in texts:
        value = entry.get(field)
        every = value if isinstance(value, list | tuple) else [value]
        if not all(isinstance(one, str | None) for one in every):
            raise _wrong(f"{place}.{field}", value, "text, or a list of it")


def _section(place: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, BaseModel):
        return {}
    if not isinstance(value, Mapping):
        raise _wrong(place, value, "a section of fields with values")
    for key in value:
        if not isinstance(key, str):
            raise _wrong(f"a key of {place}", key, "text; put it in quotes")
    return value


def _wrong(place: str, value: Any, allowed: str) -> ValueError:
    return ValueError(f"{place} = {shortened(value)}: allowed is {allowed}")
