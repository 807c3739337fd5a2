"""One YAML file describes a run: `load` reads, completes and checks it before anything starts.

Every mistake is one line naming the file, the field, the value and what is allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mi_core.checks import ConfigError
from mi_core.features import consumes
from pipelines import storage
from pipelines.attack import (
    ATTACK_CONFIGS,
    BANK_ROLE,
    CANDIDATE_ROLES,
    KNOWN,
    KNOWN_ROLES,
    NONMEMBERS,
    SHADOW_ROLES,
    TARGET_ROLES,
    AttackConfig,
    UtilityConfig,
    ValidityConfig,
)
from pipelines.encoders import TAGS, EncoderConfig, LoadedConfig, TrainedConfig
from pipelines.errors import UserError
from pipelines.layers import Demand, QueriesConfig
from pipelines.resources import ResourcesConfig
from pipelines.splits import DataConfig

if TYPE_CHECKING:
    AnyAttack = AttackConfig
else:
    AnyAttack = Annotated[Union[tuple(ATTACK_CONFIGS.values())], Field(discriminator="attack")]  # noqa: UP007


class RunConfig(BaseModel):
    """A whole run. Each section stands beside the stage that reads it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1, description="the whole chain once per seed")
    data: DataConfig
    encoders: dict[str, EncoderConfig] = Field(min_length=1)
    queries: QueriesConfig = QueriesConfig()
    attacks: tuple[AnyAttack, ...] = Field(min_length=1)
    utility: UtilityConfig = UtilityConfig()
    validity: ValidityConfig = ValidityConfig()
    resources: ResourcesConfig = ResourcesConfig()

    @field_validator("encoders", mode="before")
    @classmethod
    def _inherit(cls, value: Any) -> Any:
        return _resolve_likes(value) if isinstance(value, dict) else value

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) != len(value):
            raise ValueError(f"seeds {list(value)} repeat; each seed runs once")
        return value

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        for name, encoder in self.encoders.items():
            _check_roles(f"encoders.{name}.train_on", encoder.train_on, self.data)
            if isinstance(encoder, TrainedConfig):
                self._check_training(f"encoders.{name}", encoder)
                self.members_of(name)
        for position, attack in enumerate(self.attacks):
            self._check_attack(f"attacks.{position}", attack)
        self._check_controls()
        for name, encoder in self.encoders.items():
            if encoder.outputs is not None:
                self.check_outputs(name, encoder.outputs)
        return self

    def _check_training(self, place: str, encoder: TrainedConfig) -> None:
        counts = [self.data.roles[role].count for role in encoder.train_on]
        members = None if None in counts else sum(count or 0 for count in counts)
        if members is not None and encoder.batch_size > members:
            raise ValueError(f"{place}.batch_size = {encoder.batch_size} exceeds the {members} members; lower it")
        workers = self.resources.train_workers
        if encoder.batch_size % workers:
            raise ValueError(
                f"{place}.batch_size = {encoder.batch_size} is not divisible by resources.train_workers = {workers}"
            )
        try:
            encoder.check_data(
                channels=self.data.channels, image_size=self.data.image_size, images=members, workers=workers
            )
        except ConfigError as error:
            raise ValueError(f"{place}: {error}") from error

    def members_of(self, name: str) -> set[str]:
        """Roles that an encoder was trained on, with those of the encoders it started from."""
        seen: list[str] = []
        roles: set[str] = set()
        step: str | None = name
        while step is not None:
            if step in seen:
                raise ValueError(f"encoders.{name}.start goes in a circle: {' -> '.join((*seen, step))}")
            if step not in self.encoders:
                raise ValueError(f"encoders.{seen[-1]}.start = {step!r}, allowed: {', '.join(self.encoders)}")
            seen.append(step)
            encoder = self.encoders[step]
            roles |= set(encoder.train_on)
            step = encoder.start if isinstance(encoder, TrainedConfig) else None
        return roles

    @property
    def audited(self) -> tuple[str, str]:
        """The two roles that attacks tell apart: the one that may be members first."""
        candidates = set(CANDIDATE_ROLES) <= set(self.data.roles)
        return CANDIDATE_ROLES if candidates else TARGET_ROLES

    def reference_roles(self, attack: AttackConfig) -> tuple[str, ...]:
        """Roles that an attack is fitted on."""
        if attack.reference == KNOWN:
            return KNOWN_ROLES
        return KNOWN_ROLES[1:] if attack.reference == NONMEMBERS else SHADOW_ROLES

    def check_outputs(self, name: str, outputs: Sequence[str]) -> None:
        """Raise UserError if attacks ask an encoder for an output that it does not have."""
        asked = {output for demand in self.demands() if demand.encoder == name for output in demand.outputs}
        missing = sorted(asked - set(outputs))
        if missing:
            raise UserError(
                f"queries.outputs asks for {missing[0]!r}, but the encoder {name!r} has {', '.join(outputs)}; "
                f"set queries.outputs=[{outputs[0]}]"
            )

    def _check_attack(self, place: str, attack: AttackConfig) -> None:
        references = [*self.encoders, KNOWN, NONMEMBERS]
        if attack.target not in self.encoders:
            raise ValueError(f"{place}.target = {attack.target!r}, allowed: {', '.join(self.encoders)}")
        if attack.reference not in references:
            raise ValueError(f"{place}.reference = {attack.reference!r}, allowed: {', '.join(references)}")
        _check_roles(place, (*self.audited, *self.reference_roles(attack)), self.data)
        if any(consumes(need) == "views" for need in attack.needs()) and self.queries.views < 2:
            raise ValueError(
                f"queries.views = {self.queries.views}, but {attack.attack} compares pairs of views and needs "
                "at least 2; set 10 (paper)"
            )

    def _check_controls(self) -> None:
        if self.validity.attack >= len(self.attacks):
            raise ValueError(f"validity.attack = {self.validity.attack}, but there are {len(self.attacks)} attacks")
        if self.validity.output is not None and self.validity.output not in self.queries.outputs:
            raise ValueError(f"validity.output = {self.validity.output!r}, allowed: {', '.join(self.queries.outputs)}")
        control = self.validity.control
        if control is None:
            return
        if control not in self.encoders:
            raise ValueError(f"validity.control = {control!r}, allowed: {', '.join(self.encoders)}")
        seen = self.members_of(control) & {*self.audited, *KNOWN_ROLES}
        if seen:
            raise ValueError(
                f"validity.control = {control!r} was trained on {', '.join(sorted(seen))}; a control saw neither group"
            )

    @property
    def primary_output(self) -> str:
        """The output that the verdict rests on."""
        return self.validity.output or self.queries.outputs[0]

    def control_of(self, attack: AttackConfig) -> str | None:
        """The encoder on which an attack is repeated as a control: it saw none of the target's samples."""
        candidates = [self.validity.control] if self.validity.control else [attack.reference, *self.encoders]
        for name in candidates:
            if name in self.encoders and name != attack.target and (self.validity.control or self._saw_neither(name)):
                return name
        return None

    def _saw_neither(self, name: str) -> bool:
        """Whether an encoder surely saw no audited sample: trained here on others, or with fresh weights."""
        encoder = self.encoders[name]
        if isinstance(encoder, LoadedConfig):
            return encoder.saw_nothing
        start = encoder.start is None or self._saw_neither(encoder.start)
        return start and not self.members_of(name) & {*self.audited, *KNOWN_ROLES}

    def utility_roles(self, encoder: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(bank, test) roles of the utility of an encoder; tested are only roles it was not trained on."""
        trained = self.encoders[encoder].train_on
        labelled = tuple(role for role in (BANK_ROLE,) if role in self.data.roles)
        bank = self.utility.bank or labelled or trained
        drawn = [name for name, role in self.data.roles.items() if role.source_name in self.data.sources]
        unseen = tuple(name for name in drawn if name not in {*trained, *bank})
        test = self.utility.test or (("downstream-test",) if "downstream-test" in self.data.roles else unseen)
        return (bank, test) if bank else ((), ())

    def classifier_roles(self, name: str) -> tuple[tuple[str, ...], ...]:
        """(trained on, unseen) roles on which a classifier trained here is judged; nothing for other encoders."""
        encoder = self.encoders[name]
        if not isinstance(encoder, TrainedConfig) or "logits" not in encoder.outputs:
            return ()
        _, test = self.utility_roles(name)
        return encoder.train_on, tuple(role for role in test if role not in self.members_of(name))

    def whole_roles(self, roles: Sequence[str]) -> list[str]:
        """Those of some roles that are not parts of audited ones, which are queried anyway."""
        return [role for role in roles if self.data.roles[role].source_name not in self.audited]

    def demands(self) -> tuple[Demand, ...]:
        """Everything that extraction must compute, one entry per encoder and set of outputs."""
        wanted: dict[tuple[str, tuple[str, ...]], dict[str, set[str]]] = {}

        def want(encoder: str, outputs: tuple[str, ...], needs: Iterable[str], roles: Sequence[str]) -> None:
            by_role = wanted.setdefault((encoder, outputs), {})
            for role in roles:
                by_role.setdefault(role, set()).update(needs)

        for attack in self.attacks:
            needs, outputs = attack.needs(), self.queries.outputs
            own = [] if attack.reference in self.encoders else self.whole_roles(self.reference_roles(attack))
            want(attack.target, outputs, needs, [*self.audited, *own])
            if attack.reference in self.encoders:
                want(attack.reference, outputs, needs, SHADOW_ROLES)
            control = self.control_of(attack)
            if control is not None:
                want(control, outputs, needs, [*self.audited, *own])
        for name in self.encoders:
            for roles in self.utility_roles(name):
                want(name, ("backbone",), ("embedding",), roles)
            for roles in self.classifier_roles(name):
                want(name, ("logits",), ("embedding",), roles)
        return tuple(Demand(encoder, outputs, by_role) for (encoder, outputs), by_role in wanted.items())


def load(path: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a config file, apply ``section.field=value`` overrides (values in YAML), and check everything.

    Raises:
        UserError: one line naming the file, the field, the value and what is allowed.
    """
    raw = _read(path, ())
    for override in overrides:
        _override(raw, override)
    return parse(raw, path)


def _read(path: str, trail: tuple[str, ...]) -> dict[str, Any]:
    """The plain values of a config file, over those of the files it extends, the later ones over the earlier."""
    if path in trail:
        raise UserError(f"extends goes in a circle: {' -> '.join((*trail, path))}")
    if not storage.exists(path) or storage.is_folder(path):
        raise UserError(f"{path} is no file; give an existing config file, or a run folder with its config.yaml")
    try:
        raw = yaml.safe_load(storage.read_bytes(path).decode())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict):
        raise UserError(f"{path}: holds {type(raw).__name__}, expected sections such as data, encoders, attacks")
    bases = raw.pop("extends", [])
    folder = path.rpartition("/")[0]
    merged: dict[str, Any] = {}
    for base in [bases] if isinstance(bases, str) else bases:
        merged = _merged(merged, _read(f"{folder}/{base}" if folder else base, (*trail, path)))
    result: dict[str, Any] = _merged(merged, raw)
    return result


def _merged(base: Any, over: Any) -> Any:
    """Sections are merged key by key, null takes a key away; everything else is replaced."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    gone = [key for key, value in over.items() if value is None and key in base]
    merged = base | {key: _merged(base.get(key), value) for key, value in over.items()}
    return {key: value for key, value in merged.items() if key not in gone}


def parse(raw: dict[str, Any], origin: str) -> RunConfig:
    """Check a config given as plain values; ``origin`` names it in errors."""
    _fill_data_path(raw, origin)
    try:
        return RunConfig(**raw)
    except ValidationError as error:
        raise UserError(f"{origin}: {_one_line(error)}") from error


def _override(raw: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    if not equals or not name:
        raise UserError(f"{override!r} is no override; write section.field=value")
    place: Any = raw
    *parents, last = name.split(".")
    for depth, parent in enumerate(parents):
        place = place.setdefault(parent, {}) if isinstance(place, dict) else _element(place, parent, name)
        if not isinstance(place, dict | list):
            raise UserError(f"{override!r}: {'.'.join(parents[: depth + 1])} is a value, not a section")
    value = yaml.safe_load(text)
    if isinstance(place, list):
        _element(place, last, name)
        place[int(last)] = value
    else:
        place[last] = value


def _element(place: list[Any], index: str, name: str) -> Any:
    if not index.isdigit() or int(index) >= len(place):
        raise UserError(f"{name}: {index!r} is no position in a list of {len(place)}")
    return place[int(index)]


def _fill_data_path(raw: dict[str, Any], origin: str) -> None:
    """``data.path`` is the path of every source that has none, so that a config need not name one."""
    data = raw.get("data")
    if not isinstance(data, dict) or not isinstance(data.get("sources"), dict):
        return
    path = data.pop("path", None)
    for name, source in data["sources"].items():
        if isinstance(source, dict) and source.get("kind") in ("shards", "imagefolder") and not source.get("path"):
            if path is None:
                raise UserError(
                    f"{origin}: data.sources.{name}.path is missing; give it there or as data.path=... "
                    "on the command line"
                )
            source["path"] = path


def _resolve_likes(encoders: dict[str, Any]) -> dict[str, Any]:
    """Replace ``like: other`` by the settings of the other encoder, overridden by the own ones."""

    def resolve(name: str, trail: tuple[str, ...]) -> dict[str, Any]:
        if name not in encoders or not isinstance(encoders[name], dict):
            raise ValueError(f"like = {name!r}, allowed: {', '.join(encoders)}")
        if name in trail:
            raise ValueError(f"like goes in a circle: {' -> '.join((*trail, name))}")
        own = {key: value for key, value in encoders[name].items() if key != "like"}
        model = encoders[name].get("like")
        return own if model is None else {**resolve(model, (*trail, name)), **own}

    return {name: resolve(name, ()) for name in encoders}


def _check_roles(place: str, roles: Sequence[str], data: DataConfig) -> None:
    missing = [role for role in roles if role not in data.roles]
    if missing:
        raise ValueError(f"{place} needs the role {missing[0]!r}; data.roles has {', '.join(data.roles)}")


def _one_line(error: ValidationError) -> str:
    first = error.errors()[0]
    place = [str(part) for part in first["loc"] if not (isinstance(part, str) and part in (*ATTACK_CONFIGS, *TAGS))]
    name, kind, context = ".".join(place), first["type"], first.get("ctx", {})
    value = "" if isinstance(first["input"], dict | list | BaseModel) else f" = {first['input']!r}"
    if kind == "extra_forbidden":
        allowed = _fields_at(first["loc"][:-1])
        near = difflib.get_close_matches(place[-1], allowed, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        return f"unknown key {name}; {hint}allowed: {', '.join(allowed)}"
    if kind == "missing":
        return f"{name} is missing"
    if kind == "value_error":
        text = str(context["error"])
        return text if not name or text.startswith(name) else f"{name}: {text}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return f"{name}: unknown attack; allowed: {', '.join(ATTACK_CONFIGS)}"
    return f"{name}{value}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _fields_at(location: Sequence[int | str]) -> list[str]:
    """Names allowed at a place of the config (a pydantic error location)."""
    annotation: Any = RunConfig
    for part in location:
        models = _models_in(annotation)
        if part in ATTACK_CONFIGS:
            annotation = ATTACK_CONFIGS[str(part)]
        elif part in TAGS:
            annotation = (TrainedConfig, LoadedConfig)[TAGS.index(str(part))]
        else:
            known = [model.model_fields[part] for model in models if part in model.model_fields]
            annotation = known[0].annotation if known else annotation
    return sorted({name for model in _models_in(annotation) for name in model.model_fields})


def _models_in(annotation: Any) -> list[Any]:
    """Pydantic models that an annotation such as dict[str, Model] or Model | None mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]
