"""The precision of a run's queries: settled when it first starts, so that each resumption and each worker has it.

``auto`` is bfloat16 on GPUs, and on CPUs where all nodes have instructions for it and answers stay alike.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import yaml

from mi_core.encoders.folding import for_queries
from mi_core.querying.precision import PRECISIONS
from mi_core.querying.precision_trial import Tried, has_bfloat16, tried_precision
from pipelines.config.run_config import RunConfig
from pipelines.console import say
from pipelines.estimate.stand_ins import stand_in
from pipelines.files import storage
from pipelines.plan.resolve import queries_in
from pipelines.run.folder import RunFolder
from pipelines.run.points import Run
from pipelines.run.ray_session import HELPER_MEMORY, TASK_MEMORY, borne


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
