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
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import ValidationError

from pipelines.artifacts import RunFolder
from pipelines.config import RunConfig
from pipelines.config_checks import build
from pipelines.errors import UserError
from pipelines.fields import differing, with_changes
from pipelines.names import RULE, is_name, shortened

LABEL = "label"
Explain = Callable[[ValidationError], str]


class Run(NamedTuple):
    """A run and where it stands; sweeps make several at once."""

    config: RunConfig
    folder: RunFolder


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
            place = folder if not changes else RunFolder(f"{folder.path}/sweep/{slug(name)}/{slug(entry[LABEL])}")
            whole = config.model_dump(mode="json", by_alias=True, exclude={"sweep", "tune"})
            changed = with_changes(whole | ({"checkpoints": "last"} if changes else {}), changes)
            found.append(Point(name, str(entry[LABEL]), build(changed), place))
    return found


def runs_of(config: RunConfig, folder: RunFolder) -> list[Run]:
    """The run and the points of its sweeps that are not the run itself."""
    return [
        Run(config, folder),
        *(Run(point.config, point.folder) for point in points(config, folder) if point.folder != folder),
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
        raise UserError(f"sweep = {shortened(sweep)}: allowed are fields with lists of values")
    before = base.model_dump(mode="json", by_alias=True, exclude={"sweep", "tune"})
    found: dict[str, tuple[dict[str, Any], ...]] = {}
    for name, values in sweep.items():
        if not isinstance(values, list) or not values:
            raise UserError(f"sweep.{name}: a list of values is missing")
        _check_slug(f"sweep.{shortened(name)}", name)
        entries = [_point(name, value, before, plain, explain) for value in values]
        labels = [slug(entry[LABEL]) for entry in entries]
        if len(set(labels)) < len(labels):
            raise UserError(f"sweep.{name}: two points are called alike: {', '.join(labels)}; give them labels")
        found[name] = tuple(entries)
    return base.model_copy(update={"sweep": found})


def _point(name: str, value: Any, before: dict[str, Any], plain: dict[str, Any], explain: Explain) -> dict[str, Any]:
    several = isinstance(value, dict) and LABEL in value
    changes = {field: new for field, new in value.items() if field != LABEL} if several else {name: value}
    label = str(value[LABEL] if several else value)
    _check_slug(f"sweep.{name}, point {shortened(label)}", label)
    try:
        after = build(with_changes(deepcopy(plain), changes))
    except ValueError as error:
        text = explain(error) if isinstance(error, ValidationError) else str(error)
        raise UserError(f"sweep.{name}, point {label}: {text}") from error
    wanted = after.model_dump(mode="json", by_alias=True, exclude={"sweep", "tune"})
    leaves = dict(differing(before, wanted))
    if with_changes(deepcopy(before), leaves) != wanted:
        raise RuntimeError(f"sweep.{name}, point {label}: the changes do not give the point")
    return {LABEL: label, **leaves}


def slug(text: str) -> str:
    """The name of the folder of a sweep, or of one of its points."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-") or "point"


def _check_slug(place: str, text: str) -> None:
    """Raise UserError if a text makes no name of a folder: it would lead out of the run's, hide it, or be too long."""
    if not is_name(slug(text)):
        raise UserError(f"{place}: makes the folder {shortened(slug(text))}; allowed are {RULE}; give it a label")
