"""The choices of a config: the facts of every method, its docstrings and its lines in a config."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from typing import Any

import yaml

from mi_core.checks import check_choice

Facts = dict[str, str]
"""The facts of an entry, by a word; or its first line, under the word ``""``."""


def facts() -> dict[str, dict[str, Facts]]:
    """The facts of every entry by name, by the heading of its table."""
    backbones = _table("mi_core.encoders", "ENCODERS")
    elsewhere = _table("mi_core.adoption.builders", "LOADERS")
    return {
        "attack": {name: _facts_of_attack(method) for name, method in methods("attack").items()},
        "defense": {name: _facts_of_defense(method) for name, method in methods("defense").items()},
        "backbone": {name: {"": architecture.summary} for name, architecture in backbones.items()},
        "framework": _first_lines(_table("mi_core.objectives", "OBJECTIVES")),
        "from elsewhere": _first_lines({f"{name}:...": load for name, load in elsewhere.items()}),
        "endpoint's adapter": _first_lines(_table("mi_core.encoders.remote.adapters", "ADAPTERS")),
    }


def methods(kind: str) -> Mapping[str, type[Any]]:
    """The classes of all attacks (``attack``) or defenses (``defense``) by name.

    An objective that hides something is a defense too.
    """
    if kind == "attack":
        return _table("mi_core.attacks", "ATTACKS")
    objectives = _table("mi_core.objectives", "OBJECTIVES").items()
    hiding = {name: method for name, method in objectives if method.hides}
    return {**_table("mi_core.defenses", "DEFENSES"), **hiding}


def _table(module: str, name: str) -> Mapping[str, Any]:
    """A table of `mi_core`, not imported before it is asked for: all methods take seconds."""
    table: Mapping[str, Any] = vars(import_module(module))[name]
    return table


def example(kind: str, name: str) -> str:
    """The YAML that chooses an attack or a defense, with the defaults of all parameters."""
    method = methods(kind)[name]
    defaults = asdict(method.Parameters())
    if kind == "attack":
        beside = {"before": "earlier"} if method.updated else {}
        entry = {"attack": name, "reference": max(method.reference), **beside, **defaults}
        chosen: dict[str, Any] = {"attacks": [entry]}
    elif name not in _table("mi_core.objectives", "OBJECTIVES"):
        chosen = {"defenses": [{"defense": name, "settings": defaults}]}
    else:
        chosen = {"encoders": {"target": {"objective": name, "parameters": defaults}}}
    return yaml.safe_dump(chosen, sort_keys=False).strip()


def page(kind: str, name: str) -> str:
    """All that is told of one attack or defense, as Markdown: facts, docstrings and the lines of a config.

    Raises:
        ConfigError: there is none of this name.
    """
    there = methods(kind)
    method = there[check_choice(kind, name, there)]
    told = "\n".join(f"- {fact}: {value}" for fact, value in facts()[kind][name].items())
    parts = [import_module(method.__module__), method, *method.Parameters.__mro__[:-1]]
    documented = [inspect.cleandoc(part.__doc__) for part in parts if part.__doc__]
    texts = [re.sub(r"\n    (?=\S)", "\n- ", text).replace("``", "`") for text in documented]
    return "\n\n".join([f"# {name}", told, *texts, f"In a config:\n```yaml\n{example(kind, name)}\n```"])


def _facts_of_attack(method: type[Any]) -> Facts:
    told = {
        "sees": method.threat_model,
        "fitted on": " or ".join(sorted(method.reference)),
        "queries per image": method.queries,
        "reads the output": " or ".join(method.outputs or ()),
        "source": method.source,
    }
    return {fact: value for fact, value in told.items() if value}


def _facts_of_defense(method: type[Any]) -> Facts:
    needs = method.needs if hasattr(method, "needs") else {"attributes"} if method.target == "attribute" else ()
    told = {
        "hides": method.hides,
        "needs": ", ".join(sorted(needs)),
        "settings": ", ".join(f"{name} = {value}" for name, value in asdict(method.Parameters()).items()),
        "source": method.source,
    }
    return {fact: value for fact, value in told.items() if value}


def _first_lines(table: Mapping[str, Any]) -> dict[str, Facts]:
    return {name: {"": str(entry.__doc__).splitlines()[0]} for name, entry in table.items()}
