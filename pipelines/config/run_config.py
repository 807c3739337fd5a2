"""A run: the sections of its config together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import ConfigDict, Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from pipelines.config.published import with_published
from pipelines.config.sections.attacks import (
    ATTACK_CONFIGS,
    AttackConfig,
    AttributeInferenceConfig,
    CodeAttackConfig,
    UtilityConfig,
    ValidityConfig,
    each_attack,
    each_inference,
)
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.defenses import DefenseConfig, with_defenses
from pipelines.config.sections.dp_audit import DpAuditConfig
from pipelines.config.sections.encoders import EncoderConfig
from pipelines.config.sections.limits import BudgetConfig, PricesConfig, ResourcesConfig
from pipelines.config.sections.queries import QueriesConfig
from pipelines.config.sections.report import ReportConfig
from pipelines.config.sections.section import Section
from pipelines.config.sections.shorthands import spell_out
from pipelines.config.sections.tuning import TuneConfig
from pipelines.config.shape import check_shape

_CODE = "python:module:Class"


def _tag(value: Any) -> Any:
    entry = vars(value) if isinstance(value, AttackConfig) else value
    return _CODE if "code" in entry else entry["attack"]


if TYPE_CHECKING:
    AnyAttack = AttackConfig
else:
    _MODELS = ATTACK_CONFIGS | {_CODE: CodeAttackConfig}
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
        default_factory=dict, description="fields to repeat the run with, see pipelines.plan.sweeps"
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
        each = each_attack if info.field_name == "attacks" else each_inference
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
