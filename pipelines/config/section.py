"""What the sections of a config have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from mi_core.checks import check_choice


class Section(BaseModel):
    """A part of a config: it never changes, and an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def one_of(field: str, allowed: Iterable[str]) -> AfterValidator:
    """Text of a field that has to be one of the allowed names."""
    return AfterValidator(lambda value: check_choice(field, value, allowed))


def _as_list(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_list)]
"""Several names; a single one may stand without a list."""
