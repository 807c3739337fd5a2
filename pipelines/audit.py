"""The whole chain of one run: data, pre-train, extract, attack, tune, report. Every stage skips what is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from pipelines import attack, extract, pretrain, report, spending, splits, storage, tune
from pipelines.artifacts import STAGES, RunFolder, digest, now
from pipelines.config import RunConfig
from pipelines.config_checks import check_drawn
from pipelines.console import say, step
from pipelines.errors import UserError
from pipelines.heartbeat import heartbeat
from pipelines.leftovers import watched
from pipelines.ray_runtime import check_connected, finished, ray_cluster
from pipelines.scan import Scan, scan
from pipelines.splits import Splits
from pipelines.sweep import Run, points, runs_of
from pipelines.tasks import stopping_rule

STAGE_RUNS: dict[str, Callable[[Sequence[Run]], None]] = {
    "pretrain": pretrain.run,
    "extract": partial(extract.run, rule_of=stopping_rule),
    "attack": attack.run,
    "tune": tune.run,
}


def run(
    config: RunConfig,
    out: str,
    *,
    last: str = "report",
    address: str | None = None,
    force: str | None = None,
    command: str = "",
    verbose: bool = False,
    yes: bool = False,
) -> RunFolder:
    """Run the stages up to ``last``, resuming what the folder holds.

    Args:
        config: the whole run.
        out: run folder, a path or URI.
        last: the last stage to run.
        address: a Ray cluster; None starts a local one or follows RAY_ADDRESS.
        force: a stage to redo, with all that follow.
        command: the command line, kept in the manifest.
        verbose: show Ray's logs.
        yes: spend what the budget says to ask about first.

    Raises:
        UserError: the user's input is wrong; what was committed is kept.
    """
    folder = RunFolder(storage.target(out))
    asked = STAGES[: STAGES.index(last) + 1]
    stages = [stage for stage in asked if stage != "tune" or config.tune is not None]
    splits.check_sizes(config.data)
    if force is not None and config.budget.queries is not None and STAGES.index(force) <= STAGES.index("extract"):
        raise UserError(
            f"--force {force} would ask again what budget.queries = {config.budget.queries} has paid for; choose "
            "another --out, or take the budget out"
        )
    runs = runs_of(config, folder)
    with folder.held(), ExitStack() as stack:
        for number, (of_run, place) in enumerate(runs):
            changed = place.open(of_run.model_dump(mode="json", by_alias=True), command=command, force=force)
            if changed and not number:
                say("config", changed)
        stack.enter_context(watched(folder.path))
        pulse = stack.enter_context(heartbeat(folder, stages))
        with folder.timed("ray_start"):
            stack.enter_context(ray_cluster(address, object_store_mb=config.resources.object_store_mb, verbose=verbose))
        check_connected(config.resources)
        spending.confirm(runs, stages, yes=yes)
        for stage in stages:
            pulse.enter(stage)
            with folder.timed(stage):
                if stage == "data":
                    draw_roles(runs)
                elif stage == "report":
                    _report_points(runs[1:])
                    with step("tables and figures"):
                        report.run(config, folder, points(config, folder))
                else:
                    if stage == "extract":
                        for of_run, place in runs:
                            register(of_run, place)
                    STAGE_RUNS[stage](runs)
    return folder


def _report_points(runs: Sequence[Run]) -> None:
    """Report every point of the sweeps, as Ray tasks: drawing takes seconds each."""
    import ray

    remote = ray.remote(num_cpus=1)(_report_point)
    pending = [remote.remote(config, folder) for config, folder in runs]
    for fault in filter(None, finished(pending, "points", "reports of sweeps")):
        raise UserError(fault)


def _report_point(config: RunConfig, folder: RunFolder) -> str:
    try:
        report.run(config, folder)
    except UserError as error:
        return str(error)
    return ""


def draw_roles(runs: Sequence[Run]) -> None:
    """Draw and write the splits of every seed that has none; sources are scanned once for all seeds and runs."""
    scans: dict[str, Scan] = {}
    for config, folder in runs:
        todo = [seed for seed in config.seeds if not splits.exists(folder.seed(seed).path)]
        first = (config, folder) == runs[0]
        if len(todo) < len(config.seeds) and first:
            say("data", f"roles of {len(config.seeds) - len(todo)} of {len(config.seeds)} seeds drawn before")
        if not todo:
            continue
        read = config.data.scan_digest
        if read not in scans:
            found = scans[read] = scan(config.data, _scan_map)
            lost = f"; {found.tally} and listed in splits/rejected.parquet" if found.tally.unusable else ""
            say("data", f"{len(found.samples)} usable samples{lost}")
            for note in found.tally.notes():
                say("data", note)
        for seed in todo:
            near = " and looking for near-copies" if config.data.near_duplicates is not None else ""
            with step(f"drawing the roles of seed {seed}{near}"):
                drawn = splits.draw(config.data, scans[read], seed)
            check_drawn(config, drawn.counts())
            drawn.save(folder.seed(seed).path)
            if first:
                say("data", f"seed {seed}: {roles_in_words(drawn)}")


def roles_in_words(drawn: Splits) -> str:
    """Sizes of the roles, and the duplicates dropped, in one line."""
    counts = ", ".join(f"{count} {role}" for role, count in drawn.counts().items())
    dropped = [f"{drawn.duplicates_removed} duplicates"] if drawn.duplicates_removed else []
    dropped += [f"{drawn.near_removed} near-copies"] if drawn.near_removed else []
    return counts + (f"; {' and '.join(dropped)} dropped" if dropped else "")


def _scan_map(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Map over shards as Ray tasks, in order, with a bar."""
    import ray

    remote = ray.remote(num_cpus=1)(function)
    references = [remote.remote(*given) for given in arguments]
    for _ in finished(references, "shards", "reading and hashing"):
        pass
    results: list[Any] = ray.get(references)
    return results


def register(config: RunConfig, folder: RunFolder) -> None:
    """Write down what will be decided on, and how, before the target is queried for the first time."""
    primary = config.attacks[config.validity.attack]
    drawn = {seed: Splits.load(folder.seed(seed).path) for seed in config.seeds}
    for of_seed in drawn.values():
        check_drawn(config, of_seed.counts())
    statement: dict[str, Any] = {
        "primary_attack": primary.model_dump(mode="json"),
        "output": config.primary_output,
        "threshold": f"fitted on {primary.reference}, applied unchanged to the target",
        "roles": {
            str(seed): {
                role: {"n": count, "sha256": of_seed.role_digest(role)} for role, count in of_seed.counts().items()
            }
            for seed, of_seed in drawn.items()
        },
    }
    sha = digest(statement)
    if sha not in [entry["sha256"] for entry in folder.manifest.get("registrations", [])]:
        folder.append_manifest("registrations", {"registered": now(), "sha256": sha, **statement})


if __name__ == "__main__":
    from pipelines.cli import main

    main("audit")
