"""The JSON Schema of a config file, with which an editor completes fields, describes them and marks mistakes.

A file may extend others, which merges their sections. So nothing is required outside of lists, and null takes a field
of an extended file away. Shorthands count as valid: ``like`` and ``halves`` of an encoder, lists of attacks and of
defenses, dotted names in sweeps and searches. Whether the parts of a run fit together is left to
`pipelines.plan.checks`.

An entry of attacks has the fields of the attack that it names. An encoder may take its kind and its objective over from
another one, and a defense from an extended file: so they have the fields of every kind, objective and defense.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mi_core.augmentations import AUGMENTATIONS
from mi_core.defenses import DEFENSES
from mi_core.objectives import OBJECTIVES
from mi_core.training.optimizers import OptimizerParameters
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import ATTACK_CONFIGS, PYTHON
from pipelines.config.sections.parameters import schema as schema_of
from pipelines.config.sections.sources import KINDS, TORCHVISION

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
NOTHING: Schema = {"type": "null"}
SOME_TEXT: Schema = {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}
_SHORTHANDS = {
    "like": TEXT | {"description": "encoder whose settings this one takes over, under its own"},
    "halves": {
        "type": "integer",
        "minimum": 2,
        "maximum": 1024,
        "multipleOf": 2,
        "description": "number of encoders that this entry stands for, each trained on a random half of the samples",
    },
}


def schema() -> Schema:
    """The JSON Schema (draft 7) of a config file."""
    whole = RunConfig.model_json_schema(by_alias=True)
    models: dict[str, Schema] = whole["$defs"]
    entries = {*ATTACK_CONFIGS, "CodeAttackConfig", "AttributeInferenceConfig", "DefenseConfig"}
    for name, model in models.items():
        model.pop("required", None)
        if name not in entries:
            _take_away(model)
    fields: dict[str, Schema] = whole["properties"]
    fields["encoders"]["additionalProperties"] = _encoder(models)
    fields["attacks"]["items"] = _attack(models)
    fields["attribute_inference"]["items"] = _inference(models)
    fields["defenses"]["items"] = _defense(models)
    _complete_data(models)
    models["QueriesConfig"]["properties"]["augmentation"] = {
        **_described(models["QueriesConfig"]["properties"]["augmentation"]),
        "anyOf": [{"const": "as-trained"}, _to("views")],
    }
    _take_away(whole)
    choice: Schema = {"type": "array", "minItems": 2, "items": {"type": ["string", "number", "boolean"]}}
    models["TuneConfig"]["properties"]["search"] = {
        **_described(models["TuneConfig"]["properties"]["search"]),
        "type": ["object", "null"],
        "additionalProperties": {"anyOf": [choice, _to("SearchConfig"), NOTHING]},
    }
    fields["sweep"] = _sweep(fields) | _described(fields["sweep"])
    extended = "config files that this one changes, relative to its folder, or names of shipped ones"
    fields["extends"] = SOME_TEXT | {"description": extended}
    plain = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Config of encoder-audit",
        "type": "object",
        "additionalProperties": False,
        "properties": fields,
        "$defs": models,
    }
    return dict(_draft_7(plain))


def _take_away(model: Schema) -> None:
    """Allow null for every field, which takes the field of an extended file away."""
    for name, field in model.get("properties", {}).items():
        if NOTHING not in field.get("anyOf", ()) and "allOf" not in field:
            told = _described(field)
            bare = {key: value for key, value in field.items() if key not in told}
            model["properties"][name] = {**told, "anyOf": [*bare.pop("anyOf", ()), *([bare] if bare else ()), NOTHING]}
        for part in (model["properties"][name], *model["properties"][name].get("anyOf", ())):
            entries = part.get("additionalProperties")
            if isinstance(entries, dict) and NOTHING not in entries.get("anyOf", ()):
                part["additionalProperties"] = {"anyOf": [entries, NOTHING]}


def _to(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _described(field: Schema) -> Schema:
    return {key: field[key] for key in ("description", "default") if key in field}


def _any_of(variants: Iterable[Schema]) -> Schema:
    """Objects with the fields of any variant."""
    fields: dict[str, list[Schema]] = {}
    for variant in variants:
        for name, field in variant["properties"].items():
            bare = {key: value for key, value in field.items() if key not in ("default", "title")}
            if bare not in fields.setdefault(name, []):
                fields[name].append(bare)
    merged = {name: every[0] if len(every) == 1 else {"anyOf": every} for name, every in fields.items()}
    return {"type": "object", "additionalProperties": False, "properties": merged}


def _chosen(field: str, value: Schema) -> Schema:
    """Entries whose field fits a value, or holds a list with one that does."""
    return {"required": [field], "properties": {field: {"anyOf": [value, {"type": "array", "contains": value}]}}}


def _one_or_list(value: Schema) -> Schema:
    bare = {key: part for key, part in value.items() if key not in _described(value)}
    return {**_described(value), "anyOf": [bare, {"type": "array", "minItems": 1, "items": bare}]}


def _encoder(models: dict[str, Schema]) -> Schema:
    """An encoder, with the fields of every kind and the parameters of every method."""
    models |= {
        "views": _with_null(_any_of(map(schema_of, AUGMENTATIONS.values()))),
        "parameters": _with_null(_any_of(schema_of(one.Parameters) for one in OBJECTIVES.values())),
        "settings": _with_null(_any_of(schema_of(one.Parameters) for one in DEFENSES.values())),
        "optimizer": _with_null(schema_of(OptimizerParameters)),
    }
    models.pop("TrainedConfig")  # one that is defended has all of its fields
    encoder = _any_of(models.pop(name) for name in ("DefendedConfig", "LoadedConfig", "EndpointConfig"))
    named = {name: name for name in ("parameters", "settings", "optimizer")} | {"augmentation": "views"}
    fields = encoder["properties"]
    fields |= {field: _described(fields[field]) | {"allOf": [_to(name)]} for field, name in named.items()} | _SHORTHANDS
    models["encoder"] = _with_null(encoder)
    return _to("encoder")


def _with_null(model: Schema) -> Schema:
    """A model or null, and null for each of its fields."""
    _take_away(model)
    model.pop("required", None)
    return {"anyOf": [model, NOTHING]}


def _attack(models: dict[str, Schema]) -> Schema:
    for name in (*ATTACK_CONFIGS, "CodeAttackConfig"):
        fields = models[name]["properties"]
        fields |= {field: _one_or_list(fields[field]) for field in ("target", "reference")} | {"attack": True}
    ours = {
        "properties": {"attack": _one_or_list({"enum": sorted(ATTACK_CONFIGS)})},
        "allOf": [{"if": _chosen("attack", {"const": name}), "then": _to(name)} for name in ATTACK_CONFIGS],
    }
    return {
        "type": "object",
        "required": ["attack"],
        "properties": {"attack": _one_or_list(TEXT)},
        "if": {"anyOf": [{"required": ["code"]}, _chosen("attack", {"type": "string", "pattern": f"^{PYTHON}"})]},
        "then": _to("CodeAttackConfig"),
        "else": ours,
    }


def _inference(models: dict[str, Schema]) -> Schema:
    fields = models["AttributeInferenceConfig"]["properties"]
    fields |= {name: _one_or_list(fields[name]) for name in ("attribute", "target", "output")}
    return {"allOf": [_to("AttributeInferenceConfig"), {"required": ["attribute"]}]}


def _defense(models: dict[str, Schema]) -> Schema:
    fields = models["DefenseConfig"]["properties"]
    known = {"enum": sorted(DEFENSES), **_described(fields["defense"])}
    fields |= {"defense": _one_or_list(known), "epoch": _one_or_list(fields["epoch"])}
    settings = _any_of(schema_of(one.Parameters) for one in DEFENSES.values())
    settings["properties"] = {name: _one_or_list(value) for name, value in settings["properties"].items()}
    fields["settings"] = _described(fields["settings"]) | {"allOf": [settings]}
    return {"required": ["defense"], "allOf": [_to("DefenseConfig")]}


def _complete_data(models: dict[str, Schema]) -> None:
    """Add to the models of the data section the forms that only a file has."""
    data, source = models["DataConfig"]["properties"], models["SourceConfig"]["properties"]
    data["path"] = {
        "description": "path of every source that has none of its own",
        "anyOf": [*SOME_TEXT["anyOf"], NOTHING],
    }
    kinds = [{"enum": list(KINDS)}, {"type": "string", "pattern": f"^{TORCHVISION}"}, NOTHING]
    source["kind"] = _described(source["kind"]) | {"anyOf": kinds}
    data["group_by"] = _described(data["group_by"]) | {"anyOf": [{"type": "string"}, _to("GroupConfig"), NOTHING]}


def _sweep(fields: Schema) -> Schema:
    """Sweeps: a field, dotted or of ``fields``, with its values, or any name with points that say which they change.

    That such fields are there is checked when the config is read.
    """
    label: Schema = {"type": ["string", "number", "boolean"], "description": "name of the point"}
    field: Schema = {"type": ["array", "null"], "minItems": 1}
    return {
        "type": ["object", "null"],
        "patternProperties": {f"[.]|^({'|'.join(fields)})$": field},
        "additionalProperties": field
        | {"items": {"type": "object", "required": ["label"], "properties": {"label": label}}},
    }


def _draft_7(value: Any) -> Any:
    """A schema without titles and discriminators, with the words that draft 7 has for tuples."""
    if isinstance(value, list):
        return [_draft_7(one) for one in value]
    if not isinstance(value, dict):
        return value
    words = {key: one for key, one in value.items() if not (key == "title" and isinstance(one, str))}
    if "propertyName" in words.get("discriminator", ()):
        words.pop("discriminator")
    return {"items" if key == "prefixItems" else key: _draft_7(one) for key, one in words.items()}
