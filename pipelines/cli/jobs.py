"""Commands for a cluster: ``submit`` and ``estimate``."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.cli.check import check_stage, check_weights, loaded_run
from pipelines.cli.flags import Address, Config, ConfigOrFlags, Flags, Force, Out, Overrides, Verbose, Yes, with_flags
from pipelines.console import output
from pipelines.errors import UserError
from pipelines.run.machine import interruptible


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

    check_stage(force)
    dashboard = "" if out is None else jobs.dashboard(address)  # before what takes seconds
    loaded, place = loaded_run(config, overrides, out)
    if out is None and place != config:
        raise UserError(f"--out is missing; give a folder that all nodes share, such as s3://BUCKET/{place}")
    place, dashboard = storage.target(place), dashboard or jobs.dashboard(address)
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


@with_flags
def estimate(
    flags: Flags,
    config: ConfigOrFlags = None,
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
