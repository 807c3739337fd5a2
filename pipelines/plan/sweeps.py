"""Sweeps: a run repeated with some fields changed, each point in a run folder of its own below the run's.

    sweep:
      attacks.*.views: [2, 4, 10]                     # one field: one point per value
      size:                                           # several fields at once
        - {label: 250, data.roles.target-member.count: 250, data.roles.shadow-member.count: 250}

``*`` stands for every attack, or attribute inference, that has the field. What points share with each other and with
the run itself is made once: features stand in one store, and encoders of the same inputs are copied. `expand` spells
the points out, so that a resolved config says the same as the one it came from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from pipelines.config.paths import RULE, is_name, shortened
from pipelines.config.reading.fields import differing, with_changes
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.tuning import TuneConfig
from pipelines.errors import UserError
from pipelines.plan.checks import build

LABEL = "label"


def expand(base: RunConfig, plain: Mapping[str, Any], sweep: Any) -> RunConfig:
    """The run with the points of its sweeps spelled out: the fields of the resolved config that each one changes.

    Args:
        base: the run itself.
        plain: the values it was made from, where ``like`` still follows a change of another encoder.
        sweep: the section as written.

    Raises:
        UserError: a point that is no valid run, or two points of one label.
    """
    if not isinstance(sweep, dict):
        raise UserError(f"sweep = {shortened(sweep)}: allowed are fields with lists of values")
    before = base.plain()
    points: dict[str, tuple[dict[str, Any], ...]] = {}
    for name, values in sweep.items():
        if not isinstance(values, list) or not values:
            raise UserError(f"sweep.{name}: a list of values is missing")
        _check_slug(f"sweep.{shortened(name)}", name)
        entries = [_point(name, value, before, plain) for value in values]
        labels = [slug(entry[LABEL]) for entry in entries]
        if len(set(labels)) < len(labels):
            raise UserError(f"sweep.{name}: two points are called alike: {', '.join(labels)}; give them labels")
        points[name] = tuple(entries)
    return base.model_copy(update={"sweep": points})


def _point(name: str, value: Any, before: dict[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    several = isinstance(value, dict) and LABEL in value
    changes = {field: new for field, new in value.items() if field != LABEL} if several else {name: value}
    label = str(value[LABEL] if several else value)
    _check_slug(f"sweep.{name}, point {shortened(label)}", label)
    after = _changed(f"sweep.{name}, point {label}", plain, changes)
    leaves = dict(differing(before, after))
    if with_changes(deepcopy(before), leaves) != after:
        raise RuntimeError(f"sweep.{name}, point {label}: the changes do not give the point")
    return {LABEL: label, **leaves}


def _changed(place: str, plain: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A run with some fields changed, as plain values; ``place`` names the change in errors."""
    try:
        return build(with_changes(deepcopy(dict(plain)), changes)).plain()
    except ValueError as error:
        raise UserError(f"{place}: {error}") from error


def slug(text: str) -> str:
    """The name of the folder of a sweep, or of one of its points."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-") or "point"


def _check_slug(place: str, text: str) -> None:
    """Raise UserError if a text makes no name of a folder: it would lead out of the run's, hide it, or be too long."""
    if not is_name(slug(text)):
        raise UserError(f"{place}: makes the folder {shortened(slug(text))}; allowed are {RULE}; give it a label")


def with_fields(base: RunConfig, asked: TuneConfig, plain: Mapping[str, Any]) -> RunConfig:
    """The run with its search, every parameter with the fields that it sets.

    Args:
        base: the run itself.
        asked: its search.
        plain: the values it was made from, where ``like`` still follows a change of another encoder.

    Raises:
        UserError: a parameter that cannot be searched, or a value that makes no valid run.
    """
    search = {}
    for name, one in asked.search.items():
        ends = [
            _changed(f"tune.search.{name} = {value}", plain, dict.fromkeys(one.fields or (name,), value))
            for value in one.ends
        ]
        fields = one.fields or ((name,) if name.startswith("defenses.") else _following(base, ends, one.ends))
        if not fields:
            raise UserError(f"tune.search.{name}: changes nothing in this run")
        search[name] = one.model_copy(update={"fields": fields})
    return base.model_copy(update={"tune": asked.model_copy(update={"search": search})})


def _following(base: RunConfig, runs: list[dict[str, Any]], values: tuple[Any, Any]) -> tuple[str, ...]:
    """The fields that differ between two runs as two values do; encoders that defenses stand for are left out."""
    made = {entry.on(name) for entry in base.defenses for name in base.encoders}
    first, second = (
        {**run, "encoders": {name: one for name, one in run["encoders"].items() if name not in made}} for run in runs
    )
    before, after = dict(differing(second, first)), dict(differing(first, second))
    return tuple(field for field in after if (before.get(field), after[field]) == values)
