"""The whole chain of one run: data, pre-train, extract, attack, tune, report. Every stage skips what is done.

The precision of a run's queries: settled when it first starts, so that each resumption and each worker has it.

``auto`` is bfloat16 on GPUs, and on CPUs where all nodes have instructions for it and answers stay alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import Any

import torch
import yaml

from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.checkpoint import Encoder
from mi_core.provenance import now, versions
from mi_core.querying.precision import PRECISIONS
from mi_core.querying.precision_trial import has_bfloat16, tried_precision
from mi_core.registration import GIVEN, LOOK, PLAN, ROLES, SEED, START, SYSTEM, new_nonce, planned_nonce
from mi_core.report.words.numbers import plain
from pipelines.attack import run as attack
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.encoders import EndpointConfig
from pipelines.config.sections.limits import BudgetConfig
from pipelines.console import console, say, step
from pipelines.data.draw.draw import check_sizes
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import Planned, plans_of
from pipelines.data.run import draw_roles
from pipelines.errors import UserError
from pipelines.estimate.outline import stand_in
from pipelines.estimate.run import Estimate, estimate
from pipelines.extract import run as extract
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.plan.attack_checks import check_drawn
from pipelines.plan.items import Plan
from pipelines.plan.resolve import queries_in
from pipelines.plan.rules import ThreatModel
from pipelines.plan.written import plan_digest, write_plans
from pipelines.pretrain import run as pretrain
from pipelines.report import run as report
from pipelines.report.finished import FinishedRun
from pipelines.report.run import hand_over
from pipelines.run import registration
from pipelines.run.folder import FINISHED, PROGRESS, STAGES, RunFolder
from pipelines.run.heartbeat import heartbeat
from pipelines.run.machine import watched
from pipelines.run.points import Run, points, runs_of
from pipelines.run.ray_session import HELPER_MEMORY, TASK_MEMORY, borne, check_connected, mapped, ray_cluster
from pipelines.tune import run as tune

STAGE_RUNS: dict[str, Callable[[Sequence[Run], Sequence[Planned]], None]] = {
    "pretrain": pretrain.run,
    "extract": extract.run,
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
    stages = [stage for stage in STAGES[: STAGES.index(last) + 1] if stage != "tune" or config.tune is not None]
    check_sizes(config.data)
    if force is not None and config.budget.queries is not None and STAGES.index(force) <= STAGES.index("extract"):
        raise UserError(
            f"--force {force} would spend budget.queries = {config.budget.queries} a second time; choose another "
            "--out, or remove the budget"
        )
    config = config.with_queries(nonce=config.queries.nonce or registration.registered_nonce(folder))
    config = with_settled_precision(Run(config, folder))
    runs = runs_of(config, folder)
    with folder.hold_lock(), ExitStack() as stack:
        if last == STAGES[-1] and force is None and is_finished(runs[0]):
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
        confirm(runs, stages, yes=yes)
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
                    whole, *swept = [FinishedRun.from_plans(*one, planned) for one in runs]
                    mapped(report.run, [(one,) for one in swept], "points", "reports of sweeps")
                    with step("tables and figures"):
                        report.run(whole, points(config, folder))
                else:
                    if stage == "extract":
                        for _, place in runs:
                            registration.write_down(place, START, {"command": command})
                    STAGE_RUNS[stage](runs, planned)
        if last == STAGES[-1]:
            hand_over(config.report, folder)
            storage.write_json(f"{folder.path}/{FINISHED}", _state(Run(config, folder)))
    return folder


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
    if nonce is None and any(ThreatModel(config).audits_others for config, _ in runs):
        nonce, origin = new_nonce(), SYSTEM
    before = planned_nonce(registration.lines_of(runs[0].folder))
    if nonce is not None and nonce == before.get("value"):
        origin = before["from"]
    settled = [Run(one.with_queries(nonce=nonce or one.queries.nonce), folder) for one, folder in runs]
    planned: list[Planned] = []
    for run in settled:
        if nonce != first.queries.nonce:
            run.folder.settle(run.config.model_dump(mode="json", by_alias=True))
        mine = plans_of([run])
        plans = [plan for plan, _ in mine]
        write_plans(run.folder.path, plans)
        registration.write_down(run.folder, PLAN, _plan(run, plans, {"from": origin, "value": nonce}))
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


def with_settled_precision(run: Run) -> RunConfig:
    """The config of a run with the precision that an earlier start in its folder settled; without one as it is."""
    config, path = run.config, f"{run.folder.path}/config.yaml"
    if not _is_open(config) or not storage.exists(path):
        return config
    before = (yaml.safe_load(storage.read_bytes(path)).get("queries") or {}).get("precision")
    return config.with_queries(precision=before) if before in PRECISIONS else config


def settle_precision(runs: list[Run]) -> list[Run]:
    """Runs of one config and its sweeps with a precision, also in their files; on GPUs they have one already."""
    import ray

    if not _is_open(runs[0].config):
        return runs
    precision = "float32"
    if _all_nodes_have_bfloat16():
        config = runs[0].config
        remote = ray.remote(num_cpus=config.resources.actor_cpus, memory=borne(TASK_MEMORY))(_tried)
        precision = ray.get(remote.remote(config))
        say("config", f"queries.precision: {precision}, by the instructions of this CPU")
    settled = [Run(one.with_queries(precision=precision) if _is_open(one) else one, folder) for one, folder in runs]
    for config, folder in settled:
        folder.settle(config.model_dump(mode="json", by_alias=True))
    return settled


def _is_open(config: RunConfig) -> bool:
    return config.queries.precision == "auto" and config.resources.device == "cpu"


def _all_nodes_have_bfloat16() -> bool:
    """Tell whether every node that is alive does; the only one is asked here."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    if len(nodes) == 1:
        return has_bfloat16()
    remote = ray.remote(num_cpus=0, memory=borne(HELPER_MEMORY))(has_bfloat16)
    there = [NodeAffinitySchedulingStrategy(node, soft=True) for node in nodes]
    return all(ray.get([remote.options(scheduling_strategy=one).remote() for one in there]))


def _tried(config: RunConfig) -> str:
    """The precision for the encoders of a run, or for networks like them, as a worker would ask them."""
    torch.set_num_threads(1)
    return tried_precision(_networks(config), config.data.channels, config.data.image_size)


def _networks(config: RunConfig) -> Iterator[Encoder]:
    """One network of each architecture that is queried."""
    data, known = config.data, set[str]()
    for encoder in {query.encoder.name: query.encoder for query in queries_in(config)}.values():
        settings = encoder.settings
        kind = getattr(settings, "backbone", None) or getattr(settings, "load", None)
        if kind is not None and kind not in known:
            known.add(kind)
            yield for_queries(stand_in(encoder, data), torch.device("cpu"))


UNITS = {"cpu_hours": "CPU-hours", "gpu_hours": "GPU-hours", "money": "money"}


def confirm(runs: Sequence[Run], stages: Sequence[str], *, yes: bool) -> None:
    """Compare the estimated costs of a run with its budget before it starts; without a budget nothing is measured.

    A config with stages that were once within the budget or confirmed is not estimated again.

    Args:
        runs: a run and the points of its sweeps; Ray is connected.
        stages: those that will run.
        yes: spend more than the budget without a question.

    Raises:
        UserError: the estimate exceeds the budget and nobody confirms.
    """
    config, folder = runs[0]
    if not config.budget.estimated:
        return
    asked = digest([of_run.model_dump(mode="json", by_alias=True) for of_run, _ in runs], list(stages))
    if asked in [entry["asked"] for entry in folder.manifest.get("estimates", [])]:
        return
    costs = estimate(runs)
    above = exceeded(costs, config.budget, stages)
    for line in above:
        say("estimate", line)
    if above and not yes:
        refusal = f"the run would take {'; '.join(above)}; raise the budget, ask for less, or confirm with --yes"
        if not sys.stdin.isatty() or console.input("Go on? [y/N] ").strip().lower() not in ("y", "yes"):
            raise UserError(refusal)
    spent = {name: asdict(costs.spent(name, stages)) for name in config.budget.estimated}
    folder.append_manifest("estimates", {"asked": asked, "at": now(), **spent, "confirmed": bool(above)})


def exceeded(costs: Estimate, budget: BudgetConfig, stages: Sequence[str]) -> list[str]:
    """The costs above the budget, a line each; the value of an estimate counts, not its interval."""
    return [
        f"about {plain(spent.value)} {UNITS[name]} ({plain(spent.low)} to {plain(spent.high)}), more than "
        f"budget.{name} = {most:g}"
        for name, most in budget.estimated.items()
        if (spent := costs.spent(name, stages)).value > most
    ]


_BESIDE = (f"/{FINISHED}", f"/{PROGRESS}", "/statement.json")  # a statement fits no report made anew


def is_finished(run: Run) -> bool:
    """Tell whether a run was reported and nothing changed since: no setting, no code, no file of the folder.

    A run that asks an encoder behind an API is never known so: whether that still answers as before must be asked.
    """
    if any(isinstance(encoder, EndpointConfig) for encoder in run.config.encoders.values()):
        return False
    with suppress(ValueError):  # damaged
        known = storage.read_json_or(f"{run.folder.path}/{FINISHED}", None)
        return known is not None and known == _state(run)
    return False


def _state(run: Run) -> dict[str, Any]:
    """What a run rests on that has just been reported: its config, the code and every file of its folder."""
    stamps = storage.stamps(run.folder.path, recursive=True)
    files = {path.removeprefix(run.folder.path): stamp for path, stamp in stamps.items()}
    return {
        "config_sha256": digest(run.config.model_dump(mode="json", by_alias=True)),
        "tool": registration.code_digest(),
        "versions": versions(),
        "files_sha256": digest(
            {name: stamp for name, stamp in files.items() if name not in _BESIDE and "/." not in name}
        ),
    }
