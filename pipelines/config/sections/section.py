"""The base of all sections of a config."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from mi_core.checks import check_choice


class Section(BaseModel):
    """A part of a config: it never changes, and an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class _OneOf(AfterValidator):
    """A validator that also names its choices in the JSON Schema."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "enum": self.func.keywords["allowed"]}  # type: ignore[union-attr]


def one_of(field: str, allowed: Iterable[str]) -> AfterValidator:
    """Text of a field that has to be one of the allowed names."""
    return _OneOf(partial(check_choice, field, allowed=list(allowed)))


def _as_list(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_list, json_schema_input_type=str | tuple[str, ...])]
"""Several names; a single one may stand without a list."""
