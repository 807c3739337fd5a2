"""Check before the first query that every node can use the run folder and that the targets answer."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mi_core.augmentations.views import clean
from mi_core.encoders.batch_norm import for_queries
from pipelines.config.sections.encoders import EndpointConfig
from pipelines.encoders.probe_ledger import attacked
from pipelines.encoders.stored import describe
from pipelines.errors import UserError, fault_of_user
from pipelines.extract.actor.asking import device_with
from pipelines.files import storage
from pipelines.run.folder import SeedFolder
from pipelines.run.points import Run
from pipelines.run.ray_session import HELPER_MEMORY, TASK_MEMORY, borne


@dataclass(frozen=True)
class Probe:
    """The access of one node to the run folder.

    Args:
        node: its name, for errors.
        fault: why it could not write there; empty if it could.
        reads: whether it saw what the driver wrote.
        seen: whether the driver saw what it wrote.
    """

    node: str
    fault: str
    reads: bool
    seen: bool


def run(runs: Sequence[Run]) -> None:
    """Check the run folder and the targets; takes seconds, once per extraction with work to do.

    Raises:
        UserError: a node cannot use the run folder, or an attacked encoder does not load or answer there.
    """
    config, folder = runs[0]
    judge(folder.path, probe_nodes(folder.path))
    here = {name for name in attacked(runs[:1]) if not isinstance(config.encoders[name], EndpointConfig)}
    for name in sorted(here):
        try_encoder(folder.seed(config.seeds[0]), name, config.resources.actor_cpus, config.resources.gpus_per_actor)


def probe_nodes(path: str) -> list[Probe]:
    """Let every node that has CPUs or GPUs write into a folder below ``path``, and read there what the driver wrote."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    place = f"{path}/{storage.UNFINISHED}preflight-{uuid.uuid4().hex[:8]}"
    nodes = [node for node in ray.nodes() if node["Alive"] and {"CPU", "GPU"} & set(node["Resources"])]
    remote = ray.remote(num_cpus=0, memory=borne(HELPER_MEMORY))(_write_and_read)
    try:
        storage.write_atomic(f"{place}/driver", b"driver")
        pending = [
            remote.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            ).remote(place, node["NodeID"])
            for node in nodes
        ]
        answers = zip(nodes, ray.get(pending), strict=True)
        return [
            Probe(
                f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})",
                fault,
                reads,
                storage.exists(f"{place}/{node['NodeID']}"),
            )
            for node, (fault, reads) in answers
        ]
    finally:
        storage.remove(place)


def _write_and_read(place: str, name: str) -> tuple[str, bool]:
    """Why this process cannot write in a folder (empty if it can), and whether it sees the driver's file there."""
    try:
        reads = storage.exists(f"{place}/driver")
        storage.write_atomic(f"{place}/{name}", name.encode())
    except OSError as error:
        return str(error), False
    return "", reads


def judge(path: str, probes: Sequence[Probe]) -> None:
    """Raise UserError naming the first node that cannot write to the run folder, or that has one of its own."""
    for probe in probes:
        if probe.fault:
            raise UserError(f"{path}: node {probe.node} cannot write there ({probe.fault}); choose another --out")
        if not (probe.reads and probe.seen):
            raise UserError(
                f"{path}: node {probe.node} has a folder of its own there; choose an --out that all nodes share, a "
                "network folder or s3://"
            )


def try_encoder(folder: SeedFolder, name: str, cpus: float, gpus: float) -> None:
    """Load the last weights of an encoder in a task like an encoder actor, and query it with one grey image.

    The answer is not judged: extraction names the sample on which an encoder fails.

    Raises:
        UserError: it does not load or answer; the encoder is named.
    """
    import ray

    remote = ray.remote(num_cpus=cpus, num_gpus=gpus, memory=borne(TASK_MEMORY))(_ask_once)
    try:
        ray.get(remote.remote(folder, name, gpus))
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", error)
        fault = fault_of_user(error) or f"{type(cause).__name__}: {cause}"
        raise UserError(f"encoders.{name} does not work in an encoder actor: {fault}") from error


def _ask_once(folder: SeedFolder, name: str, gpus: float) -> None:
    stored = describe(folder, name)
    device = device_with(gpus)
    encoder = for_queries(stored.load(stored.epochs[-1]), device)
    channels, size = stored.record.channels, stored.record.image_size
    with torch.inference_mode():
        encoder(clean(torch.full((1, channels, size, size), 128, dtype=torch.uint8, device=device)))
