"""``encoder-audit bench``: our speed beside the published ways and the limit."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

output = Console()
bench_app = typer.Typer(no_args_is_help=True, help="Our speed beside the published ways and the limit.")


@bench_app.command("train")
def bench_train(
    json: Annotated[str | None, typer.Option("--json", help="Write the result here.", metavar="FILE")] = None,
    case: Annotated[list[str] | None, typer.Option("--case", help="small, small-bfloat16, ...; repeat.")] = None,
    data: Annotated[str | None, typer.Option("--data", help="Shards to take images from; default random ones.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Cores to use; default all.")] = None,
) -> None:
    """The whole training loop against a PIL DataLoader, lightly and the bare step of the network."""
    from pipelines.bench import save, train

    result = train.run(case or (), data=data, threads=threads)
    output.print(train.table(result))
    if json is not None:
        save(result, json)


@bench_app.command("attacks")
def bench_attacks(
    json: Annotated[str | None, typer.Option("--json", help="Write the result here.", metavar="FILE")] = None,
    attack: Annotated[list[str] | None, typer.Option("--attack", help="encodermi-t, lpla, ...; repeat.")] = None,
    samples: Annotated[int, typer.Option("--samples", min=200, help="Samples to fit on, and to score.")] = 20_000,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Cores to use.")] = 1,
) -> None:
    """What fitting and scoring each attack costs; the epochs of networks are measured one by one and multiplied."""
    from pipelines.bench import attacks, save

    result = attacks.run(attack or (), samples=samples, threads=threads)
    output.print(attacks.table(result))
    if json is not None:
        save(result, json)


@bench_app.command("label-only")
def bench_label_only(
    json: Annotated[str | None, typer.Option("--json", help="Write the result here.", metavar="FILE")] = None,
    case: Annotated[list[str] | None, typer.Option("--case", help="small, resnet18; repeat.")] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Cores to use.")] = 1,
) -> None:
    """The search of the label-only attack against that of the Adversarial Robustness Toolbox."""
    from pipelines.bench import label_only, save

    result = label_only.run(case or (), threads=threads)
    output.print(label_only.table(result))
    if json is not None:
        save(result, json)


@bench_app.command("extract")
def bench_extract(
    json: Annotated[str | None, typer.Option("--json", help="Write the result here.", metavar="FILE")] = None,
    case: Annotated[list[str] | None, typer.Option("--case", help="small, resnet18, memory, ...; repeat.")] = None,
    data: Annotated[str | None, typer.Option("--data", help="Shards to query with; default random ones.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Cores to use; default all.")] = None,
) -> None:
    """Membership features through Ray against the published way, a batched loop and the bare encoder."""
    from pipelines.bench import extract, save

    result = extract.run(case or (), data=data, threads=threads)
    output.print(extract.table(result))
    if json is not None:
        save(result, json)


@bench_app.command("intervals")
def bench_intervals(
    json: Annotated[str | None, typer.Option("--json", help="Write the result here.", metavar="FILE")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few cells, in seconds.")] = False,
) -> None:
    """How often each interval holds the truth, and how often a leak is false; exit code 1 if it is not as promised."""
    from pipelines.bench import intervals, save

    result = intervals.run(quick=quick)
    output.print(intervals.table(result))
    if json is not None:
        save(result, json)
    if not quick and not intervals.passed(result):
        raise typer.Exit(1)
