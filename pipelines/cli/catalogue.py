"""The choices of a config: the facts of every method, its docstrings and its lines in a config.

Everything is read off the source files, because importing all methods to print a table takes seconds.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import Any

import yaml

from mi_core import plugins
from mi_core.checks import check_choice
from pipelines.cli.source_files import docstring_of, value_of

Facts = dict[str, str]
"""The facts of an entry, by a word; or its first line, under the word ``""``."""


def facts() -> dict[str, dict[str, Facts]]:
    """The facts of every entry by name, by the heading of its table."""
    elsewhere = _first_lines("mi_core.adoption.builders", "LOADERS")
    backbones = {name: row.arguments[0] for name, row in value_of("mi_core.encoders", "ENCODERS").items()}
    backbones |= {name: row.summary for name, row in _plugged_in("encoders").items()}
    return {
        "attack": {name: _facts_of_attack(method) for name, method in methods("attack").items()},
        "defense": {name: _facts_of_defense(method) for name, method in methods("defense").items()},
        "backbone": {name: {"": summary} for name, summary in backbones.items()},
        "framework": _first_lines("mi_core.objectives", "OBJECTIVES"),
        "from elsewhere": {f"{name}:...": told for name, told in elsewhere.items()},
        "endpoint's adapter": _first_lines("mi_core.encoders.remote.adapters", "ADAPTERS"),
    }


def methods(kind: str) -> dict[str, type[Any]]:
    """The classes of all attacks (``attack``) or defenses (``defense``) by name, without their code.

    An objective that hides something is a defense too.
    """
    if kind == "attack":
        return {**value_of("mi_core.attacks", "ATTACKS"), **_plugged_in("attacks")}
    objectives = value_of("mi_core.objectives", "OBJECTIVES").items()
    own = {**value_of("mi_core.defenses", "DEFENSES"), **_plugged_in("defenses")}
    return own | {name: method for name, method in objectives if method.hides}


def _plugged_in(table: str) -> dict[str, Any]:
    """The entries that other packages bring; these are imported."""
    names = plugins.names(table)
    every = vars(import_module(f"mi_core.{table}"))[table.upper()] if names else {}
    return {name: every[name] for name in names if name in every}


def defaults(method: type[Any]) -> dict[str, Any]:
    """The default of every parameter of a method, in the order of its dataclass."""
    parts = reversed(method.Parameters.__mro__)
    return {name: getattr(method.Parameters, name) for part in parts for name in vars(part).get("__annotations__", ())}


def example(kind: str, name: str) -> str:
    """The YAML that chooses an attack or a defense, with the defaults of all parameters."""
    method = methods(kind)[name]
    if kind == "attack":
        beside = {"before": "earlier"} if method.updated else {}
        entry = {"attack": name, "reference": max(method.reference), **beside, **defaults(method)}
        chosen: dict[str, Any] = {"attacks": [entry]}
    elif name not in value_of("mi_core.objectives", "OBJECTIVES"):
        chosen = {"defenses": [{"defense": name, "settings": defaults(method)}]}
    else:
        chosen = {"encoders": {"target": {"objective": name, "parameters": defaults(method)}}}
    return yaml.safe_dump(chosen, sort_keys=False).strip()


def page(kind: str, name: str) -> str:
    """All that is told of one attack or defense, as Markdown: facts, docstrings and the lines of a config.

    Raises:
        ConfigError: there is none of this name.
    """
    there = methods(kind)
    method = there[check_choice(kind, name, there)]
    told = "\n".join(f"- {fact}: {value}" for fact, value in facts()[kind][name].items())
    brought = sys.modules.get(method.__module__)
    documented = [docstring_of(method.__module__) if brought is None else brought.__doc__, method.__doc__]
    documented += [part.__doc__ for part in method.Parameters.__mro__ if part is not object]
    texts = [re.sub(r"\n    (?=\S)", "\n- ", text).replace("``", "`") for text in documented if text]
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
        "settings": ", ".join(f"{name} = {value}" for name, value in defaults(method).items()),
        "source": method.source,
    }
    return {fact: value for fact, value in told.items() if value}


def _first_lines(module: str, table: str) -> dict[str, Facts]:
    return {name: {"": str(entry.__doc__).splitlines()[0]} for name, entry in value_of(module, table).items()}
