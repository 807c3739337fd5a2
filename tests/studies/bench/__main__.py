"""``python -m tests.studies.bench``: our speed beside published code, and what grows with the data."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import RenderableType

from pipelines.console import output
from pipelines.files import storage

bench_app = typer.Typer(no_args_is_help=True, help="Measure our speed beside published code and the bare network.")
Json = Annotated[str | None, typer.Option("--json", help="Write the result to a file.", metavar="FILE")]


def _show(table: RenderableType, result: dict[str, Any], json: str | None) -> None:
    """Print a result, and write it to a file if one is given."""
    output.print(table)
    if json is not None:
        storage.write_json(storage.target(json), result)


@bench_app.command("train")
def bench_train(
    json: Json = None,
    case: Annotated[list[str] | None, typer.Option("--case", help="small, small-bfloat16, ...; repeatable.")] = None,
    data: Annotated[str | None, typer.Option("--data", help="Shards with images; default: random images.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Cores to use; default: all.")] = None,
) -> None:
    """Compare our training loop with a PIL DataLoader, lightly, and the bare step of the network."""
    from tests.studies.bench import train

    result = train.run(case or (), data=data, threads=threads)
    _show(train.table(result), result, json)


@bench_app.command("extract")
def bench_extract(
    json: Json = None,
    case: Annotated[list[str] | None, typer.Option("--case", help="small, resnet18, memory, ...; repeatable.")] = None,
    data: Annotated[str | None, typer.Option("--data", help="Shards with images; default: random images.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Cores to use; default: all.")] = None,
) -> None:
    """Compare extraction through Ray with the published way, a batched loop and the bare encoder."""
    from tests.studies.bench import extract

    result = extract.run(case or (), data=data, threads=threads)
    _show(extract.table(result), result, json)


@bench_app.command("scale")
def bench_scale(
    json: Json = None,
    images: Annotated[list[int] | None, typer.Option("--images", min=1000, help="Images of a run; repeatable.")] = None,
    keep: Annotated[str | None, typer.Option("--keep", help="Keep data and runs in a folder.")] = None,
) -> None:
    """Measure whole runs on more and more images: time and memory of every stage, and requests to an object store."""
    from tests.studies.bench import growth

    result = growth.run(images or growth.SIZES, keep=keep)
    _show(growth.table(result), result, json)


if __name__ == "__main__":
    bench_app()
