"""The base of all sections of a config."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from mi_core.checks import check_choice
from pipelines.config.paths import shortened


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


_LISTED = BeforeValidator(
    lambda value: (value,) if isinstance(value, str) else value, json_schema_input_type=str | tuple[str, ...]
)
Names = Annotated[tuple[str, ...], _LISTED]
"""Several names; a single one may stand without a list."""
_OF_TRAINING = ("checkpoints", "save_every", "start")  # what a defended encoder does not have of the one it defends
_FARTHEST = 100  # encoders that one is ``like``, each like the next
_MOST_HALVES = 1024


def spell_out(encoders: dict[str, Any]) -> dict[str, Any]:
    """The encoders of a config as written, one by one.

    ``like: other`` stands for the settings of the other encoder, overridden by the own ones; ``defends: other`` for
    those of the other encoder, from which it starts; ``halves: N`` for N encoders.

    Raises:
        ValueError: there is no such other, or they go in a circle.
    """

    def stated(name: str, trail: tuple[str, ...], word: str = "like") -> dict[str, Any]:
        if name not in encoders:
            raise ValueError(f"{word} = {name!r}, allowed: {', '.join(encoders)}")
        if len(trail) > _FARTHEST:
            raise ValueError(f"{word} = {name!r}: more than {_FARTHEST} encoders follow each other; name the first")
        if name in trail:
            raise ValueError(f"{word} goes in a circle: {' -> '.join((*trail, name))}")
        own = {key: value for key, value in encoders[name].items() if key != "like"}
        model = encoders[name].get("like")
        return own if model is None else {**stated(model, (*trail, name)), **own}

    def resolve(name: str, trail: tuple[str, ...] = ()) -> dict[str, Any]:
        own = stated(name, trail, "defends") if trail else stated(name, ())
        base = own.get("defends")
        if base is None:
            return own
        whole = resolve(base, (*trail, name))
        return {**{key: value for key, value in whole.items() if key not in _OF_TRAINING}, "start": base, **own}

    resolved = {name: resolve(name) for name in encoders}
    return {name: settings for family, whole in resolved.items() for name, settings in _halves(family, whole)}


def _halves(family: str, settings: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """``halves: N`` stands for N encoders ``family-0`` ..., each trained on a random half of the same samples."""
    if "halves" not in settings:
        return [(family, settings)]
    count = settings["halves"]
    if not isinstance(count, int) or not 2 <= count <= _MOST_HALVES or count % 2:
        raise ValueError(f"encoders.{family}.halves = {shortened(count)}, allowed: an even number, 2 to {_MOST_HALVES}")
    own = {key: value for key, value in settings.items() if key != "halves"}
    return [(f"{family}-{number}", {**own, "half": number}) for number in range(count)]
