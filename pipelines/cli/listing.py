"""``encoder-audit list``: what there is to choose from, from the facts of every method and its docstrings."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from typing import Annotated, Any

import typer
import yaml
from rich import box
from rich.markdown import Markdown
from rich.table import Table

from mi_core.checks import check_choice
from mi_core.plugins import BROKEN
from pipelines.cli.flags import attacks, defenses, example
from pipelines.console import output

list_app = typer.Typer(no_args_is_help=True, help="What there is to choose from.", epilog=example("list attacks"))
_TABLES = {  # by command: heading of the table, and of its second column
    "attacks": {"attack": "what it takes"},
    "defenses": {"defense": "what it is"},
    "encoders": {
        **dict.fromkeys(("backbone", "framework", "from elsewhere"), "what it is"),
        "endpoint's adapter": "what is sent and answered",
    },
}
_DOCUMENTED = {  # tables whose entries are told by the first lines of their docstrings
    "framework": ("mi_core.objectives", "OBJECTIVES"),
    "from elsewhere": ("mi_core.adoption.builders", "LOADERS"),
    "endpoint's adapter": ("mi_core.encoders.remote.adapters", "ADAPTERS"),
}
_HELP = "One of them: prints its documentation."
AttackName = Annotated[str | None, typer.Argument(help=_HELP, metavar="[NAME]", autocompletion=attacks)]
DefenseName = Annotated[str | None, typer.Argument(help=_HELP, metavar="[NAME]", autocompletion=defenses)]


@list_app.command("attacks", epilog=example("list attacks lpla"))
def list_attacks(name: AttackName = None) -> None:
    """Attacks, with threat model, queries per image and source; with a name, all of one."""
    _print("attacks", name)


@list_app.command("defenses", epilog=example("list defenses output-noise"))
def list_defenses(name: DefenseName = None) -> None:
    """Defenses, with what they hide, what they need, their settings and source; with a name, all of one."""
    _print("defenses", name)


@list_app.command("encoders", epilog=example("list encoders"))
def list_encoders() -> None:
    """Backbones, pre-training frameworks, kinds of encoders from elsewhere, and shapes of APIs."""
    _print("encoders", None)


def _print(command: str, name: str | None) -> None:
    if name is not None:
        output.print(Markdown(page(command.removesuffix("s"), name)))
        return
    for heading, column in _TABLES[command].items():
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column(heading, no_wrap=True)
        table.add_column(column)
        for entry, lines in facts_in(heading).items():
            table.add_row(entry, "\n".join(f"{fact}: {value}" if fact else value for fact, value in lines.items()))
            if len(lines) > 1:
                table.add_section()
        for fault in (fault for (of, _), fault in BROKEN.items() if of == command):  # what other packages bring
            table.add_row("broken", fault)
        output.print(table)


def schema() -> None:
    """Print the JSON Schema of a config, with which editors complete and check it."""
    from pipelines.config.reading.schema import schema as made

    print(json.dumps(made(), indent=1))  # noqa: T201


Facts = dict[str, str]
"""The facts of an entry, by a word; or its first line, under the word ``""``."""


def facts() -> dict[str, dict[str, Facts]]:
    """The facts of every entry by name, by the heading of its table."""
    return {heading: facts_in(heading) for table in _TABLES.values() for heading in table}


def facts_in(heading: str) -> dict[str, Facts]:
    """The facts of the entries of one table by name; the others are not imported."""
    if heading in ("attack", "defense"):
        return {name: _facts_of(heading, method) for name, method in methods(heading).items()}
    if heading == "backbone":
        return {name: {"": one.summary} for name, one in _table("mi_core.encoders", "ENCODERS").items()}
    suffix = ":..." if heading == "from elsewhere" else ""
    entries = _table(*_DOCUMENTED[heading]).items()
    return {f"{name}{suffix}": {"": str(entry.__doc__).splitlines()[0]} for name, entry in entries}


def methods(kind: str) -> Mapping[str, type[Any]]:
    """The classes of all attacks (``attack``) or defenses (``defense``) by name.

    An objective that hides something is a defense too.
    """
    if kind == "attack":
        return _table("mi_core.attacks", "ATTACKS")
    hiding = {name: method for name, method in _table("mi_core.objectives", "OBJECTIVES").items() if method.hides}
    return {**_table("mi_core.defenses", "DEFENSES"), **hiding}


def _table(module: str, name: str) -> Mapping[str, Any]:
    """A table of `mi_core`, not imported before it is asked for: all methods take seconds."""
    return vars(import_module(module))[name]


def in_config(kind: str, name: str) -> str:
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
    told = "\n".join(f"- {fact}: {value}" for fact, value in _facts_of(kind, method).items())
    parts = [import_module(method.__module__), method, *method.Parameters.__mro__[:-1]]
    documented = [inspect.cleandoc(part.__doc__) for part in parts if part.__doc__]
    texts = [re.sub(r"\n    (?=\S)", "\n- ", text).replace("``", "`") for text in documented]
    return "\n\n".join([f"# {name}", told, *texts, f"In a config:\n```yaml\n{in_config(kind, name)}\n```"])


def _facts_of(kind: str, method: type[Any]) -> Facts:
    if kind == "attack":
        told = {
            "sees": method.threat_model,
            "fitted on": " or ".join(sorted(method.reference)),
            "queries per image": method.queries,
            "reads the output": " or ".join(method.outputs or ()),
        }
    else:
        needs = method.needs if hasattr(method, "needs") else {"attributes"} if method.target == "attribute" else ()
        told = {
            "hides": method.hides,
            "needs": ", ".join(sorted(needs)),
            "settings": ", ".join(f"{name} = {value}" for name, value in asdict(method.Parameters()).items()),
        }
    return {fact: value for fact, value in {**told, "source": method.source}.items() if value}
