"""``encoder-audit list``: what there is to choose from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from pipelines.cli.catalogue import kept
from pipelines.console import output

list_app = typer.Typer(no_args_is_help=True, help="What there is to choose from.")
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
Name = Annotated[str | None, typer.Argument(help="One of them: prints its page.", metavar="[NAME]")]


@list_app.command("attacks")
def list_attacks(name: Name = None) -> None:
    """Attacks, with threat model, what they need, queries per sample and source; with a name, all of one."""
    if name is None:
        _print_tables("attacks")
        return
    from pipelines.cli.pages import attack_page

    _print_page(attack_page, name)


@list_app.command("defenses")
def list_defenses(name: Name = None) -> None:
    """Defenses, with what they hide, what they need, their settings and source; with a name, all of one."""
    if name is None:
        _print_tables("defenses")
        return
    from pipelines.cli.pages import defense_page

    _print_page(defense_page, name)


@list_app.command("encoders")
def list_encoders() -> None:
    """Backbones, pre-training frameworks, kinds of encoders from elsewhere, and shapes of APIs."""
    _print_tables("encoders")


def _print_page(page: Callable[[str], str], name: str) -> None:
    from rich.markdown import Markdown

    output.print(Markdown(page(name)))


def _print_tables(command: str) -> None:
    catalogue = kept()
    for heading, column in _TABLES[command].items():
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column(heading, no_wrap=True)
        table.add_column(column)
        for name, facts in catalogue[heading].items():
            table.add_row(name, "\n".join(f"{fact}: {value}" if fact else value for fact, value in facts.items()))
            if len(facts) > 1:
                table.add_section()
        output.print(table)
