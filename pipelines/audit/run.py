"""The whole chain of one run: data, pre-train, extract, attack, tune, report. Every stage skips what is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from pipelines.attack import run as attack
from pipelines.attack.tasks import stopping_rule
from pipelines.audit import spending
from pipelines.config.attack_checks import check_drawn
from pipelines.config.run_config import RunConfig
from pipelines.console import say, step
from pipelines.data.draw import check_sizes
from pipelines.data.run import draw_roles
from pipelines.data.splits import Splits
from pipelines.errors import UserError
from pipelines.extract import run as extract
from pipelines.files import storage
from pipelines.pretrain import run as pretrain
from pipelines.report import run as report
from pipelines.run.folder import STAGES, RunFolder
from pipelines.run.heartbeat import heartbeat
from pipelines.run.leftovers import watched
from pipelines.run.points import Run, points, runs_of
from pipelines.run.ray_session import check_connected, mapped, ray_cluster
from pipelines.run.registration import write_down
from pipelines.tune import run as tune

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
        yes: spend more than the budget without a question.

    Raises:
        UserError: the user's input is wrong; committed work is kept.
    """
    folder = RunFolder(storage.target(out))
    asked = STAGES[: STAGES.index(last) + 1]
    stages = [stage for stage in asked if stage != "tune" or config.tune is not None]
    check_sizes(config.data)
    if force is not None and config.budget.queries is not None and STAGES.index(force) <= STAGES.index("extract"):
        raise UserError(
            f"--force {force} would spend budget.queries = {config.budget.queries} a second time; choose another "
            "--out, or remove the budget"
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
                    mapped(report.run, runs[1:], "points", "reports of sweeps")
                    with step("tables and figures"):
                        report.run(config, folder, points(config, folder))
                else:
                    if stage == "extract":
                        for of_run, place in runs:
                            register(of_run, place)
                    STAGE_RUNS[stage](runs)
    return folder


def register(config: RunConfig, folder: RunFolder) -> None:
    """Write the primary attack, its output and the roles down before the target is queried for the first time."""
    primary = config.attacks[config.validity.attack]
    drawn = {seed: Splits.load(folder.seed(seed).path) for seed in config.seeds}
    for of_seed in drawn.values():
        check_drawn(config, of_seed.counts())
    plan: dict[str, Any] = {
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
    if config.dp_audit is not None:
        plan["dp_audit"] = config.dp_audit.model_dump(mode="json")
    write_down(folder, plan)
