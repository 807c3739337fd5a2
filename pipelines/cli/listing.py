"""``encoder-audit list``: what there is to choose from."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich import box
from rich.markdown import Markdown
from rich.table import Table

from mi_core.plugins import BROKEN
from pipelines.cli.catalogue import facts, page
from pipelines.cli.completion import attacks, defenses
from pipelines.cli.options import example
from pipelines.console import output

list_app = typer.Typer(no_args_is_help=True, help="What there is to choose from.", epilog=example("list attacks"))
_TABLES = {  # by command: heading of the table, and of its second column
    "attacks": {"attack": "what it takes"},
    "defenses": {"defense": "what it is"},
    "encoders": {
        "backbone": "what it is",
        "framework": "what it is",
        "from elsewhere": "what it is",
        "endpoint's adapter": "what is sent and answered",
    },
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
    told = facts()
    for heading, column in _TABLES[command].items():
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column(heading, no_wrap=True)
        table.add_column(column)
        for entry, lines in told[heading].items():
            table.add_row(entry, "\n".join(f"{fact}: {value}" if fact else value for fact, value in lines.items()))
            if len(lines) > 1:
                table.add_section()
        for fault in _broken(command):
            table.add_row("broken", fault)
        output.print(table)


def _broken(command: str) -> list[str]:
    """The faults of what other packages bring and cannot be used."""
    return [fault for (table, _), fault in BROKEN.items() if table == command]


def schema() -> None:
    """Print the JSON Schema of a config, with which editors complete and check it."""
    from pipelines.config.reading.schema import schema as made

    print(json.dumps(made(), indent=1))  # noqa: T201
