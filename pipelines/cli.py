"""The command line: parses, calls a stage, prints. Exit codes: 0 done, 2 wrong input (one line), 1 anything else."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pipelines.errors import UserError, fault_of_user
from pipelines.listing import list_app

if TYPE_CHECKING:
    from pipelines.config import RunConfig

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Tells whether given images were used to train an image encoder, and how sure that is.",
)
shards_app = typer.Typer(no_args_is_help=True, help="Make and inspect WebDataset shards.")
app.add_typer(shards_app, name="shards")
app.add_typer(list_app, name="list")

output = Console()


class Interrupted(BaseException):
    """Ctrl-C during a run; the command line library would end with its own code and word."""


Config = Annotated[str, typer.Argument(help="A config file (YAML), or a run folder to continue.", metavar="CONFIG|RUN")]
Overrides = Annotated[list[str] | None, typer.Argument(help="section.field=value ...", metavar="[section.field=value]")]
Out = Annotated[str | None, typer.Option("--out", help="Run folder; default runs/<name of the run>.")]
Address = Annotated[
    str | None, typer.Option("--address", help="Ray cluster (host:port); default RAY_ADDRESS, else local.")
]
Force = Annotated[str | None, typer.Option("--force", help="Redo this stage and all that follow.", metavar="STAGE")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show Ray's own logs.")]


def _run(
    config_or_run: str,
    overrides: list[str] | None,
    out: str | None,
    last: str,
    address: str | None,
    force: str | None,
    verbose: bool,
    yes: bool = False,
) -> None:
    from pipelines import audit, report
    from pipelines.artifacts import STAGES

    if force is not None and force not in STAGES:
        raise UserError(f"--force {force}, allowed: {', '.join(STAGES)}")
    loaded, place = _load(config_or_run, overrides, out)
    try:
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
    except KeyboardInterrupt as interrupt:
        raise Interrupted from interrupt
    if last == "tune":
        if loaded.tune is None:
            raise UserError(f"{config_or_run} has no section tune: say what to search")
        output.print(report.tuned(folder))
    if last == "report":
        output.print(report.terminal(folder))
        output.print(f"report: {folder.path}/report.html", soft_wrap=True)


def _load(config_or_run: str, overrides: list[str] | None, out: str | None) -> tuple[RunConfig, str]:
    """A config, and the run folder that it stands for."""
    from pipelines import config_file as configs
    from pipelines import storage

    source = config_or_run
    if storage.exists(f"{config_or_run}/config.yaml"):
        source, out = f"{config_or_run}/config.yaml", out or config_or_run
    loaded = configs.load(source, overrides or ())
    return loaded, out or f"runs/{loaded.name}"


bench_app = typer.Typer(no_args_is_help=True, help="Our speed beside the published ways and the limit.")
app.add_typer(bench_app, name="bench")


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


@app.command()
def quickstart(
    overrides: Overrides = None,
    out: Out = "runs/quickstart",
    address: Address = None,
    force: Force = None,
    verbose: Verbose = False,
) -> None:
    """The whole chain on embedded real data: CPU, no download, under three minutes."""
    config = files("pipelines") / "quickstart.yaml"
    _run(str(config), overrides, out, "report", address, force, verbose)


@app.command()
def selftest(
    config: Annotated[str | None, typer.Argument(help="Default: the quickstart's.", metavar="[CONFIG]")] = None,
    overrides: Overrides = None,
    out: Out = "runs/selftest",
    address: Address = None,
    verbose: Verbose = False,
) -> None:
    """Plants leaks, none, and differences that are none, through the whole chain; exit code 1 if a verdict is wrong."""
    from pipelines import config_file as configs
    from pipelines import selftest as planted

    place = out or "runs/selftest"
    loaded = configs.load(config or str(files("pipelines") / "quickstart.yaml"), overrides or ())
    command = shlex.join(["encoder-audit", *sys.argv[1:]])
    try:
        passed = planted.run(loaded, place, address=address, command=command, verbose=verbose)
    except KeyboardInterrupt as interrupt:
        raise Interrupted from interrupt
    output.print(planted.table(place))
    if not passed:
        raise typer.Exit(1)


STAGE_HELP = {
    "pretrain": "Draw the roles and train the encoders.",
    "extract": "Query the encoders for membership features (after pre-training, if that is not done).",
    "attack": "Fit and score the attacks and their controls (after the stages before).",
    "tune": "Search the parameters of a defense (after the stages before).",
    "report": "Write report.json and report.html (after the stages before).",
    "audit": "All stages of a config, resuming what is there.",
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
        yes: Annotated[bool, typer.Option("--yes", help="Spend what the budget says to ask about first.")] = False,
    ) -> None:
        _run(config, overrides, out, last, address, force, verbose, yes)


for _name in STAGE_HELP:
    _add_stage(_name, "report" if _name == "audit" else _name)


@app.command()
def check(config: Config, overrides: Overrides = None) -> None:
    """Validate config, data, weights and resources; runs nothing."""
    from pipelines import adopt, audit, splits, sweep
    from pipelines import config_file as configs
    from pipelines.artifacts import RunFolder
    from pipelines.console import count_of

    loaded = configs.load(config, overrides or ())
    loaded.resources.check({"CPU": float(os.cpu_count() or 1), "GPU": _gpus()})
    loaded.data.check_sizes()
    for name, description in adopt.try_out(loaded):
        output.print(f"encoder {name}: {description}")
    found = loaded.data.scan()
    for seed in loaded.seeds:
        output.print(f"seed {seed}: {audit.roles_in_words(splits.draw(loaded.data, found, seed))}")
    swept = sweep.points(loaded, RunFolder("."))
    for point in swept:
        for seed in point.config.seeds if point.config.data != loaded.data else ():
            splits.draw(point.config.data, found, seed)
    if swept:
        output.print(f"sweeps: {count_of(len(swept), 'point', 'points')}")
    output.print(f"{config}: fine")


@app.command()
def estimate(
    config: Config,
    overrides: Overrides = None,
    out: Out = None,
    address: Address = None,
    wall: Annotated[float | None, typer.Option("--wall", min=1e-3, help="Hours in which to query.")] = None,
    node_cpus: Annotated[float | None, typer.Option("--node-cpus", min=0.01, help="CPUs of a node.")] = None,
    node_gpus: Annotated[float | None, typer.Option("--node-gpus", min=0, help="GPUs of a node.")] = None,
    json: Annotated[str | None, typer.Option("--json", help="Write the estimate here.", metavar="FILE")] = None,
    verbose: Verbose = False,
) -> None:
    """Hours, queries, bytes and money of a run, from a short calibration; runs nothing big."""
    from pipelines import estimate_view, storage
    from pipelines.artifacts import RunFolder
    from pipelines.estimate import cluster
    from pipelines.estimate import estimate as estimated
    from pipelines.ray_runtime import largest_node, ray_cluster
    from pipelines.sweep import runs_of

    loaded, place = _load(config, overrides, out)
    loaded.data.check_sizes()
    with ray_cluster(address, object_store_mb=loaded.resources.object_store_mb, verbose=verbose):
        loaded.resources.check_connected()
        found = estimated(runs_of(loaded, RunFolder(storage.absolute(place))))
        cpus, gpus = largest_node()
    node = (cpus if node_cpus is None else node_cpus, gpus if node_gpus is None else node_gpus)
    wanted = None if wall is None else cluster(found, loaded, wall, node)
    output.print(estimate_view.render(found, wanted))
    if json is not None:
        storage.write_json(json, estimate_view.as_json(found, wanted))


def _gpus() -> float:
    import torch

    return float(torch.cuda.device_count())


Source = Annotated[
    str,
    typer.Argument(
        help="A folder of images; tars (folder, path, {000..009} range, glob, URI); digits; torchvision:<Name>.",
        metavar="SOURCE",
    ),
]
Root = Annotated[str | None, typer.Option("--root", help="Folder of a torchvision data set.")]
Options = Annotated[list[str] | None, typer.Option("--option", help="name=value for a torchvision data set; repeat.")]


@shards_app.command("import")
def import_(
    source: Source,
    out: Annotated[str, typer.Argument(help="Folder or URI for the shards.", metavar="OUT")],
    root: Root = None,
    option: Options = None,
    max_rejected: Annotated[float, typer.Option(min=0, max=1, help="Share of unusable samples to bear.")] = 0.01,
) -> None:
    """Write images as WebDataset shards, bytes as they are, with a manifest."""
    from pipelines import shards

    found = shards.source_of(source, root=root, options=_named_values(option))
    shards.import_shards(found, out, max_rejected=max_rejected)


@shards_app.command("inspect")
def inspect(
    source: Source,
    root: Root = None,
    option: Options = None,
) -> None:
    """Counts, formats, bad samples and duplicates."""
    from pipelines import shards

    found = shards.source_of(source, root=root, options=_named_values(option))
    output.print(shards.inspect(found).table())


def _named_values(options: list[str] | None) -> dict[str, Any]:
    import yaml

    pairs = [option.partition("=") for option in options or ()]
    unnamed = [name for name, equals, _ in pairs if not equals]
    if unnamed:
        raise UserError(f"--option {unnamed[0]}: write name=value")
    return {name: yaml.safe_load(value) for name, _, value in pairs}


def main(stage: str | None = None) -> None:
    """Entry point. ``stage``: the command that ``python -m pipelines.<stage>`` stands for."""
    if stage is not None:
        sys.argv.insert(1, stage)
    guarded(app)


def guarded(command: Callable[[], Any]) -> None:
    """Run a command; wrong input is one line on stderr and exit code 2, anything else a traceback and exit code 1."""
    debug = "--debug" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    try:
        command()
    except Exception as error:
        fault = fault_of_user(error)
        if fault is None or debug:
            raise
        print(f"encoder-audit: {fault}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except Interrupted:
        print("encoder-audit: interrupted; run the same command again to continue", file=sys.stderr)  # noqa: T201
        sys.exit(1)


if __name__ == "__main__":
    main()
