"""The command line: parses, calls a stage, prints. Exit codes: 0 done, 2 wrong input (one line), 1 anything else."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.bench import bench_app
from pipelines.cli.listing import list_app
from pipelines.cli.runs import Open, compare, current_report, index, status, tell
from pipelines.cli.shards import shards_app
from pipelines.console import output
from pipelines.errors import Unavailable, UserError, fault_of_user
from pipelines.run.interrupts import Interrupted, heed_sigterm, interruptible

if TYPE_CHECKING:
    from pipelines.config.run_config import RunConfig

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Find out whether images were used to train an image encoder, and how sure that is.",
)
app.add_typer(shards_app, name="shards")
app.add_typer(list_app, name="list")
app.add_typer(bench_app, name="bench")


def _tell_version(asked: bool) -> None:
    if asked:
        output.print(f"encoder-audit {version('encoder-audit')}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    told: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_tell_version)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; works anywhere in a command.")
    ] = False,
) -> None:
    """`guarded` reads ``--debug`` before the command does."""


Config = Annotated[
    str, typer.Argument(help="Config file or name of a config, or run folder to continue.", metavar="CONFIG|RUN")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Fields to change: section.field=value ...", metavar="[section.field=value]")
]
Out = Annotated[str | None, typer.Option("--out", help="Run folder; default: runs/<name of the run>.")]
Address = Annotated[
    str | None, typer.Option("--address", help="Ray cluster (host:port); default: RAY_ADDRESS, else a local Ray.")
]
Force = Annotated[
    str | None,
    typer.Option(
        "--force",
        help="Redo this stage and all that follow: data, pretrain, extract, attack, tune or report.",
        metavar="STAGE",
    ),
]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show Ray's own logs.")]
Yes = Annotated[bool, typer.Option("--yes", help="Start without asking if the estimate exceeds the budget.")]


def _run(
    config_or_run: str,
    overrides: list[str] | None,
    out: str | None,
    last: str,
    address: str | None,
    force: str | None,
    verbose: bool,
    yes: bool = False,
    show: bool = False,
) -> None:
    from pipelines.audit import run as audit
    from pipelines.report import run as report

    _check_stage(force)
    loaded, place = _load(config_or_run, overrides, out)
    if last == "tune" and loaded.tune is None:
        raise UserError(f"{config_or_run} has no section tune: say what to search")
    with interruptible():
        folder = audit.run(
            loaded,
            place,
            last=last,
            address=address,
            force=force,
            command=shlex.join(["encoder-audit", *sys.argv[1:]]),
            verbose=verbose,
            yes=yes,
        )
    if last == "tune":
        output.print(report.tuned(folder))
    if last == "report":
        output.print(report.terminal(folder))
        tell("report", f"{folder.path}/report.html", show=show)


def _check_stage(force: str | None) -> None:
    from pipelines.run.folder import STAGES

    if force is not None and force not in STAGES:
        raise UserError(f"--force {force}, allowed: {', '.join(STAGES)}")


def _load(config_or_run: str, overrides: list[str] | None, out: str | None) -> tuple[RunConfig, str]:
    """A config, and the run folder that it stands for."""
    from pipelines.config.load import load
    from pipelines.files import storage

    source = config_or_run
    if storage.exists(f"{config_or_run}/config.yaml"):
        source, out = f"{config_or_run}/config.yaml", out or config_or_run
    loaded = load(source, overrides or ())
    return loaded, out or f"runs/{loaded.name}"


@app.command()
def quickstart(
    overrides: Overrides = None,
    out: Out = "runs/quickstart",
    address: Address = None,
    force: Force = None,
    verbose: Verbose = False,
) -> None:
    """Audit an encoder of handwritten digits: no GPU, no download, two to four minutes on two cores."""
    from pipelines.config.shipped import shipped

    _run(shipped()["quickstart"], overrides, out, "report", address, force, verbose)


@app.command()
def selftest(
    config: Annotated[str | None, typer.Argument(help="Default: the config of quickstart.", metavar="[CONFIG]")] = None,
    overrides: Overrides = None,
    out: Out = "runs/selftest",
    address: Address = None,
    verbose: Verbose = False,
) -> None:
    """Check the tool itself on five cases with known answers; exit code 1 if a verdict is wrong."""
    from pipelines.audit import selftest as planted
    from pipelines.config.load import load
    from pipelines.config.shipped import shipped

    place = out or "runs/selftest"
    loaded = load(config or shipped()["quickstart"], overrides or ())
    command = shlex.join(["encoder-audit", *sys.argv[1:]])
    with interruptible():
        passed = planted.run(loaded, place, address=address, command=command, verbose=verbose)
    output.print(planted.table(place))
    if not passed:
        raise typer.Exit(1)


STAGE_HELP = {
    "pretrain": "Draw the roles and train the encoders.",
    "extract": "Query the encoders for membership features, after the earlier stages.",
    "attack": "Fit and score the attacks and their controls, after the earlier stages.",
    "tune": "Search the parameters of a defense, after the earlier stages.",
    "audit": "Run all stages of a config; the same command continues a run.",
}


def _add_stage(name: str, last: str) -> None:
    @app.command(name, help=STAGE_HELP[name])
    def stage(
        config: Config,
        overrides: Overrides = None,
        out: Out = None,
        address: Address = None,
        force: Force = None,
        verbose: Verbose = False,
        yes: Yes = False,
    ) -> None:
        _run(config, overrides, out, last, address, force, verbose, yes)


for _name in STAGE_HELP:
    _add_stage(_name, "report" if _name == "audit" else _name)


@app.command()
def report(
    config: Config,
    overrides: Overrides = None,
    out: Out = None,
    address: Address = None,
    force: Force = None,
    verbose: Verbose = False,
    yes: Yes = False,
    show: Open = False,
) -> None:
    """Write report.json and report.html, after the earlier stages; with --open show a finished report at once."""
    page = current_report(config) if show and not (overrides or out or force) else None
    if page is not None:
        tell("report", page, show=show)
    else:
        _run(config, overrides, out, "report", address, force, verbose, yes, show)


for _command in (compare, index, status):
    app.command()(_command)


@app.command()
def check(config: Config, overrides: Overrides = None) -> None:
    """Check config, some of the data, weights and resources, without a run."""
    from pipelines.config.checks import check_drawn
    from pipelines.config.load import load
    from pipelines.console import count_of
    from pipelines.data.draw import check_sizes
    from pipelines.data.look import Look
    from pipelines.data.run import counts_in_words
    from pipelines.encoders import adopt
    from pipelines.run.folder import RunFolder
    from pipelines.run.machine import cpus
    from pipelines.run.points import points

    loaded = load(config, overrides or ())
    loaded.resources.check({"CPU": float(cpus()), "GPU": _gpus()})
    check_sizes(loaded.data)
    look = Look.at(loaded.data)
    if not look.whole:
        output.print(f"data: {look}")
    output.print(f"data: {look.scanned.tally}")
    for note in look.scanned.tally.notes():
        output.print(f"data: {note}")
    for seed in loaded.seeds:
        drawn = look.drawn(seed)
        check_drawn(loaded, look.counts(drawn))
        output.print(f"seed {seed}: {'' if look.whole else 'about '}{counts_in_words(look.counts(drawn), drawn)}")
    first = loaded.seeds[0]
    for name, description in adopt.try_out(loaded, look.drawn(first), first):
        output.print(f"encoder {name}: {description}")
    swept = points(loaded, RunFolder("."))
    for point in swept:
        for seed in point.config.seeds if point.config.data != loaded.data else ():
            of_point = replace(look, data=point.config.data)
            check_drawn(point.config, of_point.counts(of_point.drawn(seed)))
    if swept:
        output.print(f"sweeps: {count_of(len(swept), 'point', 'points')}")
    output.print(f"{config}: fine")


@app.command()
def submit(
    config: Config,
    overrides: Overrides = None,
    out: Annotated[str | None, typer.Option("--out", help="Run folder that all nodes share, such as s3://...")] = None,
    address: Annotated[
        str | None, typer.Option("--address", help="Ray dashboard, http://HOST:8265; default: RAY_API_SERVER_ADDRESS.")
    ] = None,
    include: Annotated[list[str] | None, typer.Option("--include", help="Further code to send (repeatable).")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the log to the end.")] = True,
    force: Force = None,
    verbose: Verbose = False,
    yes: Yes = False,
) -> None:
    """Run an audit as a job of a Ray cluster; the same command again joins or resumes it."""
    from pipelines.files import storage
    from pipelines.jobs import submit as jobs

    _check_stage(force)
    loaded, place = _load(config, overrides, out)
    if out is None and place != config:
        raise UserError(f"--out is missing; give a folder that all nodes share, such as s3://BUCKET/{place}")
    place, dashboard = storage.target(place), jobs.dashboard(address)
    options = [*(["--yes"] if yes else []), *(["-v"] if verbose else [])]
    sent = jobs.travelling(loaded)
    job = jobs.submit(sent, place, dashboard, force=force, options=options, include=include or ())
    state = "submitted" if job.started else "runs already"
    shared = "" if storage.is_uri(place) else ", which has to be one and the same on all nodes"
    output.print(f"job {job.id} {state}; run folder {place}{shared}", soft_wrap=True, highlight=False)
    later = [f"  {job.command(what)}" for what in ("status", "logs", "stop")]
    output.print("\n".join(later), soft_wrap=True, highlight=False)
    if not wait:
        return
    with interruptible(f"job {job.id} goes on: {job.command('logs')} --follow"):
        code = jobs.follow(job, lambda text: print(text, end="", flush=True))  # noqa: T201
    if code:
        raise typer.Exit(code)


@app.command()
def estimate(
    config: Config,
    overrides: Overrides = None,
    out: Out = None,
    address: Address = None,
    wall: Annotated[
        float | None, typer.Option("--wall", min=1e-3, help="Plan nodes to query in so many hours.")
    ] = None,
    node_cpus: Annotated[
        float | None, typer.Option("--node-cpus", min=0.01, help="CPUs per node; default: largest node.")
    ] = None,
    node_gpus: Annotated[
        float | None, typer.Option("--node-gpus", min=0, help="GPUs per node; default: largest node.")
    ] = None,
    json: Annotated[str | None, typer.Option("--json", help="Write the estimate to a file.", metavar="FILE")] = None,
    verbose: Verbose = False,
) -> None:
    """Estimate hours, queries, bytes and money of a run from a short calibration."""
    from pipelines.data.draw import check_sizes
    from pipelines.estimate import view as estimate_view
    from pipelines.estimate.run import cluster
    from pipelines.estimate.run import estimate as estimated
    from pipelines.files import storage
    from pipelines.run.folder import RunFolder
    from pipelines.run.points import runs_of
    from pipelines.run.ray_session import check_connected, largest_node, ray_cluster

    loaded, place = _load(config, overrides, out)
    check_sizes(loaded.data)
    with ray_cluster(address, object_store_mb=loaded.resources.object_store_mb, verbose=verbose):
        check_connected(loaded.resources)
        found = estimated(runs_of(loaded, RunFolder(storage.target(place))))
        cpus, gpus = largest_node()
    node = (cpus if node_cpus is None else node_cpus, gpus if node_gpus is None else node_gpus)
    wanted = None if wall is None else cluster(found, loaded, wall, node)
    output.print("\n".join(estimate_view.lines(found, wanted)), highlight=False)
    if json is not None:
        storage.write_json(storage.target(json), estimate_view.as_json(found, wanted))


def _gpus() -> float:
    import torch

    return float(torch.cuda.device_count())


def main(stage: str | None = None) -> None:
    """Entry point. ``stage``: the command that ``python -m pipelines.<stage>`` stands for."""
    if stage is not None:
        sys.argv.insert(1, stage)
    guarded(app)


def guarded(command: Callable[[], Any]) -> None:
    """Run a command; wrong input is one line on stderr and exit code 2, anything else a traceback and exit code 1.

    An interrupt, SIGTERM, and what does not start or answer are one line and exit code 1.
    """
    debug = "--debug" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    heed_sigterm()
    try:
        command()
    except Unavailable as unavailable:
        if debug:
            raise
        print(f"encoder-audit: {unavailable}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except Exception as error:
        fault = fault_of_user(error)
        if fault is None or debug:
            raise
        print(f"encoder-audit: {fault}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except Interrupted as interrupted:
        print(f"encoder-audit: {interrupted}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
