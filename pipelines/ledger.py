"""What is asked of encoders: the queries of a run by encoder and role, and the budget that holds them.

The plan says what is asked once. What was begun and lost to a crash or an interruption is asked again: every attempt
at a chunk leaves a marker with its queries, the commit takes one away, and those that are left were lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from pipelines import storage
from pipelines.artifacts import SeedFolder
from pipelines.encoders import LoadedConfig, describe
from pipelines.errors import UserError
from pipelines.layers import SEQUENTIAL, Demand, Stopping, layers_of, recorded_layers
from pipelines.shard_jobs import ATTEMPTS, ShardJob, attempts_folder, load_features
from pipelines.splits import Splits

if TYPE_CHECKING:
    from pipelines.config import Run, RunConfig

PROBE, LOST = "(probe)", "(lost and asked again)"
Entry = tuple[str, str, int, int]
"""Encoder, role, images, queries."""


class BudgetConfig(BaseModel):
    """What a run may spend."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    queries: int | None = Field(
        default=None, ge=1, description="queries of attacked encoders, over all their checkpoints and all seeds"
    )


def count_queries(config: RunConfig, folder: SeedFolder) -> Iterator[Entry]:
    """Everything asked of the encoders of one seed, over all their checkpoints.

    Besides the roles there is the probe of an encoder from elsewhere, and what was lost, where there is any.
    """
    splits = Splits.load(folder.path)
    counts = splits.counts()

    def entry(encoder: str, role: str, per_image: int, count: int | None) -> Entry:
        images = counts[role] if count is None else min(counts[role], count)
        return encoder, role, images, images * per_image

    for demand in config.demands():
        if demand.stopping is not None:
            yield from _decided(demand, demand.stopping, config, folder)
            continue
        for layer in layers_of(demand, config, folder, plan=False):
            asked: set[str] = set()  # a sample of two roles is asked once
            for role in layer.roles:
                ids = splits.ids([role]) if layer.count is None else splits.first([role], layer.count, folder.seed)
                new = set(ids) - asked
                asked |= new
                yield demand.encoder, role, len(new), len(new) * layer.queries_per_image
    for name in config.encoders:
        for old in _outdated(config, folder, name):
            for role in old["roles"]:
                yield entry(name, role, old["per_image"], old["count"])
    for name in config.encoders:
        probed = probe_queries(config, folder, name)
        if probed:
            yield name, PROBE, probed // 2, probed
        lost = lost_queries(folder, name)
        if lost:
            yield name, LOST, 0, lost


def _decided(demand: Demand, stopping: Stopping, config: RunConfig, folder: SeedFolder) -> Iterator[Entry]:
    """What a rule asked of an encoder, as the committed features have it."""
    kept: dict[str, Any] = {"count": demand.count, "stopping": stopping, "without": demand.without}
    for role in demand.needs:
        needs = (config, folder, demand.encoder, stopping.epoch, stopping.output, [SEQUENTIAL])
        found = load_features(*needs, [role], **kept)
        yield demand.encoder, role, len(found), int(found.values[SEQUENTIAL][:, 0].sum())


def _outdated(config: RunConfig, folder: SeedFolder, encoder: str) -> list[dict[str, Any]]:
    """Layers that this run once asked and no demand reads any more: an attack was added, and more is read at once."""
    demands = [demand for demand in config.demands() if demand.encoder == encoder]
    read = {layer.base for demand in demands for layer in layers_of(demand, config, folder, plan=False)}
    return [entry for entry in recorded_layers(folder, encoder) if "per_image" in entry and entry["base"] not in read]


def probe_queries(config: RunConfig, folder: SeedFolder, encoder: str) -> int:
    """What it took to see whether an encoder from elsewhere works: two views of some images."""
    if not isinstance(config.encoders[encoder], LoadedConfig):
        return 0
    return 2 * int(describe(folder, encoder).description["consistency"]["encoder"]["n"])


def lost_queries(folder: SeedFolder, encoder: str) -> int:
    """Queries of an encoder that were begun and not committed, at most: an interrupted chunk may have asked fewer."""
    return sum(int(storage.read_bytes(path)) for path in storage.list_files(attempts_folder(folder, encoder)))


def begun(folder: SeedFolder, encoder: str) -> Mapping[str, int]:
    """How often every chunk of an encoder was begun and lost, by the name of its markers."""
    found: dict[str, int] = {}
    for path in storage.list_files(attempts_folder(folder, encoder)):
        name = path.rpartition(".")[0]
        found[name] = found.get(name, 0) + 1
    return found


def check_probes(runs: Sequence[Run], probes: Sequence[tuple[str, int]]) -> None:
    """Raise UserError if probing encoders from elsewhere, (name, images) each, would already exceed the budget."""
    budget = runs[0][0].budget.queries
    asked = sum(2 * images for name, images in probes if name in _attacked(runs))
    if budget is not None and asked > budget:
        names = ", ".join(sorted({name for name, _ in probes} & _attacked(runs)))
        raise UserError(
            f"budget.queries = {budget}, but to see whether {names} works takes {asked} queries alone; raise the budget"
        )


def attempts(runs: Sequence[Run], jobs: Sequence[ShardJob], left: Sequence[ShardJob]) -> int:
    """How often a chunk may be begun from now on: what is begun again after a crash is paid for again.

    Args:
        runs: a run and the points of its sweeps, which have one budget.
        jobs: everything that is asked, once or before.
        left: what of it is still to ask.

    Raises:
        UserError: the queries of the attacked encoders exceed the budget; nothing has been asked then.
    """
    budget = runs[0][0].budget.queries
    if budget is None:
        return ATTEMPTS
    targets = _attacked(runs)
    made = {(job.folder, job.layer.encoder): None for job in jobs if job.layer.encoder in targets}
    probed = {
        describe(folder, name).description["inputs"]: probe_queries(config, folder, name)
        for config, of_run in runs
        for folder in map(of_run.seed, config.seeds)
        for name in targets
    }
    outdated = {
        (seed, name, old["base"], *old["roles"], *old["needs"]): old["per_image"] * _images(old, of_run.seed(seed))
        for config, of_run in runs
        for seed in config.seeds
        for name in targets
        for old in _outdated(config, of_run.seed(seed), name)
    }
    asked: int = sum(job.queries for job in jobs if job.layer.encoder in targets)
    asked += sum(probed.values()) + sum(outdated.values())
    lost = sum(lost_queries(folder, name) for folder, name in made)
    if asked + lost > budget:
        again = f", and {lost} more were spent on what a crash or an interruption lost" if lost else ""
        raise UserError(
            f"budget.queries = {budget}, but the attacks ask {asked} queries of {', '.join(sorted(targets))}{again}; "
            + (f"raise the budget to {asked + lost}" if lost else "lower queries.views or the roles' counts")
            + (", or start another run folder with less to ask" if lost else ", or raise the budget")
        )
    still = sum(job.queries for job in left if job.layer.encoder in targets)
    return min(ATTEMPTS, 1 + (budget - lost - asked) // max(1, still))


def _images(layer: Mapping[str, Any], folder: SeedFolder) -> int:
    counts, most = Splits.load(folder.path).counts(), layer["count"]
    sizes = [counts[role] if most is None else min(counts[role], most) for role in layer["roles"]]
    return sum(sizes)


def _attacked(runs: Sequence[Run]) -> set[str]:
    return {attack.target for config, _ in runs for attack in config.attacks}
