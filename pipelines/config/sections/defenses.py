"""The section ``defenses`` of a config: every entry defends the attacked encoders, and repeats the attacks on them.

An attacker who knows of a defense defends her shadow in the same way before she fits her attack. So an entry stands for
a defended encoder beside every attacked one and every shadow, and for all attacks and inferences on these. Where
``adaptive`` is false, shadows stay plain.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any

from pydantic import Field, ValidationError, field_validator

from mi_core.checks import check_choice
from pipelines.config.mistakes import first_mistake
from pipelines.config.paths import shortened
from pipelines.config.roles import CANDIDATE_ROLES, TARGET_ROLES, are_members, nonmembers_beside
from pipelines.config.sections.attacks import SHADOW, each_attack, each_inference
from pipelines.config.sections.encoders import TrainedConfig, kind_of
from pipelines.config.sections.parameters import MOST, combinations
from pipelines.config.sections.section import Section, spell_out

AUDITED = (TARGET_ROLES[1], CANDIDATE_ROLES[1])  # a defense that has seen them would be judged on them


class DefenseConfig(Section):
    """One defense of the attacked encoders."""

    defense: str = Field(description="name of the defense; several stand for an entry each")
    label: str = Field(default="", description="its name in results; default: the defense")
    settings: dict[str, Any] = Field(
        default_factory=dict, description="settings of the defense; a list stands for an entry per value"
    )
    epoch: int | None = Field(default=None, description="checkpoint that is defended; default: the last")
    outside: dict[str, tuple[str, ...] | str] = Field(
        default_factory=dict,
        description="by encoder, roles of images that it was not trained on; default: non-members beside its members",
    )
    attribute: str | None = Field(default=None, description="attribute to hide, of data.attributes")
    of: tuple[str, ...] = Field(default=(), description="attacked encoders that are defended; default: all")
    without: tuple[str, ...] = Field(default=(), description="attacks that are not repeated on it")
    adaptive: bool = Field(
        default=True,
        description="false: the attacker knows nothing of the defense, and fits her attacks on plain shadows",
    )
    beside: str = Field(default="", description="label of the entry that it is compared with; default: no defense")

    @field_validator("label")
    @classmethod
    def _fit_for_names(cls, value: str) -> str:
        if not re.fullmatch(r"[\w.=-]*", value):
            raise ValueError(f"label = {shortened(value)}: allowed are letters, digits and . _ = -; give another label")
        return value

    @property
    def name(self) -> str:
        """The name of the entry."""
        return self.label or self.defense

    def covers(self, encoder: str) -> bool:
        """Tell whether it defends an attacked encoder."""
        return not self.of or encoder in self.of

    def on(self, encoder: str) -> str:
        """The name of an encoder with this defense."""
        return f"{encoder}+{self.name}"


def with_defenses(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config with its defenses spelled out: defended encoders, and attacks and inferences on them.

    Raises:
        ValueError: two defenses share a name, or there is nothing to defend.
    """
    entries = [
        _entry(f"defenses.{number}", one) for number, one in enumerate(each_defense(config.get("defenses") or ()))
    ]
    spelled = dict(config)
    if not entries:
        return spelled
    spelled["defenses"] = [entry.model_dump() for entry in entries]
    if not isinstance(config.get("encoders"), dict) or not isinstance(config.get("attacks"), list | tuple):
        return spelled
    _check_names(entries)
    before = spell_out(dict(config["encoders"]))
    made = {entry.on(name) for entry in entries for name in before}  # a config may have been spelled out before
    encoders = {name: settings for name, settings in before.items() if name not in made}
    attacks = [{"reference": SHADOW, **one} for one in _on_others(each_attack(config["attacks"]), made)]
    inferences = _on_others(each_inference(config.get("attribute_inference") or ()), made)
    attacked = {one["target"] for one in (*attacks, *inferences)}
    named = attacked | {one["reference"] for one in attacks}
    plain = {name for name, one in encoders.items() if kind_of(one) is TrainedConfig and one.get("half") is None}
    defensible = [name for name in encoders if name in named & plain]
    if not defensible:
        raise ValueError("defenses: no attacked encoder is trained here")
    spelled |= {"encoders": dict(encoders), "attacks": list(attacks), "attribute_inference": list(inferences)}
    for entry in entries:
        unknown = [name for name in entry.of if name not in attacked & set(defensible)]
        if unknown:
            raise ValueError(f"defenses.of = {unknown[0]!r}, attacked and trained here: {', '.join(defensible)}")
        for name in entry.without:
            check_choice("defenses.without", name, {str(one["attack"]) for one in attacks})
        on_target = [one for one in attacks if entry.covers(one["target"]) and one["attack"] not in entry.without]
        inferred = [one for one in inferences if entry.covers(one["target"])]
        shadows = {one["reference"] for one in on_target} if entry.adaptive else set()
        for name in defensible:
            if name in shadows or (entry.covers(name) and (entry.adaptive or name in attacked)):
                spelled["encoders"][entry.on(name)] = _defended(entry, name, encoders[name])
        spelled["attacks"] += _repeated(entry, on_target, defensible)
        spelled["attribute_inference"] += _repeated(entry, inferred, defensible)
    return spelled


def _check_names(entries: Sequence[DefenseConfig]) -> None:
    names = [entry.name for entry in entries]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"defenses: two are called {twice[0]!r}; give them labels")
    for entry in entries:
        if entry.beside:
            check_choice("defenses.beside", entry.beside, names)


def _on_others(entries: Sequence[Mapping[str, Any]], made: Collection[str]) -> list[dict[str, Any]]:
    """Attacks or inferences with their targets, without those on defended encoders."""
    with_target = [{"target": "target", **one} for one in entries]
    return [one for one in with_target if one["target"] not in made]


def _entry(place: str, entry: Any) -> DefenseConfig:
    try:
        return DefenseConfig.model_validate(entry)
    except ValidationError as error:
        raise ValueError(f"{place}: {first_mistake(error, DefenseConfig)}") from error


def each_defense(entries: Sequence[Any]) -> list[Any]:
    """Defenses one by one: lists under defense, epoch or a setting stand for all combinations, each with a label."""
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
                label, values = entry.get("label") or str(one.get("defense")), {**one, **chosen}
                parts = (f"-{name}-{values[name]}" for name in [*listed, *varied] if name != "defense")
                one = {**one, "label": label + "".join(parts)}  # noqa: PLW2901
            spelled.append({**one, "settings": chosen} if "settings" in entry else one)
    return spelled


def _defended(entry: DefenseConfig, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    given = entry.outside.get(name)
    trained = settings.get("train_on", ())
    roles = [trained] if isinstance(trained, str) else list(trained)
    usual = [nonmembers_beside(role) for role in roles if are_members(str(role))]
    usual = [role for role in usual if role not in AUDITED]
    own = {"defense": entry.defense, "settings": entry.settings, "epoch": entry.epoch, "attribute": entry.attribute}
    return {"defends": name, "outside": usual if given is None else given, **own}


def _repeated(
    entry: DefenseConfig, entries: Sequence[dict[str, Any]], defensible: Sequence[str]
) -> list[dict[str, Any]]:
    """Attacks or inferences on defended encoders, fitted on a shadow with the same defense or on a plain one."""
    fields = ("target", "reference") if entry.adaptive else ("target",)
    return [
        {**one, **{field: entry.on(one[field]) for field in fields if one.get(field) in defensible}}
        for one in entries
        if one["target"] in defensible
    ]
