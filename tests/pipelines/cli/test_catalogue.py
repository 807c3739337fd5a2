"""What the lists say of every method; every parameter is documented."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any

import pytest
import yaml

from mi_core.adoption.builders import LOADERS
from mi_core.attacks import ATTACKS
from mi_core.checks import ConfigError
from mi_core.defenses import DEFENSES
from mi_core.encoders import ENCODERS
from mi_core.encoders.remote.adapters import ADAPTERS
from mi_core.objectives import OBJECTIVES
from pipelines.cli import listing
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.encoders import DefendedConfig, TrainedConfig
from pipelines.plan.load import parse
from tests.conftest import small_config

HIDING = {name: objective for name, objective in OBJECTIVES.items() if objective.target == "attribute"}
METHODS = {"attack": ATTACKS, "defense": {**DEFENSES, **HIDING}}
EACH = [(kind, name) for kind, methods in METHODS.items() for name in methods]
CLASSIFIER = {"objective": "supervised", "parameters": {"classes": 10}, "augmentation": {}}
CLIP = {
    "objective": "clip",
    "parameters": {"projection_width": 16, "text_width": 16, "text_layers": 1, "text_heads": 2},
    "augmentation": {},
}
ATTRIBUTES = {"kind": {"from": "class", "values": {"even": [0, 2, 4, 6, 8], "odd": [1, 3, 5, 7, 9]}}}
BESIDE: dict[str, dict[str, Any]] = {"outside": {"outside": {"target": "provider-nonmember"}}, "epoch": {"epoch": 1}}
BESIDE |= {"attributes": {"attribute": "kind"}, "logits": {}, "labels": {}}


def test_every_entry_of_a_table_is_told() -> None:
    told = listing.facts()
    assert {kind: list(told[kind]) for kind in METHODS} == {kind: list(methods) for kind, methods in METHODS.items()}
    tables: list[tuple[str, dict[str, Any]]] = [
        ("framework", OBJECTIVES),
        ("from elsewhere", {f"{kind}:...": load for kind, load in LOADERS.items()}),
        ("endpoint's adapter", ADAPTERS),
    ]
    assert told["backbone"] == {name: {"": architecture.summary} for name, architecture in ENCODERS.items()}
    for heading, table in tables:
        assert told[heading] == {name: {"": str(entry.__doc__).splitlines()[0]} for name, entry in table.items()}


def test_facts_of_an_attack_and_of_a_defense() -> None:
    told = listing.facts()
    assert told["attack"]["clip-cosine"] == {
        "sees": ATTACKS["clip-cosine"].threat_model,
        "fitted on": "nonmembers",
        "queries per image": "1",
        "reads the output": "projection",
        "source": ATTACKS["clip-cosine"].source,
    }
    assert told["defense"]["memguard"]["needs"] == "logits, outside"
    assert told["defense"]["talos"]["needs"] == "attributes"
    assert "budget = 1.0, " in told["defense"]["memguard"]["settings"]


def undocumented(parameters: type[Any]) -> set[str]:
    """Parameters without an entry in an Args section, and entries of no parameter."""
    documented: set[str] = set()
    for part in parameters.__mro__:
        section = re.search(r"^Args:\n((?: .*\n?)*)", inspect.cleandoc(part.__doc__ or ""), re.MULTILINE)
        for names in re.findall(r"^    (\w[\w, ]*):", section[1] if section else "", re.MULTILINE):
            documented |= set(names.split(", "))
    return documented ^ set(parameters.__dataclass_fields__)


@pytest.mark.parametrize(("kind", "name"), EACH)
def test_every_method_is_documented(kind: str, name: str) -> None:
    method = METHODS[kind][name]
    assert method.source
    assert inspect.cleandoc(str(method.__doc__)).splitlines()[0].endswith(".")
    assert sys.modules[method.__module__].__doc__
    assert "__doc__" in vars(method.Parameters)
    assert undocumented(method.Parameters) == set()


@pytest.mark.parametrize(
    ("name", "reference"), [(name, kind) for name in ATTACKS for kind in sorted(ATTACKS[name].reference)]
)
def test_the_lines_of_an_attack_are_valid(name: str, reference: str) -> None:
    method = ATTACKS[name]
    lines = yaml.safe_load(listing.in_config("attack", name))
    assert lines["attacks"][0]["reference"] in method.reference
    lines["attacks"][0]["reference"] = reference
    target = {("logits",): CLASSIFIER, ("projection",): CLIP}.get(method.outputs or (), {})
    (attack,) = config_with(lines, target, reference).attacks
    assert attack.parameters() == method.Parameters()


@pytest.mark.parametrize("name", METHODS["defense"])
def test_the_lines_of_a_defense_are_valid(name: str) -> None:
    lines = yaml.safe_load(listing.in_config("defense", name))
    if name in DEFENSES:
        for need in DEFENSES[name].needs:
            lines["defenses"][0] |= BESIDE[need]
        defended = config_with(lines, CLASSIFIER).encoders[f"target+{name}"]
        assert isinstance(defended, DefendedConfig)
        assert defended.method(0).parameters == DEFENSES[name].Parameters()
    else:
        target = config_with({}, lines["encoders"]["target"] | {"attribute": "kind"}).encoders["target"]
        assert isinstance(target, TrainedConfig)
        assert target.objective == name


def config_with(lines: dict[str, Any], target: dict[str, Any], reference: str = "nonmembers") -> RunConfig:
    """A small config with some lines in it, and beside them what an attack that is fitted on ``reference`` needs."""
    raw = small_config(attacks=[{"attack": "mean-cosine", "reference": "nonmembers"}]) | lines
    raw["data"]["sources"] = {"pool": {"kind": "digits"}}
    sides = ("target-member", "target-nonmember")
    drawn = (*sides, "shadow-member", "shadow-nonmember", "anchor", "provider-nonmember", "unlabelled")
    raw["data"]["roles"] = {role: {"from": "pool", "count": 200} for role in drawn}
    raw["data"]["roles"] |= {f"known-{side[7:]}": {"from": side, "count": 100} for side in sides}
    raw["data"]["attributes"] = ATTRIBUTES
    raw["encoders"]["target"] |= target
    raw["queries"]["outputs"] = ["backbone"]
    raw["encoders"]["earlier"] = {"like": "target", "train_on": "shadow-member"}
    if reference != "shadow":
        del raw["encoders"]["shadow"]
    if reference == "shadows":
        raw["encoders"]["shadows"] = {"like": "target", "train_on": list(sides), "halves": 4}
        raw["data"]["roles"]["known-nonmember"] = {"from": "pool", "count": 100}
    return parse(raw, "lines")


def test_the_lists_print_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    listing.list_attacks("lpla")
    listing.list_defenses("talos")
    out = capsys.readouterr().out
    assert "queries per image: 1\n" in re.sub(" +\n", "\n", out)
    assert "projection_width: width of what the projection head answers" in " ".join(out.split())
    assert "objective: talos" in out
    assert "``" not in out
    with pytest.raises(ConfigError, match="attack = 'lplo', allowed: "):
        listing.list_attacks("lplo")
