"""The section ``defenses`` of a config: every entry defends what is attacked, and repeats the attacks on that.

An attacker who knows of a defense defends her shadow in the same way before she fits her attack: an entry stands for
a defended encoder beside every attacked one and beside every shadow, and for all attacks and inferences on these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pipelines.config.attacks import CANDIDATE_ROLES, SHADOW, TARGET_ROLES, each_attack, each_inference
from pipelines.config.mistakes import told
from pipelines.config.names import shortened
from pipelines.config.parameters import MOST, combinations
from pipelines.config.shorthands import spell_out

AUDITED = (TARGET_ROLES[1], CANDIDATE_ROLES[1])  # a defense that has seen them would be judged on them
ELSEWHERE = ("load", "endpoint", "defends", "half", "halves")  # marks of encoders that an entry does not defend


class DefenseConfig(BaseModel):
    """One defense of what is attacked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    defense: str = Field(description="what is done to the encoders; several stand for an entry each")
    label: str = Field(default="", description="what it is called; default: the defense")
    settings: dict[str, Any] = Field(
        default_factory=dict, description="settings of the defense; a list stands for an entry per value"
    )
    epoch: int | None = Field(default=None, description="checkpoint that is served; default: the last")
    outside: dict[str, tuple[str, ...] | str] = Field(
        default_factory=dict,
        description="by encoder, roles of images that it was not trained on; default: those of shadows",
    )
    attribute: str | None = Field(default=None, description="attribute to hide, of data.attributes")
    of: tuple[str, ...] = Field(default=(), description="attacked encoders that are defended; default: all")
    without: tuple[str, ...] = Field(default=(), description="attacks that are not repeated on it")
    beside: str = Field(default="", description="label of the entry that it is compared with; default: no defense")

    @field_validator("label")
    @classmethod
    def _fit_for_names(cls, value: str) -> str:
        if not re.fullmatch(r"[\w.=-]*", value):
            raise ValueError(f"label = {shortened(value)}: allowed are letters, digits and . _ = -; give another label")
        return value

    @property
    def name(self) -> str:
        """What the defense is called."""
        return self.label or self.defense

    def on(self, encoder: str) -> str:
        """The name of an encoder with this defense."""
        return f"{encoder}+{self.name}"


def with_defenses(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as written with what its defenses stand for; without any it stays as it is.

    Raises:
        ValueError: two defenses share a name, or there is nothing to defend.
    """
    entries = [
        _entry(f"defenses.{number}", one) for number, one in enumerate(each_defense(config.get("defenses") or ()))
    ]
    spelled = dict(config)
    if entries:
        spelled["defenses"] = [entry.model_dump() for entry in entries]
    if (
        not entries
        or not isinstance(config.get("encoders"), dict)
        or not isinstance(config.get("attacks"), list | tuple)
    ):
        return spelled
    names = [entry.name for entry in entries]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"defenses: two are called {twice[0]!r}; give them labels")
    lost = [entry.beside for entry in entries if entry.beside and entry.beside not in names]
    if lost:
        raise ValueError(f"defenses: beside = {lost[0]!r}, labels are: {', '.join(names)}")
    before = spell_out(dict(config["encoders"]))
    made = {entry.on(name) for entry in entries for name in before}  # where the config has been spelled out before
    encoders = {name: settings for name, settings in before.items() if name not in made}
    attacks = [{"target": "target", "reference": SHADOW, **one} for one in each_attack(config["attacks"])]
    attacks = [one for one in attacks if one["target"] not in made]
    inferences = [
        one for one in each_inference(config.get("attribute_inference") or ()) if one.get("target") not in made
    ]
    named = {one.get("target", "target") for one in (*attacks, *inferences)} | {one["reference"] for one in attacks}
    mine = [name for name in encoders if name in named and not any(encoders[name].get(mark) for mark in ELSEWHERE)]
    if not mine:
        raise ValueError("defenses: no attacked encoder is trained here")
    spelled["encoders"], spelled["attacks"], spelled["attribute_inference"] = dict(encoders), list(attacks), inferences
    attacked = {one.get("target", "target") for one in (*attacks, *inferences)}
    for entry in entries:
        unknown = [name for name in entry.of if name not in attacked & set(mine)]
        if unknown:
            raise ValueError(f"defenses.of = {unknown[0]!r}, attacked and trained here: {', '.join(mine)}")
        left_out = [name for name in entry.without if name not in {one["attack"] for one in attacks}]
        if left_out:
            raise ValueError(f"defenses.without = {left_out[0]!r} is no attack of this config")
        asked = [
            one for one in attacks if (not entry.of or one["target"] in entry.of) and one["attack"] not in entry.without
        ]
        inferred = [one for one in inferences if not entry.of or one.get("target", "target") in entry.of]
        shadows = {one["reference"] for one in asked}
        for name in [name for name in mine if not entry.of or name in entry.of or name in shadows]:
            spelled["encoders"][entry.on(name)] = _defended(entry, name, encoders[name])
        spelled["attacks"] += _repeated(entry, asked, mine)
        spelled["attribute_inference"] = [*spelled["attribute_inference"], *_repeated(entry, inferred, mine)]
    return spelled


def _entry(place: str, entry: Any) -> DefenseConfig:
    try:
        return DefenseConfig.model_validate(entry)
    except ValidationError as error:
        allowed = sorted(DefenseConfig.model_fields)
        raise ValueError(f"{place}: {told(error, lambda _: allowed)}") from error


def each_defense(entries: Sequence[Any]) -> list[Any]:
    """Defenses one by one: lists under defense, epoch or a setting stand for all combinations, told by their labels."""
    spelled = []
    for entry in entries:
        settings = entry.get("settings") or {}
        varied = [name for name, value in settings.items() if isinstance(value, list | tuple)]
        listed = [name for name in ("defense", "epoch") if isinstance(entry.get(name), list | tuple)]
        every = combinations([{**entry, "settings": {}}], listed), combinations([settings], varied)
        if len(every[0]) * len(every[1]) > MOST:
            raise ValueError(f"{', '.join(listed + varied)}: their combinations are more than {MOST:,}")
        for one, chosen in product(*every):
            if listed or varied:
                values = {name: one[name] for name in listed if name != "defense"} | {
                    name: chosen[name] for name in varied
                }
                said = (f"{name}-{value}" for name, value in values.items())
                one = {**one, "label": "-".join([entry.get("label") or str(one.get("defense")), *said])}  # noqa: PLW2901
            spelled.append({**one, "settings": chosen} if "settings" in entry else one)
    return spelled


def _defended(entry: DefenseConfig, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    given = entry.outside.get(name)
    trained = settings.get("train_on", ())
    roles = [trained] if isinstance(trained, str) else list(trained)
    usual = [role.removesuffix("-member") + "-nonmember" for role in roles if str(role).endswith("-member")]
    usual = [role for role in usual if role not in AUDITED]
    own = {"defense": entry.defense, "settings": entry.settings, "epoch": entry.epoch, "attribute": entry.attribute}
    return {"defends": name, "outside": usual if given is None else given, **own}


def _repeated(entry: DefenseConfig, asked: Sequence[dict[str, Any]], mine: Sequence[str]) -> list[dict[str, Any]]:
    """Attacks or inferences on defended encoders, fitted on a shadow that is defended alike."""
    found = []
    for one in asked:
        target = one.get("target", "target")
        if target in mine:
            shadow = {"reference": entry.on(one["reference"])} if one.get("reference") in mine else {}
            found.append({**one, "target": entry.on(target), **shadow})
    return found
