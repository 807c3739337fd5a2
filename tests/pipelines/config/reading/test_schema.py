"""The JSON Schema of a config: it takes every config that loads, and refuses misspelled fields."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pipelines.config.reading.schema import schema
from pipelines.config.reading.yaml_text import read_text
from pipelines.errors import UserError
from pipelines.plan.checks import build
from pipelines.plan.load import parse, read_values
from tests.conftest import small_config
from tests.pipelines.mutations import places

CONFIGS = Path(__file__).parents[4] / "configs"
FILES = sorted(CONFIGS.rglob("*.yaml"))
LINE = "# yaml-language-server: $schema="


@cache
def validator() -> jsonschema.Draft7Validator:
    made = schema()
    jsonschema.Draft7Validator.check_schema(made)
    return jsonschema.Draft7Validator(made)


def fault(values: Any) -> str:
    """The first mistake that the schema finds; empty: none."""
    found = jsonschema.exceptions.best_match(validator().iter_errors(values))
    return f"{'.'.join(map(str, found.absolute_path))}: {found.message}" if found else ""


def whole(path: Path) -> dict[str, Any]:
    """A config with the files that it extends, its missing paths filled in."""
    raw = read_values(str(path), ())
    for source in raw["data"]["sources"].values():
        if source["kind"] in ("shards", "imagefolder"):
            source["path"] = "somewhere"
    return raw


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_a_shipped_config_names_the_schema_and_fits_it(path: Path) -> None:
    text = path.read_text()
    first = text.splitlines()[0]
    assert first.startswith(LINE)
    assert (path.parent / first.removeprefix(LINE)).resolve() == CONFIGS / "schema.json"
    assert fault(read_text(text, path.name)) == ""


@pytest.mark.parametrize(
    "name", ["quickstart", "tune-digits", "shadows-digits", "clip-audit", "endpoint", "papers/lpla-cifar10"]
)
def test_a_resolved_config_fits(name: str) -> None:
    """The one in a run folder, whose shorthands and sweeps are spelled out."""
    raw = whole(CONFIGS / f"{name}.yaml")
    assert fault(raw) == ""
    assert fault(parse(raw, name).model_dump(mode="json", by_alias=True)) == ""


NOISE = {"defense": ["output-noise"], "epoch": [1, 3], "settings": {"scale": [0.1, 1.0]}}
SWEEP = {
    "attacks.*.count": [10, 20],
    "encoders.target.optimizer.learning_rate": [0.1],
    "seeds": [[0], [1]],
    "data.roles.known-member.count": [6],
    "several": [{"label": 2, "attacks.0.views": 2, "queries.views": 3}],
}


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"attacks": [{"attack": ["encodermi-t", "encodermi-v"], "target": ["target"], "reference": "shadow"}]},
        {"attacks": [{"attack": ["encodermi-v", "encodermi-s"], "hidden": 16, "reference": "shadow"}]},
        {"defenses": [NOISE]},
        {"sweep": SWEEP},
        {"utility": {"k": [1, 5]}},
        {"queries": {"views": 4, "augmentation": {"flip": 0}, "outputs": ["backbone"]}},
        {
            "defenses": [{"defense": "output-noise"}],
            "tune": {
                "search": {
                    "defenses.0.settings.scale": {"low": 0.1, "high": 1.0, "log": True},
                    "encoders.target.batch_size": [15, 30],
                },
                "trials": 2,
            },
        },
    ],
    ids=lambda sections: ",".join(sections) or "plain",
)
def test_shorthands_fit(sections: dict[str, Any]) -> None:
    config = small_config(**sections)
    assert fault(config) == ""
    found = parse(copy.deepcopy(config), "x")  # the config is one that loads
    assert fault(found.model_dump(mode="json", by_alias=True)) == ""


def test_extending_takes_fields_away() -> None:
    taken = {"shadow": None, "target": {"parameters": None, "optimizer": {"warmup": None}, "load": None}}
    assert fault({"extends": ["a.yaml", "b.yaml"], "encoders": taken, "data": {"roles": {"a": None}}}) == ""
    assert fault({"extends": 5}).startswith("extends: ")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("queries.view", 3),
        ("querie", {}),
        ("data.sources.digits.kin", "digits"),
        ("data.roles.target-member.cuont", 5),
        ("data.sources.digits.kind", "digit"),
        ("encoders.target.epoch", "three"),
        ("encoders.target.epochs", "three"),
        ("encoders.target.epochs", 0),
        ("encoders.target.objective", "simlcr"),
        ("encoders.target.parameters.temprature", 0.2),
        ("encoders.target.optimizer.rate", 0.2),
        ("encoders.target.augmentation.rotate", 5),
        ("encoders.shadow.lik", "target"),
        ("encoders.shadow.halves", 3),
        ("attacks.0.attack", "encodermi"),
        ("attacks.0.hidden", 64),
        ("attacks.0.attack", ["encodermi-t", "lpl"]),
        ("attacks.0.refrence", "shadow"),
        ("attacks.0", {"target": "target"}),
        ("sweep", {"size": [{"data.roles.target-member.count": 5}]}),
        ("sweep", {"attacks.*.views": 4}),
        ("tune", {"search": {"defenses.0.settings.scale": [1]}}),
        ("defenses", [{"defense": "output-noise", "settings": {"scal": 1}}]),
        ("defenses", [{"defense": "noise"}]),
        ("defenses", [{"label": "a"}]),
        ("resources.actor_cpu", 1),
    ],
)
def test_mistakes_are_marked(path: str, value: Any) -> None:
    config = small_config()
    place: Any = config
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for parent in parents:
        place = place[parent]
    place[last] = value
    with pytest.raises(UserError):
        parse(copy.deepcopy(config), "x")

    assert fault(config) != ""


def fields_of(config: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Places of keys that are fields, not names that a user chooses."""
    chosen = {("data", "sources"), ("data", "roles"), ("data", "attributes"), ("data", "captions"), ("encoders",)}
    for place in places(config):
        free = (
            place[:-1] in chosen
            or "options" in place[:-1]
            or place[:-1] == ("tune", "search")
            or "values" in place[:-1]
        )
        if place and isinstance(place[-1], str) and not free and "outside" not in place[:-1]:
            yield place


@pytest.mark.parametrize(
    "name", ["quickstart", "endpoint", "clip-audit", "tune-digits", "papers/contrastiveleaks-utkface"]
)
def test_every_field_misspelled_is_marked(name: str) -> None:
    """One letter more in the name of any field; what the schema lets through would wait for the command."""
    raw = whole(CONFIGS / f"{name}.yaml")
    raw.pop("sweep", None)
    for place in fields_of(raw):
        broken = copy.deepcopy(raw)
        inner: Any = broken
        for part in place[:-1]:
            inner = inner[part]
        inner[f"{place[-1]}x"] = inner.pop(place[-1])
        assert fault(broken), place


def test_fields_are_described() -> None:
    made = schema()
    attack, views = made["$defs"]["encodermi-v"], made["$defs"]["views"]["anyOf"][0]
    assert attack["properties"]["hidden"]["description"] == "width of the hidden layers"
    assert "factors are uniform" in json.dumps(views["properties"]["saturation"])
    assert {"epochs", "load", "endpoint", "like"} <= made["$defs"]["encoder"]["anyOf"][0]["properties"].keys()
    for name, model in made["$defs"].items():
        assert '"title"' not in json.dumps(model), name


def test_only_what_names_an_entry_is_required() -> None:
    """What `build` takes of a config without a field, the schema takes."""
    chance = random.Random(0)
    config = small_config()
    for place in chance.sample([place for place in places(config) if place], 40):
        less = copy.deepcopy(config)
        inner: Any = less
        for part in place[:-1]:
            inner = inner[part]
        del inner[place[-1]]
        try:
            build(copy.deepcopy(less))
        except (UserError, ValueError):
            continue
        assert fault(less) == "", place
