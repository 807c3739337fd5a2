"""Reading a config file, with the files it extends, overrides and sweeps.

Every mistake is one line with the file, the field, the value and the allowed values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from pipelines.config.paths import RULE, SHOWN, is_name, shortened
from pipelines.config.reading import yaml_text
from pipelines.config.reading.fields import differing, set_field, with_changes
from pipelines.config.reading.yaml_text import read_text, read_value
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.sources import ON_FILES
from pipelines.config.sections.tuning import TuneConfig
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.plan.checks import build

_MOST_FILES = 64


def load(path: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a config file, apply ``section.field=value`` overrides (values in YAML), and check everything.

    Args:
        path: a file, or the name of a config that comes with the package, see `pipelines.config.reading.yaml_text`.
        overrides: as on the command line.

    Raises:
        UserError: the first mistake, in one line.
    """
    return loaded_from(read_values(yaml_text.config_file(path), ()), path, overrides)


def loaded_from(raw: dict[str, Any], path: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The same from plain values; errors name their origin ``path``. Raises as `load`."""
    for override in overrides:
        name, equals, text = override.partition("=")
        try:
            if not equals or not name:
                raise UserError(f"{shortened(override)} is no override; write section.field=value")
            set_field(raw, name, read_value(text, f"{name}={text if len(text) < SHOWN else '...'}"))
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
    return parse(raw, path)


def read_values(path: str, trail: tuple[str, ...], read: list[str] | None = None) -> dict[str, Any]:
    """The plain values of a config file, over those of the files it extends, the later ones over the earlier."""
    read = [] if read is None else read
    read.append(path)
    if path in trail:
        raise UserError(f"extends goes in a circle: {' -> '.join((*trail, path))}")
    if len(read) > _MOST_FILES:
        raise UserError(f"{read[0]}: extends leads to more than {_MOST_FILES} files; take some together")
    if not storage.exists(path) or storage.is_folder(path):
        raise UserError(f"{path} is no file; give an existing config file, or a run folder with its config.yaml")
    try:
        raw = read_text(storage.read_bytes(path).decode(), path)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    if not isinstance(raw, dict):
        what = "a list" if isinstance(raw, list) else f"no more than {shortened(raw)}"
        raise UserError(f"{path}: holds {what}, expected sections such as data, encoders, attacks")
    bases = raw.pop("extends", None) or []
    every = [bases] if isinstance(bases, str) else bases
    if not isinstance(every, list) or not all(isinstance(base, str) and base for base in every):
        raise UserError(
            f"{path}: extends = {shortened(bases)}: allowed is the path of a config file, or a list of paths"
        )
    folder = path.rpartition("/")[0]
    merged: dict[str, Any] = {}
    for base in every:
        merged = _merged(merged, read_values(yaml_text.config_file(base, folder), (*trail, path), read))
    return dict(_merged(merged, raw))


def _merged(base: Any, over: Any) -> Any:
    """Sections are merged key by key, null takes a key away; everything else is replaced."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    merged = base | {key: _merged(base.get(key), value) for key, value in over.items()}
    return {key: value for key, value in merged.items() if value is not None or key not in base.keys() & over.keys()}


def parse(raw: dict[str, Any], origin: str) -> RunConfig:
    """Check a config given as plain values, and spell its sweeps and its search out; errors name its ``origin``."""
    whole = {section: value for section, value in raw.items() if section != "sweep"}
    plain = {section: value for section, value in whole.items() if section != "tune"}
    try:
        missing = _fill_data_path(raw)
        base = build(whole)  # a misspelled key first: it may be why a path is missing
        if missing:
            fields = [f"data.sources.{name}.path" for name in missing]
            raise ValueError(
                f"{', '.join(fields)} {'is' if len(fields) == 1 else 'are'} missing; add to the command: "
                f"{' '.join(f'{field}=...' for field in fields)}"
            )
        if base.tune is not None:
            base = with_fields(base, base.tune, plain)
        return expand(base, plain, raw.get("sweep") or {})
    except ValueError as error:
        raise UserError(f"{origin}: {error}") from error


def _fill_data_path(raw: dict[str, Any]) -> list[str]:
    """Give every source without a path that of ``data.path``.

    Returns:
        Sources that are left without a path; they get a placeholder, so that the rest can be checked.
    """
    data = raw.get("data")
    if not isinstance(data, dict) or not isinstance(data.get("sources"), dict):
        return []
    path = data.pop("path", None)
    missing = [
        name
        for name, source in data["sources"].items()
        if isinstance(source, dict) and source.get("kind") in ON_FILES and not source.get("path")
    ]
    for name in missing:
        data["sources"][name]["path"] = "missing" if path is None else path
    return missing if path is None else []


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
