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
from pipelines.layers import layers_of, recorded_layers
from pipelines.shard_jobs import ATTEMPTS, ShardJob, attempts_folder
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
    cpu_hours: float | None = Field(default=None, gt=0, description="above it, as estimated, a run asks first")
    gpu_hours: float | None = Field(default=None, gt=0, description="the same")
    money: float | None = Field(default=None, gt=0, description="the same, in the unit of `prices`")

    @property
    def estimated(self) -> dict[str, float]:
        """What is compared with an estimate before anything is spent."""
        fields = {"cpu_hours": self.cpu_hours, "gpu_hours": self.gpu_hours, "money": self.money}
        return {name: most for name, most in fields.items() if most is not None}


class PricesConfig(BaseModel):
    """What things cost, in one unit of money; what has no price is not counted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpu_hour: float | None = Field(default=None, ge=0, description="a CPU for an hour")
    gpu_hour: float | None = Field(default=None, ge=0, description="a GPU for an hour")
    query: float | None = Field(default=None, ge=0, description="a query of an attacked encoder")
    storage_gb_month: float | None = Field(default=None, ge=0, description="10^9 bytes of features for a month")

    @property
    def known(self) -> dict[str, float]:
        """The prices that are given."""
        return {name: price for name, price in self.model_dump().items() if price is not None}


def count_queries(config: RunConfig, folder: SeedFolder) -> Iterator[Entry]:
    """Everything asked of the encoders of one seed, over all their checkpoints.

    Besides the roles there is the probe of an encoder from elsewhere, and what was lost, where there is any.
    """
    counts = Splits.load(folder.path).counts()

    def entry(encoder: str, role: str, per_image: int, count: int | None) -> Entry:
        images = counts[role] if count is None else min(counts[role], count)
        return encoder, role, images, images * per_image

    for demand in config.demands():
        for layer in layers_of(demand, config, folder, plan=False):
            for role in layer.roles:
                yield entry(demand.encoder, role, layer.queries_per_image, layer.count)
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
    asked = sum(2 * images for name, images in probes if name in attacked(runs))
    if budget is not None and asked > budget:
        names = ", ".join(sorted({name for name, _ in probes} & attacked(runs)))
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
    targets = attacked(runs)
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


def attacked(runs: Sequence[Run]) -> set[str]:
    """The encoders that are under attack: those whose queries a budget bounds and a price is asked for."""
    return {attack.target for config, _ in runs for attack in config.attacks}
