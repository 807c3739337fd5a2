"""``encoder-audit shards``: makes and inspects WebDataset shards."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pipelines.cli.flags import Address, example
from pipelines.console import output
from pipelines.errors import UserError

shards_app = typer.Typer(
    no_args_is_help=True, help="Make and inspect WebDataset shards.", epilog=example("shards inspect digits")
)
Source = Annotated[
    str,
    typer.Argument(
        help="A folder of images; tars or Parquet files (folder, path, {000..009} range, glob, URI); digits; "
        "torchvision:<Name>.",
        metavar="SOURCE",
    ),
]
Root = Annotated[str | None, typer.Option("--root", help="Folder that holds, or receives, a torchvision data set.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        help="Setting of a torchvision data set or of tars, or column of Parquet files, as name=value; repeatable.",
    ),
]


@shards_app.command("import", epilog=example("shards import digits shards/digits"))
def import_(
    source: Source,
    out: Annotated[str, typer.Argument(help="Folder or URI for the shards.", metavar="OUT")],
    root: Root = None,
    option: Options = None,
    max_rejected: Annotated[float, typer.Option(min=0, max=1, help="Largest share of unusable samples.")] = 0.01,
    address: Address = None,
) -> None:
    """Write images as WebDataset shards, with unchanged bytes and a manifest."""
    from pipelines.data.scan import shards
    from pipelines.files import storage
    from pipelines.run.parts import on_parts

    found = shards.source_of(source, root=root, options=_named_values(option))
    shards.unfinished_shards(storage.target(out))  # a folder of something else is not touched
    with on_parts(storage.target(out), address) as each:
        shards.import_shards(found, out, max_rejected=max_rejected, task_map=each)


@shards_app.command("inspect", epilog=example("shards inspect digits"))
def inspect(source: Source, root: Root = None, option: Options = None) -> None:
    """Show counts, formats, bad samples and duplicates; exit code 2 if nothing is usable."""
    from pipelines.data.scan import shards

    inspection = shards.inspect(shards.source_of(source, root=root, options=_named_values(option)))
    output.print(inspection.table())
    if not inspection.samples:
        raise UserError(f"{source} holds no usable sample")


def _named_values(options: list[str] | None) -> dict[str, Any]:
    from pipelines.config.reading.yaml_text import read_value

    pairs = [option.partition("=") for option in options or ()]
    unnamed = [name for name, equals, _ in pairs if not equals]
    if unnamed:
        raise UserError(f"--option {unnamed[0]}: write name=value")
    return {name: read_value(value, f"--option {name}=...") for name, _, value in pairs}
