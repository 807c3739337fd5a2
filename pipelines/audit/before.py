"""What is settled before a run asks anything: the precision of its queries, and that its costs are within its budget.

The precision is settled when a run first starts, so that each resumption and each worker has it. ``auto`` is bfloat16
on GPUs, and on CPUs where all nodes have instructions for it and answers stay alike.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import torch
import yaml

from mi_core.encoders.folding import for_queries
from mi_core.provenance import now
from mi_core.querying.precision import PRECISIONS
from mi_core.querying.precision_trial import Tried, has_bfloat16, tried_precision
from mi_core.report.words.numbers import plain
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.limits import BudgetConfig
from pipelines.console import console, say
from pipelines.errors import UserError
from pipelines.estimate.run import Estimate, estimate
from pipelines.estimate.stand_ins import stand_in
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.plan.resolve import queries_in
from pipelines.run.folder import RunFolder
from pipelines.run.points import Run
from pipelines.run.ray_session import HELPER_MEMORY, TASK_MEMORY, borne

UNITS = {"cpu_hours": "CPU-hours", "gpu_hours": "GPU-hours", "money": "money"}


def with_settled_precision(config: RunConfig, folder: RunFolder) -> RunConfig:
    """A config with the precision that an earlier start in this folder settled; without one as it is."""
    path = f"{folder.path}/config.yaml"
    if not _is_open(config) or not storage.exists(path):
        return config
    before = (yaml.safe_load(storage.read_bytes(path)).get("queries") or {}).get("precision")
    return config.with_queries(precision=before) if before in PRECISIONS else config


def settle_precision(runs: list[Run]) -> list[Run]:
    """Runs of one config and its sweeps with a precision, also in their files; on GPUs they have one already."""
    if not _is_open(runs[0].config):
        return runs
    precision = "float32"
    if _all_nodes_have_bfloat16():
        precision = _tried(runs[0].config)
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
    import ray

    remote = ray.remote(num_cpus=config.resources.actor_cpus, memory=borne(TASK_MEMORY))(_try)
    found: str = ray.get(remote.remote(config))
    return found


def _try(config: RunConfig) -> str:
    torch.set_num_threads(1)
    return tried_precision(_networks(config))


def _networks(config: RunConfig) -> Iterator[Tried]:
    """One network of each architecture that is queried."""
    data, known = config.data, set[str]()
    for encoder in {query.encoder.name: query.encoder for query in queries_in(config)}.values():
        settings = encoder.settings
        kind = getattr(settings, "backbone", None) or getattr(settings, "load", None)
        if kind is not None and kind not in known:
            known.add(kind)
            yield Tried(for_queries(stand_in(encoder, data), torch.device("cpu")), data.channels, data.image_size)


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
        _ask(above)
    spent = {name: asdict(costs.spent(name, stages)) for name in config.budget.estimated}
    folder.append_manifest("estimates", {"asked": asked, "at": now(), **spent, "confirmed": bool(above)})


def exceeded(costs: Estimate, budget: BudgetConfig, stages: Sequence[str]) -> list[str]:
    """The costs above the budget, a line each; the value of an estimate counts, not its interval."""
    spent = {name: costs.spent(name, stages) for name in budget.estimated}
    return [
        f"about {plain(spent[name].value)} {UNITS[name]} ({plain(spent[name].low)} to {plain(spent[name].high)}), more "
        f"than budget.{name} = {most:g}"
        for name, most in budget.estimated.items()
        if spent[name].value > most
    ]


def _ask(above: Sequence[str]) -> None:
    refusal = f"the run would take {'; '.join(above)}; raise the budget, ask for less, or confirm with --yes"
    if not sys.stdin.isatty():
        raise UserError(refusal)
    if console.input("Go on? [y/N] ").strip().lower() not in ("y", "yes"):
        raise UserError(refusal)
