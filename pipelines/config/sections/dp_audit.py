"""The section ``dp_audit`` of a config: a promise of differential privacy, held against the canaries of the run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from pipelines.config.sections.section import Section

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
    guesses: tuple[int, ...] = Field(
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

    @field_validator("guesses", mode="before", json_schema_input_type=int | tuple[int, ...])
    @classmethod
    def _one_number(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int) else value

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
