"""Sweeps: a run repeated with some fields changed, each point in a run folder of its own below the run's.

    sweep:
      attacks.*.views: [2, 4, 10]                     # one field: one point per value
      size:                                           # several fields at once
        - {label: 250, data.roles.target-member.count: 250, data.roles.shadow-member.count: 250}

``*`` stands for every attack, or attribute inference, that has the field. What points share with each other and with
the run itself is made once: encoders and features of the same inputs are copied. `expand` spells the points out, so
that a resolved config says the same as the one it came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from mi_core.attacks import ATTACKS
from mi_core.features import consumes
from pipelines.artifacts import RunFolder
from pipelines.attack_config import ATTACK_CONFIGS, SHADOWS, each_attack
from pipelines.attribute_inference import AttributeInferenceConfig, each_inference
from pipelines.config import Run, RunConfig
from pipelines.errors import UserError

LABEL = "label"
Explain = Callable[[ValidationError], str]


@dataclass(frozen=True)
class Point:
    """One point of one sweep."""

    sweep: str
    label: str
    config: RunConfig
    folder: RunFolder

    @property
    def value(self) -> float | None:
        """The label as a number, where it is one."""
        try:
            return float(self.label)
        except ValueError:
            return None


def points(config: RunConfig, folder: RunFolder) -> list[Point]:
    """All points of all sweeps of a run; one without changes is the run itself."""
    found = []
    for name, every in config.sweep.items():
        for entry in every:
            changes = {field: value for field, value in entry.items() if field != LABEL}
            place = folder if not changes else RunFolder(f"{folder.path}/sweep/{_slug(name)}/{_slug(entry[LABEL])}")
            whole = config.model_dump(mode="json", by_alias=True, exclude={"sweep"})
            changed = _changed(whole | ({"checkpoints": "last"} if changes else {}), changes)
            found.append(Point(name, str(entry[LABEL]), RunConfig(**changed), place))
    return found


def runs_of(config: RunConfig, folder: RunFolder) -> list[Run]:
    """The run and the points of its sweeps that are not the run itself."""
    return [
        (config, folder),
        *((point.config, point.folder) for point in points(config, folder) if point.folder != folder),
    ]


def expand(base: RunConfig, plain: dict[str, Any], sweep: Any, explain: Explain) -> RunConfig:
    """The run with the points of its sweeps spelled out: the fields of the resolved config that each one changes.

    Args:
        base: the run itself.
        plain: the values it was made from, where ``like`` still follows a change of another encoder.
        sweep: the section as written.
        explain: what is wrong with a config, in one line.

    Raises:
        UserError: a point that is no valid run, or two points of one label.
    """
    if not isinstance(sweep, dict):
        raise UserError(f"sweep is {type(sweep).__name__}, expected fields with lists of values")
    before = base.model_dump(mode="json", by_alias=True, exclude={"sweep"})
    found: dict[str, tuple[dict[str, Any], ...]] = {}
    for name, values in sweep.items():
        if not isinstance(values, list) or not values:
            raise UserError(f"sweep.{name}: a list of values is missing")
        entries = [_point(name, value, before, plain, explain) for value in values]
        labels = [_slug(entry[LABEL]) for entry in entries]
        if len(set(labels)) < len(labels):
            raise UserError(f"sweep.{name}: two points are called alike: {', '.join(labels)}")
        found[name] = tuple(entries)
    return base.model_copy(update={"sweep": found})


def _point(name: str, value: Any, before: dict[str, Any], plain: dict[str, Any], explain: Explain) -> dict[str, Any]:
    several = isinstance(value, dict) and LABEL in value
    changes = {field: new for field, new in value.items() if field != LABEL} if several else {name: value}
    label = str(value[LABEL] if several else value)
    try:
        after = RunConfig(**_changed(deepcopy(plain), changes))
    except ValueError as error:
        text = explain(error) if isinstance(error, ValidationError) else str(error)
        raise UserError(f"sweep.{name}, point {label}: {text}") from error
    wanted = after.model_dump(mode="json", by_alias=True, exclude={"sweep"})
    leaves = dict(_leaves(before, wanted))
    if _changed(deepcopy(before), leaves) != wanted:
        raise RuntimeError(f"sweep.{name}, point {label}: the changes do not give the point")
    return {LABEL: label, **leaves}


def _changed(values: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    for field, new in changes.items():
        set_field(values, field, deepcopy(new))
    return values


def set_field(values: dict[str, Any], name: str, new: Any) -> None:
    """Set a field by its dotted name; a number picks from a list, ``*`` everything in it that has the field.

    Raises:
        UserError: the name leads through a value, or to no element of a list.
    """
    for listed, (spell, _) in _LISTS.items():
        if name.startswith(f"{listed}."):
            values[listed] = spell(values.get(listed, []))
    head, star, field = name.partition(".*.")
    if star:
        takes = _LISTS[head][1] if head in _LISTS else None
        takers = [
            number for number, entry in enumerate(values.get(head, [])) if takes is not None and takes(entry, field)
        ]
        if not takers:
            raise UserError(f"{name}: nothing in {head} has the field {field!r}")
        for number in takers:
            set_field(values, f"{head}.{number}.{field}", new)
        return
    place: Any = values
    *parents, last = name.split(".")
    for depth, parent in enumerate(parents):
        place = place.setdefault(parent, {}) if isinstance(place, dict) else _element(place, parent, name)
        if not isinstance(place, dict | list):
            raise UserError(f"{name}: {'.'.join(parents[: depth + 1])} is a value, not a section")
    if isinstance(place, list):
        _element(place, last, name)
        place[int(last)] = new
    else:
        place[last] = new


def _takes(attack: Mapping[str, Any], field: str) -> bool:
    model = ATTACK_CONFIGS.get(str(attack.get("attack")))
    if model is None or field.partition(".")[0] not in model.model_fields:
        return False
    if field == "reference_count" and ATTACKS[str(attack["attack"])].reference == {SHADOWS}:
        return False
    own = {key: value for key, value in attack.items() if key in model.model_fields and key != "views"}
    return field != "views" or any(consumes(need) == "views" for need in model(**own).needs())


def _infers(inference: Mapping[str, Any], field: str) -> bool:
    return field in AttributeInferenceConfig.model_fields


_LISTS: dict[str, tuple[Callable[[Sequence[Any]], list[Any]], Callable[[Mapping[str, Any], str], bool]]] = {
    "attacks": (each_attack, _takes),
    "attribute_inference": (each_inference, _infers),
}
"""Sections that are lists: how they are spelled out, and whether an entry has a field."""


def _element(place: Sequence[Any], index: str, name: str) -> Any:
    if not index.isdigit() or int(index) >= len(place):
        raise UserError(f"{name}: {index!r} is no position in a list of {len(place)}")
    return place[int(index)]


def _leaves(before: Any, after: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and new value of every leaf that differs; of a section that loses keys, the whole of it."""
    if isinstance(before, dict) and isinstance(after, dict) and (not prefix or before.keys() <= after.keys()):
        for key, value in after.items():
            yield from _leaves(before.get(key), value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _leaves(old, new, f"{prefix}.{number}")
    elif before != after:
        yield prefix, after


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-") or "point"
