"""The whole chain of one run: data, pre-train, extract, attack, tune, report. Every stage skips what is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from mi_core.nonce import GIVEN, SEED, SYSTEM, new_nonce
from mi_core.registration import LOOK, PLAN, ROLES, START, planned_nonce
from pipelines.attack import run as attack
from pipelines.attack.reference import stopping_rule
from pipelines.audit import spending
from pipelines.audit.precision import settle_precision, with_settled_precision
from pipelines.config.run_config import RunConfig
from pipelines.console import say, step
from pipelines.data.draw.draw import check_sizes
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import Planned, plans_of
from pipelines.data.run import draw_roles
from pipelines.errors import UserError
from pipelines.extract import run as extract
from pipelines.files import storage
from pipelines.plan.attack_checks import check_drawn
from pipelines.plan.items import Plan
from pipelines.plan.rules.controls import audits_others
from pipelines.plan.written import plan_digest, write_plans
from pipelines.pretrain import run as pretrain
from pipelines.report import run as report
from pipelines.report.run import hand_over
from pipelines.run import registration
from pipelines.run.finished import is_finished, mark_finished
from pipelines.run.folder import STAGES, RunFolder
from pipelines.run.heartbeat import heartbeat
from pipelines.run.leftovers import watched
from pipelines.run.points import Run, points, runs_of
from pipelines.run.ray_session import check_connected, mapped, ray_cluster
from pipelines.tune import run as tune

STAGE_RUNS: dict[str, Callable[[Sequence[Run], Sequence[Planned]], None]] = {
    "pretrain": pretrain.run,
    "extract": partial(extract.run, rule_of=stopping_rule),
    "attack": lambda _, planned: attack.run(planned),
    "tune": lambda runs, _: tune.run(runs),
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
    config = with_nonce(config, config.queries.nonce or registration.registered_nonce(folder))
    config = with_settled_precision(config, folder)
    runs = runs_of(config, folder)
    with folder.hold_lock(), ExitStack() as stack:
        if last == STAGES[-1] and force is None and is_finished(config, folder):
            say("report", "finished: nothing has changed since; --force report writes it anew")
            return folder
        for number, (of_run, place) in enumerate(runs):
            changed = place.open(of_run.model_dump(mode="json", by_alias=True), command=command, force=force)
            if changed and not number:
                say("config", changed)
        planned: list[Planned] = []
        stack.enter_context(watched(folder.path))
        pulse = stack.enter_context(heartbeat(folder, stages))
        with folder.timed("ray_start"):
            stack.enter_context(ray_cluster(address, object_store_mb=config.resources.object_store_mb, verbose=verbose))
        check_connected(config.resources)
        runs = settle_precision(runs)
        spending.confirm(runs, stages, yes=yes)
        for stage in stages:
            pulse.enter(stage)
            with folder.timed(stage):
                if stage == "data":
                    draw_roles(runs)
                    runs, planned = register(runs)
                    config = runs[0].config
                elif stage == "report":
                    for _, place in runs:
                        registration.write_down(place, LOOK, {"command": command})
                    mapped(report.run, runs[1:], "points", "reports of sweeps")
                    with step("tables and figures"):
                        report.run(config, folder, points(config, folder))
                else:
                    if stage == "extract":
                        for _, place in runs:
                            registration.write_down(place, START, {"command": command})
                    STAGE_RUNS[stage](runs, planned)
        if last == STAGES[-1]:
            hand_over(config.report, folder)
            mark_finished(config, folder)
    return folder


def with_nonce(config: RunConfig, nonce: str | None) -> RunConfig:
    """The config with a nonce for its queries; None: as it is."""
    return config if nonce is None else config.with_queries(nonce=nonce)


def register(runs: Sequence[Run]) -> tuple[list[Run], list[Planned]]:
    """Write down what the verdicts of some runs will rest on: their images, then their plans.

    An audit of an encoder from elsewhere gets a nonce between the two, unless it has one.

    Returns:
        The runs with the nonce in their configs, and in the files of these; and their plans.
    """
    for run in runs:
        registration.write_down(run.folder, ROLES, {"roles": _roles(run)})
    first = runs[0].config
    origin = GIVEN if first.queries.nonce else SEED
    nonce = first.queries.nonce
    if nonce is None and any(audits_others(config) for config, _ in runs):
        nonce, origin = new_nonce(), SYSTEM
    before = planned_nonce(registration.lines_of(runs[0].folder))
    if nonce is not None and nonce == before.get("value"):
        origin = before["from"]
    settled = [Run(with_nonce(config, nonce), folder) for config, folder in runs]
    planned: list[Planned] = []
    for run in settled:
        if nonce != first.queries.nonce:
            run.folder.settle(run.config.model_dump(mode="json", by_alias=True))
        mine = plans_of([run])
        plans = [plan for plan, _ in mine]
        write_plans(run.folder.path, plans)
        told = _plan(run, plans, {"from": origin, "value": nonce})
        registration.write_down(run.folder, PLAN, told)
        planned += mine
    return settled, planned


def _roles(run: Run) -> dict[str, Any]:
    """Number and digest of every role, by seed."""
    config, folder = run
    drawn = {seed: Splits.load(folder.seed(seed).path) for seed in config.seeds}
    for of_seed in drawn.values():
        check_drawn(config, of_seed.counts())
    return {
        str(seed): {role: {"n": count, "sha256": of_seed.role_digest(role)} for role, count in of_seed.counts().items()}
        for seed, of_seed in drawn.items()
    }


def _plan(run: Run, plans: Sequence[Plan], nonce: dict[str, Any]) -> dict[str, Any]:
    """The parts of the plans that a reader looks for, and their keys, which bind all of them."""
    judges = plans[0].judges
    primary = [judge for judge in judges if judge.primary][-1]
    told: dict[str, Any] = {
        "plans": plan_digest(plans),
        "primary_attack": primary.attack.model_dump(mode="json"),
        "output": primary.output,
        "epoch": primary.epoch,
        "threshold": f"fitted on {primary.attack.reference}, applied unchanged to the target",
        "nonce": {name: part for name, part in nonce.items() if part is not None},
        "by": primary.by,
        "factor": run.config.validity.factor,
        "references": list(primary.references),
        "checks": ["blind classifier", *(["classifier on embeddings"] if primary.references else [])],
        "attacks": [{**judge.attack.model_dump(mode="json"), "output": judge.output} for judge in judges if judge.last],
        "tool": registration.code_digest(),
    }
    if run.config.validity.bound is not None:
        told["bound"] = run.config.validity.bound
    if run.config.dp_audit is not None:
        told["dp_audit"] = run.config.dp_audit.model_dump(mode="json")
    return told
