"""The section ``report`` of a config."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from pipelines.config.sections.section import Section


class ReportConfig(Section):
    """The use of a report once it is written."""

    after: str | None = Field(
        default=None, min_length=1, description="what gets it: python:module:function, or a command"
    )
    trust_code: bool = Field(default=False, description="run the code that after names")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.after is not None and not self.trust_code:
            raise ValueError(f"report.after = {self.after!r} runs code; set report.trust_code=true if you trust it")
        return self
