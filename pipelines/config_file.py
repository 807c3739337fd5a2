"""Reading a config file: files it extends, overrides, sweeps; and mistakes told in one line.

Every mistake is one line naming the file, the field, the value and what is allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from pipelines import storage
from pipelines.attack_config import ATTACK_CONFIGS
from pipelines.config import RunConfig
from pipelines.encoder_config import CONFIGS
from pipelines.errors import UserError
from pipelines.fields import set_field
from pipelines.sweep import expand
from pipelines.tune_config import with_fields


def load(path: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a config file, apply ``section.field=value`` overrides (values in YAML), and check everything.

    Raises:
        UserError: one line naming the file, the field, the value and what is allowed.
    """
    raw = _read(path, ())
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not name:
            raise UserError(f"{override!r} is no override; write section.field=value")
        set_field(raw, name, yaml.safe_load(text))
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
    """Check a config given as plain values; ``origin`` names it in errors. Its sweeps and its
    search are spelled out."""
    _fill_data_path(raw, origin)
    whole = {section: value for section, value in raw.items() if section != "sweep"}
    plain = {section: value for section, value in whole.items() if section != "tune"}
    try:
        base = RunConfig(**whole)
        if base.tune is not None:
            base = with_fields(base, base.tune, plain, _one_line)
        return expand(base, plain, raw.get("sweep", {}), _one_line)
    except ValidationError as error:
        raise UserError(f"{origin}: {_one_line(error)}") from error
    except ValueError as error:
        raise UserError(f"{origin}: {error}") from error


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


def _one_line(error: ValidationError) -> str:
    first = error.errors()[0]
    place = [str(part) for part in first["loc"] if not (isinstance(part, str) and part in (*ATTACK_CONFIGS, *CONFIGS))]
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
        elif part in CONFIGS:
            annotation = CONFIGS[str(part)]
        else:
            known = [model.model_fields[part] for model in models if part in model.model_fields]
            annotation = known[0].annotation if known else annotation
    return sorted({name for model in _models_in(annotation) for name in model.model_fields})


def _models_in(annotation: Any) -> list[Any]:
    """Pydantic models that an annotation such as dict[str, Model] or Model | None mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]
