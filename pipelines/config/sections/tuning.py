"""The section ``tune`` of a config: the parameters of a defense to search, and the goal.

    tune:
      search:
        defenses.0.settings.scale: {low: 0.001, high: 1.0, log: true}     # a range
        defenses.0.defense: [additive-logistic, additive-laplace]         # or some values
      trials: 32
      allowed: 0.6

Names are those of fields, as in a sweep. A field of an encoder that others are ``like`` changes in these too;
`with_fields` spells these fields out, so that a resolved config says the same as the one it came from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Literal

from pydantic import Field, model_validator

from pipelines.config.sections.section import Section

SEARCHED = ("defenses.", "encoders.")


class SearchConfig(Section):
    """The values that one parameter may take: a choice, or a range from low to high."""

    choice: tuple[str | int | float | bool, ...] = Field(default=(), description="values to choose from")
    low: float | None = Field(default=None, description="lowest value of a range")
    high: float | None = Field(default=None, description="highest value of a range")
    log: bool = Field(default=False, description="search the range on a logarithmic scale")
    integer: bool = Field(default=False, description="whole numbers only")
    fields: tuple[str, ...] = Field(default=(), description="fields that take the value; default: the one of its name")

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return {"choice": value} if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _check(self) -> SearchConfig:
        ranged = self.low is not None and self.high is not None
        if bool(self.choice) == ranged or (self.low is None) != (self.high is None):
            raise ValueError("give a list of values, or low and high")
        if self.choice and len(self.choice) < 2:
            raise ValueError("one value leaves nothing to search; give at least two")
        if self.low is not None and self.high is not None:
            if not self.low < self.high:
                raise ValueError(f"low = {self.low:g} is not below high = {self.high:g}")
            if self.log and self.low <= 0:
                raise ValueError(f"low = {self.low:g}, but a logarithmic range begins above 0")
            if self.integer and not (self.low.is_integer() and self.high.is_integer()):
                raise ValueError(f"low = {self.low:g}, high = {self.high:g}: not whole numbers")
        return self

    @property
    def ends(self) -> tuple[Any, Any]:
        """Two of its values: the lowest and the highest, or the first and the last."""
        if self.choice:
            return self.choice[0], self.choice[-1]
        assert self.low is not None
        assert self.high is not None
        return (int(self.low), int(self.high)) if self.integer else (self.low, self.high)


class TuneConfig(Section):
    """A search for the parameters of a defense: many trials, each measured on one half of the audited images."""

    search: dict[str, SearchConfig] = Field(min_length=1, description="fields of the config with the values to try")
    trials: int = Field(default=32, ge=1, description="trials in all; more may be asked for later")
    target: str | None = Field(
        default=None, description="defended encoder; default: the attacked one with the only defense"
    )
    plain: str | None = Field(
        default=None, description="encoder to compare its utility with; default: the one that it defends"
    )
    attacks: tuple[str, ...] = Field(default=(), description="attacks that count, by name; default: all on the target")
    metric: Literal["auc", "accuracy"] = Field(
        default="auc", description="of attacks; the upper end of its interval is the leak of membership"
    )
    hides: Literal["membership", "attributes"] = Field(
        default="membership",
        description="what leaks: membership, by the attacks that count, or attributes, by the accuracy of "
        "attribute_inference on the target",
    )
    utility: Literal["classifier", "linear", "knn"] | None = Field(
        default=None, description="measure of utility; default: classifier where there is one, else linear"
    )
    allowed: float = Field(default=0.6, ge=0, le=1, description="the largest leak of the chosen trial")
    weight: float | None = Field(
        default=None,
        ge=0,
        description="search for the least utility loss + weight x leak, and give up trials that are behind after some "
        "seeds; default: search both at once",
    )
    sampler: Literal["tpe", "nsga2", "random"] = Field(default="tpe", description="how Optuna proposes trials")
    seed: int = Field(default=0, ge=0, description="of the proposals")
    at_once: int = Field(default=1, ge=1, description="trials that run side by side")
    cpus: float = Field(default=1.0, gt=0, description="CPUs per trial, also its threads")
    gpus: float = Field(default=0.0, ge=0, description="GPUs per trial")

    @model_validator(mode="after")
    def _check(self) -> TuneConfig:
        for name in self.search:
            if not name.startswith(SEARCHED):
                raise ValueError(f"search.{name}: only fields of defenses and of encoders can be searched")
        return self

    def grid(self, done: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """All combinations of values that are not done; nothing where they are more than the trials."""
        choices = [one.choice for one in self.search.values()]
        if not all(choices) or math.prod(map(len, choices)) > self.trials:
            return []
        known = [record["parameters"] for record in done]
        every = [dict(zip(self.search, values, strict=True)) for values in product(*choices)]
        return [point for point in every if point not in known]

    def trials_left(self, done: Sequence[Mapping[str, Any]]) -> int:
        """Number of trials that are left."""
        choices = [one.choice for one in self.search.values()]
        most = math.prod(map(len, choices)) if all(choices) else self.trials
        return max(0, min(self.trials, most) - len(done))
