"""The commands ``check`` and ``estimate``, which look at a run before it starts, and ``submit``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli import flags as options
from pipelines.console import output
from pipelines.errors import UserError
from pipelines.run.machine import interruptible

if TYPE_CHECKING:
    from pipelines.config.run_config import RunConfig

COMMAND_LINE = "the command line"
"""Where settings stand that flags give, for messages."""
_WARNING = "WARNING: "  # told first, and counted
_ROW = 79  # letters of a line
Whole = Annotated[bool, typer.Option("--verbose", "-v", help="Every line in full.")]
ToCheck = Annotated[
    str | None,
    typer.Argument(help="Config file or name of a config.", metavar="[CONFIG]", autocompletion=options.configs),
]


@options.with_flags
def check(
    flags: options.Flags, config: ToCheck = None, overrides: options.Overrides = None, verbose: Whole = False
) -> None:
    """Check config or flags, some of the data, weights and resources, without a run: what could the audit find?"""
    flags.check_files()

    import torch

    from pipelines.console import count_of
    from pipelines.data.draw.draw import check_sizes
    from pipelines.data.look import Look
    from pipelines.data.run import counts_in_words, drawing_faults
    from pipelines.encoders import adopt
    from pipelines.plan.attack_checks import check_drawn
    from pipelines.plan.prospects import prospects
    from pipelines.run.folder import RunFolder
    from pipelines.run.heartbeat import progress_lines
    from pipelines.run.machine import cpus
    from pipelines.run.points import points

    loaded, _ = loaded_run(config, overrides, None, flags)
    lines: list[str] = []
    loaded.resources.check({"CPU": float(cpus()), "GPU": float(torch.cuda.device_count())})
    check_weights(loaded)
    check_sizes(loaded.data)
    look = Look.at(loaded.data)
    if not look.whole:
        lines.append(f"data: {look}")
    for seed in loaded.seeds:
        drawn = look.draw_roles(seed)
        check_drawn(loaded, look.counts(drawn))
        told = f"{'' if look.whole else 'about '}{counts_in_words(look.counts(drawn), drawn)}"
        if seed == loaded.seeds[0]:
            lines.append(f"data: {'; '.join([told, str(look.scanned.tally), *look.scanned.tally.notes()])}")
            lines += [f"data: {_WARNING}{line}" for line in drawing_faults(drawn)]
            lines += [f"expect: {line}" for line in prospects(loaded, look.counts(drawn))]
        else:
            lines.append(f"seed {seed}: {told}")
    first = loaded.seeds[0]
    with progress_lines("check"):
        for name, description in adopt.try_out(loaded, look.draw_roles(first), first):
            lines.append(f"encoder {name}: {description}")
    swept = points(loaded, RunFolder("."))
    for point in swept:
        for seed in point.config.seeds if point.config.data != loaded.data else ():
            of_point = replace(look, data=point.config.data)
            check_drawn(point.config, of_point.counts(of_point.draw_roles(seed)))
    if swept:
        lines.append(f"sweeps: {count_of(len(swept), 'point', 'points')}")
    parts = [line.partition(_WARNING) for line in lines]
    warnings = [f"{_WARNING}{head.partition(': ')[0]}: {text}" for head, mark, text in parts if mark]
    plain = [head.rstrip("; ") for head, mark, _ in parts if not mark or "; " in head]
    for line in (*warnings, *sorted(plain, key=lambda line: not line.startswith("expect"))):
        long = len(line) > _ROW and not verbose and not line.startswith((_WARNING, "expect"))
        output.print(f"{line[: _ROW - 5]}… (-v)" if long else line, highlight=False)
    outcome = count_of(len(warnings), "warning", "warnings") if warnings else "fine"
    output.print(f"{COMMAND_LINE if flags.names_encoder else config}: {outcome}")


def check_stage(force: str | None) -> None:
    """Raise UserError if ``--force`` names no stage."""
    from pipelines.run.folder import STAGES

    if force is not None and force not in STAGES:
        raise UserError(f"--force {force}, allowed: {', '.join(STAGES)}")


def loaded_run(
    config_or_run: str | None, overrides: list[str] | None, out: str | None, flags: options.Flags | None = None
) -> tuple[RunConfig, str]:
    """A config, and the run folder that it stands for.

    Args:
        config_or_run: file or name of a config, or a run folder; beside flags that name an encoder, a field to change.
        overrides: fields to change.
        out: the run folder; None: that of the config.
        flags: of an audit without a config.

    Raises:
        UserError: there is no config and no flag names an encoder, or what they say is impossible.
    """
    from pipelines.files import storage

    settings = flags.settings() if flags is not None and flags.names_encoder else None
    if settings is None and config_or_run is None:
        raise UserError("nothing to audit; give a config, or --encoder, --weights, --candidates and --controls")

    from pipelines.plan.load import load, loaded_from  # after what can be seen at once: it takes seconds

    if settings is not None:
        changes = [*([] if config_or_run is None else [config_or_run]), *(overrides or ())]
        described = loaded_from(settings, COMMAND_LINE, changes)
        return described, out or f"runs/{described.name}"
    assert config_or_run is not None
    source = config_or_run
    if storage.exists(f"{config_or_run}/config.yaml"):
        source, out = f"{config_or_run}/config.yaml", out or config_or_run
    loaded = load(source, overrides or ())
    return loaded, out or f"runs/{loaded.name}"


def check_weights(config: RunConfig) -> None:
    """Raise UserError if a file of weights that a config names is not there."""
    from pipelines.files.storage import is_missing

    for name, encoder in config.encoders.items():
        weights = getattr(encoder, "weights", None)
        if weights is not None and is_missing(weights):
            raise UserError(f"encoders.{name}.weights = {weights} is no file; give that of the weights")


def submit(
    config: options.Config,
    overrides: options.Overrides = None,
    out: Annotated[str | None, typer.Option("--out", help="Run folder that all nodes share, such as s3://...")] = None,
    address: Annotated[
        str | None, typer.Option("--address", help="Ray dashboard, http://HOST:8265; default: RAY_API_SERVER_ADDRESS.")
    ] = None,
    include: Annotated[list[str] | None, typer.Option("--include", help="Further code to send (repeatable).")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the log to the end.")] = True,
    force: options.Force = None,
    verbose: options.Verbose = False,
    yes: options.Yes = False,
) -> None:
    """Run an audit as a job of a Ray cluster; the same command again joins or resumes it."""
    from pipelines.files import storage
    from pipelines.jobs import submit as jobs

    check_stage(force)
    dashboard = "" if out is None else jobs.dashboard(address)  # before what takes seconds
    loaded, place = loaded_run(config, overrides, out)
    if out is None and place != config:
        raise UserError(f"--out is missing; give a folder that all nodes share, such as s3://BUCKET/{place}")
    place, dashboard = storage.target(place), dashboard or jobs.dashboard(address)
    more = [*(["--yes"] if yes else []), *(["-v"] if verbose else [])]
    job = jobs.submit(jobs.travelling(loaded), place, dashboard, force=force, options=more, include=include or ())
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


@options.with_flags
def estimate(
    flags: options.Flags,
    config: options.ConfigOrFlags = None,
    overrides: options.Overrides = None,
    out: options.Out = None,
    address: options.Address = None,
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
    verbose: options.Verbose = False,
) -> None:
    """Estimate hours, queries, bytes and money of a run from a short calibration."""
    flags.check_files()

    from pipelines.data.draw.draw import check_sizes
    from pipelines.estimate import run as estimate_view
    from pipelines.estimate.run import cluster
    from pipelines.estimate.run import estimate as estimated
    from pipelines.files import storage
    from pipelines.run.folder import RunFolder
    from pipelines.run.points import runs_of
    from pipelines.run.ray_session import check_connected, largest_node, ray_cluster

    loaded, place = loaded_run(config, overrides, out, flags)
    check_weights(loaded)
    check_sizes(loaded.data)
    with ray_cluster(address, object_store_mb=loaded.resources.object_store_mb, verbose=verbose):
        check_connected(loaded.resources)
        found = estimated(runs_of(loaded, RunFolder(storage.target(place))))
        cpus, gpus = largest_node()
    node = (cpus if node_cpus is None else node_cpus, gpus if node_gpus is None else node_gpus)
    wanted = None if wall is None else cluster(found, loaded.resources, wall, node)
    output.print("\n".join(estimate_view.lines(found, wanted)), highlight=False)
    if json is not None:
        storage.write_json(storage.target(json), estimate_view.as_json(found, wanted))
