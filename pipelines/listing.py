"""``encoder-audit list``: what there is to choose from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from pipelines.console import count_of, output

list_app = typer.Typer(no_args_is_help=True, help="What there is to choose from.")


Name = Annotated[str | None, typer.Argument(help="One of them: prints its page.", metavar="[NAME]")]


@list_app.command("attacks")
def list_attacks(name: Name = None) -> None:
    """Attacks, with threat model, what they need, queries per sample and source; with a name, all of one."""
    from mi_core.attacks import ATTACKS
    from pipelines.pages import attack_page

    if name is not None:
        _print_page(attack_page, name)
        return
    table = _table("attack", "what it takes")
    for each, method in ATTACKS.items():
        made = method()
        asked = count_of(made.queries_per_sample(10), "query", "queries")
        views = " at 10 views" if made.queries_per_sample(10) != made.queries_per_sample(9) else ""
        anchors = ", and one per anchor" if method.anchored else ""
        facts = {
            "sees": method.threat_model,
            "fitted on": " or ".join(sorted(method.reference)),
            "needs": f"{', '.join(made.needs)}; {asked} per image{views}{anchors}",
            "source": method.source,
        }
        table.add_row(each, "\n".join(f"{fact}: {value}" for fact, value in facts.items()))
        table.add_section()
    output.print(table)


@list_app.command("defenses")
def list_defenses(name: Name = None) -> None:
    """Defenses, with what they hide, what they need, their settings and source; with a name, all of one."""
    from pipelines.pages import defense_page, defenses, needs_of

    if name is not None:
        _print_page(defense_page, name)
        return
    table = _table("defense", "what it is")
    for each, method in defenses().items():
        settings = ", ".join(f"{field.name} = {field.default}" for field in fields(method.Parameters))
        facts = {
            "hides": method.hides,
            "needs": ", ".join(sorted(needs_of(method))),
            "settings": settings,
            "source": method.source,
        }
        table.add_row(each, "\n".join(f"{fact}: {value}" for fact, value in facts.items() if value))
        table.add_section()
    output.print(table)


def _print_page(page: Callable[[str], str], name: str) -> None:
    from rich.markdown import Markdown

    output.print(Markdown(page(name)))


def _table(name: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(name, no_wrap=True)
    for column in columns:
        table.add_column(column)
    return table


@list_app.command("encoders")
def list_encoders() -> None:
    """Backbones, pre-training frameworks, kinds of encoders from elsewhere, and shapes of APIs."""
    from mi_core.encoders import ENCODERS
    from mi_core.encoders.adapters import ADAPTERS
    from mi_core.encoders.foreign import LOADERS
    from mi_core.objectives import OBJECTIVES

    table = _table("backbone", "what it is")
    for name, build in ENCODERS.items():
        table.add_row(name, (build.__doc__ or "").splitlines()[0])
    output.print(table)
    table = _table("framework", "what it is")
    for name, objective in OBJECTIVES.items():
        table.add_row(name, (objective.__doc__ or "").splitlines()[0])
    output.print(table)
    table = _table("from elsewhere", "what it is")
    for name, load in LOADERS.items():
        table.add_row(f"{name}:...", (load.__doc__ or "").splitlines()[0])
    output.print(table)
    table = _table("endpoint's adapter", "what is sent and answered")
    for name, adapter in ADAPTERS.items():
        table.add_row(name, (type(adapter).__doc__ or "").splitlines()[0])
    output.print(table)
