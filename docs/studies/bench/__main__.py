"""``python -m docs.studies.bench``: our speed beside published code, and what grows with the data."""

from __future__ import annotations

import json as json_lines
from typing import Annotated, Any

import typer

from pipelines.files import storage

bench_app = typer.Typer(no_args_is_help=True, help="Measure our speed beside published code and the bare network.")
Json = Annotated[str | None, typer.Option("--json", help="Write the result to a file.", metavar="FILE")]
Case = Annotated[list[str] | None, typer.Option("--case", help="small, resnet18, memory, ...; repeatable.")]
Data = Annotated[str | None, typer.Option("--data", help="Shards with images; default: random images.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Cores to use; default: all.")]


def _show(result: dict[str, Any], json: str | None) -> None:
    """Write a result to a file, or print it."""
    if json is None:
        typer.echo(json_lines.dumps(result, indent=1))
    else:
        storage.write_json(storage.target(json), result)


@bench_app.command("train")
def bench_train(json: Json = None, case: Case = None, data: Data = None, threads: Threads = None) -> None:
    """Compare our training loop with a PIL DataLoader, lightly, and the bare step of the network."""
    from docs.studies.bench import training

    _show(training.run(case or (), data=data, threads=threads), json)


@bench_app.command("extract")
def bench_extract(json: Json = None, case: Case = None, data: Data = None, threads: Threads = None) -> None:
    """Compare extraction through Ray with the published way, a batched loop and the bare encoder."""
    from docs.studies.bench import extract

    _show(extract.run(case or (), data=data, threads=threads), json)


@bench_app.command("decode")
def bench_decode(json: Json = None) -> None:
    """Measure how many images one core decodes."""
    from docs.studies.bench import decoding

    _show(decoding.run(), json)


@bench_app.command("steps")
def bench_steps(shard: Annotated[str, typer.Argument(help="A tar of JPEG files.")], json: Json = None) -> None:
    """Measure where the CPU time of a query goes."""
    from docs.studies.bench import steps

    _show(steps.run(shard), json)


@bench_app.command("scale")
def bench_scale(
    json: Json = None,
    images: Annotated[list[int] | None, typer.Option("--images", min=1000, help="Images of a run; repeatable.")] = None,
    keep: Annotated[str | None, typer.Option("--keep", help="Keep data and runs in a folder.")] = None,
) -> None:
    """Measure whole runs on more and more images: time and memory of every stage, and requests to an object store."""
    from docs.studies.bench import growth

    _show(growth.run(images or growth.SIZES, keep=keep), json)


if __name__ == "__main__":
    bench_app()
