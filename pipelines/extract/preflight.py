"""Check before the first query that every node can use the run folder and that the targets answer.

An encoder behind an API, which an earlier start adopted, is known again by its answers to a few images.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import safetensors.torch
import torch

from mi_core.adoption.soundness import relative_differences
from mi_core.augmentations.views import clean
from mi_core.encoders.batch_norm import for_queries
from mi_core.provenance import now
from mi_core.report.words.numbers import plain
from pipelines.config.sections.encoders import EndpointConfig
from pipelines.data.plans import Planned
from pipelines.encoders.access import Access
from pipelines.encoders.adopt import CHECKED, Adoption, adoptions
from pipelines.encoders.probes import attacked, checks_path, recorded_checks
from pipelines.encoders.stored import ANSWERS, describe
from pipelines.errors import UserError, fault_of_user
from pipelines.extract.actor.asking import device_with
from pipelines.files import storage
from pipelines.run.folder import SeedFolder
from pipelines.run.points import Run
from pipelines.run.ray_session import HELPER_MEMORY, TASK_MEMORY, borne, mapped

CHANGED = 0.01  # relative difference above which other weights answer; more where answers are noisier


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
    hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in nodes}
    remote = ray.remote(num_cpus=0, memory=borne(HELPER_MEMORY))(_write_and_read)
    try:
        storage.write_atomic(f"{place}/driver", b"driver")
        there = {node: NodeAffinitySchedulingStrategy(node, soft=False) for node in hosts}
        pending = [remote.options(scheduling_strategy=one).remote(place, node) for node, one in there.items()]
        return [
            Probe(f"{host} ({node[:8]})", fault, reads, storage.exists(f"{place}/{node}"))
            for (node, host), (fault, reads) in zip(hosts.items(), ray.get(pending), strict=True)
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


def check_unchanged(
    planned: Sequence[Planned], wanted: Collection[tuple[SeedFolder, str]], access: Access | None
) -> None:
    """Ask encoders behind an API, adopted by an earlier start, for a few answers that are known.

    Args:
        planned: the plans in hand.
        wanted: which of their encoders; see `to_check`.
        access: how they are asked.

    Raises:
        UserError: an answer differs from that at the adoption by more than noise.
    """
    jobs = [job for one in planned for job in adoptions(one) if (job.folder, job.name) in wanted]
    mapped(_ask_anew, [(job, access) for job in jobs], "encoders", "checking that they have not changed")


def to_check(runs: Sequence[Run], places: Collection[tuple[SeedFolder, str]]) -> list[tuple[SeedFolder, str]]:
    """The encoders behind an API among some, without those adopted since this start of the run."""
    started = runs[0][1].manifest["runs"][-1]["started"]
    records = [(folder, name, describe(folder, name).record) for folder, name in places]
    asked = [(folder, name, record) for folder, name, record in records if "widths" in record.answers]
    return [(folder, name) for folder, name, record in asked if record.adopted < started]


def record_checks(places: Collection[tuple[SeedFolder, str]]) -> None:
    """Write down that some encoders will be asked whether they are still the same."""
    for folder, name in places:
        images = min(CHECKED, describe(folder, name).record.answers["noise"]["n"])
        checks = [*recorded_checks(folder, name), {"asked": now(), "queries": images}]
        storage.write_json(checks_path(folder, name), checks)


def _ask_anew(job: Adoption, access: Access | None) -> None:
    stored = describe(job.folder, job.name)
    encoder = stored.load(0, None if access is None else access.client)
    known = safetensors.torch.load(storage.read_bytes(f"{stored.folder}/{ANSWERS}"))
    answers = encoder(clean(torch.from_numpy(job.images(CHECKED).images)), cached=False)
    largest = max(float(relative_differences(known[output], answers[output]).max()) for output in known)
    allowed = max(CHANGED, 4 * stored.record.answers["noise"]["largest"])
    if not largest <= allowed:
        raise UserError(
            f"encoders.{job.name}.endpoint: its answers have changed since adoption, by {plain(largest, 2)} of the "
            f"embedding's length (noise: at most {plain(allowed, 2)}), so other weights answer now; serve the former "
            "ones, or redo with --force pretrain"
        )
